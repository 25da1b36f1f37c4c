"""`nip-fn doctor`: the installed packages and tools, and the commands that install the rest."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated

import typer
from packaging.requirements import Requirement
from returns.pipeline import is_successful
from returns.result import Success
from rich.table import Table

from nip_fn.params.agent import AgentParameters
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.sandbox import open_sandbox
from nip_fn_adapters.serving.gpus import visible_gpus
from nip_fn_adapters.serving.settings import check_port, find_vllm
from nip_fn_cli.shown.exits import Exit, die, or_exit
from nip_fn_cli.shown.printing import console

TEA = "builtin:tea"
EXTRAS = ("local", "api", "serve", "data", "ray")
VLLM_SECONDS = 60.0  # for vLLM to print its version: its imports take long

Finding = tuple[str, str, str, str]  # the columns of a row


def doctor_command(
    model: Annotated[
        str | None,
        typer.Option(
            help="Also estimate the memory that a training of this model takes.", metavar="NAME"
        ),
    ] = None,
) -> None:
    """Print what is installed, what is missing, and the command that installs it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("extra", "needs", "found", "remedy"):
        table.add_column(title, overflow="fold")
    table.add_row("", "Python", platform.python_version(), _python_remedy())
    table.add_row("", "cores", str(os.cpu_count()), "")
    broken = set()
    for extra, requirement in _requirements():
        state, remedy = _check(requirement, extra)
        broken |= {extra} if remedy else set()
        table.add_row(extra or "always", str(requirement).partition(";")[0], state, remedy)
    table.add_row("local", TEA, str(model_directory(TEA).value_or("missing")), "")
    table.add_row("data", "sandbox", *_sandbox())
    for finding in _serving():
        table.add_row(*finding)
    for finding in [] if model is None or broken & {"local"} else _training(model):
        table.add_row(*finding)
    console().print(table)
    # The other extras are optional; without these two the embedded default cannot run.
    if broken & {"", "local"}:
        die(Exit.ADAPTER, "the embedded default cannot run yet; see the column on the right")


def _training(model: str) -> Iterator[Finding]:
    """The memory that a training of the model takes, with a LoRA and without."""
    from nip_fn_adapters.providers.local.memory import training_memory

    for title, rank in (("LoRA", AgentParameters().lora_rank), ("all weights", None)):
        memory = or_exit(
            training_memory(model, lora_rank=rank).alt(lambda problem: problem.of("adapter"))
        )
        yield "local", f"to train {model}, {title}", str(memory), ""


def _serving() -> Iterator[Finding]:
    """The GPUs, the vLLM and the ports for a language-model server."""
    gpus = visible_gpus()
    remedy = (
        "" if gpus else "NVIDIA's driver (apt install nvidia-driver); without one, small models"
    )
    yield "serve", "GPUs", str(len(gpus) or "missing"), remedy
    yield "serve", "vLLM", *_vllm()
    agent = AgentParameters()
    ports = (agent.language_model_server_port, "nip-fn serve"), (agent.vllm_server_port, "vLLM")
    for port, user in ports:
        free = is_successful(check_port("127.0.0.1", port))
        remedy = "" if free else f"fine if {user} uses it; otherwise --port or --vllm-port"
        yield "serve", f"port {port}", "free" if free else "in use", remedy


def _vllm() -> tuple[str, str]:
    """The version of vLLM in its own environment, or the command that installs it."""
    state = find_vllm().map(lambda command: _vllm_version(command[0]))
    return state.lash(lambda problem: Success(("missing", str(problem)))).unwrap()


def _vllm_version(python: str) -> tuple[str, str]:
    # Marked, since the imports of vLLM print lines of their own.
    question = (python, "-c", "import vllm; print('vllm', vllm.__version__)")
    try:
        printed = subprocess.run(question, capture_output=True, text=True, timeout=VLLM_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "broken", f"{python}: {error}"
    answers = [line for line in printed.stdout.splitlines() if line.startswith("vllm ")]
    if not answers:
        last = (printed.stderr.strip() or "no answer").splitlines()[-1]
        return "broken", f"{python}: {last}"
    return answers[-1].removeprefix("vllm "), ""


def _sandbox() -> tuple[str, str]:
    """The sandbox for untrusted code, or the command that installs one."""
    state = open_sandbox().map(lambda box: (box.name, ""))
    return state.lash(lambda problem: Success(("none", problem.remedy))).unwrap()


def _python_remedy() -> str:
    return "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"


def _requirements() -> list[tuple[str, Requirement]]:
    """The packages that nip-fn requires, each with its extra ("" for always)."""
    requirements = []
    for line in requires("nip-fn") or []:
        requirement = Requirement(line)
        for extra in ("", *EXTRAS):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                requirements.append((extra, requirement))
                break
    return requirements


def _check(requirement: Requirement, extra: str) -> tuple[str, str]:
    """The installed version, and the command that installs a sufficient one ("" if it is)."""
    remedy = f'pip install "nip-fn[{extra}]"' if extra else "pip install nip-fn"
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return "missing", remedy
    # Whoever has installed a prerelease did so on purpose.
    fits = requirement.specifier.contains(installed, prereleases=True)
    return (installed, "") if fits else (f"{installed}, too old", f"{remedy} --upgrade")
