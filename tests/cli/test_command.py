"""The command as a whole: help, version, doctor, and what it does not load."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import nip_fn as nip_fn_package
import nip_fn_adapters
import nip_fn_cli
from nip_fn_cli.shown.exits import Exit

from .conftest import RunCli


def test_version(run_cli: RunCli) -> None:
    assert run_cli("--version").stdout.strip() == f"nip-fn {nip_fn_package.__version__}"


def test_help_names_the_exit_codes(run_cli: RunCli) -> None:
    shown = " ".join(run_cli("--help").stdout.split())
    assert "130 interrupted" in shown


def test_doctor_finds_everything_here(run_cli: RunCli) -> None:
    told = run_cli("doctor")
    assert told.returncode == 0, told.stderr
    assert "torch" in told.stdout
    lines = [line for line in told.stdout.splitlines() if not line.startswith("serve ")]
    assert not any("missing" in line for line in lines)


@pytest.mark.xdist_group("trainings")  # whose worker has torch
def test_doctor_estimates_the_memory_of_a_training(run_cli: RunCli) -> None:
    told = run_cli("doctor", "--model", "builtin:tea", COLUMNS="200")
    assert told.returncode == 0, told.stderr
    found = re.findall(
        r"to train builtin:tea, (LoRA|all weights) +at least ([0-9.]+) GB", told.stdout
    )
    assert [name for name, _ in found] == ["LoRA", "all weights"]
    assert all(0.1 <= float(size) < 1 for _, size in found)
    wrong = run_cli("doctor", "--model", "./no-such-folder")
    assert wrong.returncode == Exit.ADAPTER
    assert "no-such-folder" in wrong.stderr


def test_doctor_names_what_is_missing_and_the_command_that_installs_it(tmp_path: Path) -> None:
    # Everything that is installed here, but for these.
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith(("torch", "litestar", "vllm")):
            (packages / entry.name).symlink_to(entry)
    sources = [str(Path(package.__file__).parents[1]) for package in (nip_fn_cli, nip_fn_adapters)]
    sources.append(str(Path(nip_fn_package.__file__).parents[1]))
    script = (
        f"import sys; sys.path += {[str(packages), *sources]}\n"
        "from nip_fn_cli.main import main; main()"
    )
    told = subprocess.run(
        [sys.executable, "-S", "-c", script, "doctor"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "", "COLUMNS": "300", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert told.returncode == Exit.ADAPTER, told.stderr
    found = {
        what: (state, mend)
        for what, state, mend in (
            re.split(r"\s{2,}", line.strip())[-3:]
            for line in told.stdout.splitlines()
            if "  missing  " in line
        )
    }
    assert found["torch>=2.13"] == ("missing", 'pip install "nip-fn[local]"')
    assert found["litestar<3,>=2.20"] == ("missing", 'pip install "nip-fn[serve]"')
    assert "nvidia-driver" in found["GPUs"][1]
    assert "python -m venv .venv-vllm" in found["vLLM"][1]
    assert len(found) == 4


@pytest.mark.parametrize("words", [(), ("train",)], ids=str)
def test_help_imports_nothing_that_takes_long(words: tuple[str, ...]) -> None:
    script = (
        "import sys\n"
        "from nip_fn_cli.main import main\n"
        "slow = {'torch', 'openai', 'numpy', 'jinja2', 'asyncio', 'rich', 'nip_fn'}\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(sorted(slow & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script, *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"Usage: {' '.join(('nip-fn', *words))} ")
    assert done.stdout.splitlines()[-1] == "[]"
