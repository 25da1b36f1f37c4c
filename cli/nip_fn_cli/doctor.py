"""`nip-fn doctor`: what is installed, what is missing, and which command mends it."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from returns.result import Failure, Success
from rich.table import Table

from nip_fn.params.agent import AgentParameters
from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.sandbox import open_sandbox
from nip_fn_adapters.serving.gpus import visible_gpus
from nip_fn_adapters.serving.settings import check_port, find_vllm
from nip_fn_cli.exits import Exit, die
from nip_fn_cli.table import console

TINY = "builtin:tiny"
EXTRAS = ("local", "api", "serve", "data", "dev")
MOST_SECONDS = 60.0  # for vLLM to say its version

Finding = tuple[str, str, str, str]  # for what, what, found, to mend


def doctor_command() -> None:
    """Print the findings; end with `Exit.ADAPTER` where the embedded default cannot run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("for", "what", "found", "to mend"):
        table.add_column(title, overflow="fold")
    table.add_row("", "Python", platform.python_version(), _python_mend())
    table.add_row("", "cores", str(os.cpu_count()), "")
    broken = set()
    for extra, requirement in _requirements():
        found, mend = _check(requirement, extra)
        broken |= {extra} if mend else set()
        table.add_row(extra or "always", str(requirement).partition(";")[0], found, mend)
    model = model_directory(TINY)
    table.add_row("local", TINY, str(model.value_or("missing")), "")
    table.add_row("data", "sandbox", *_sandbox())
    for finding in _serving():
        table.add_row(*finding)
    console().print(table)
    if broken & {"", "local"}:
        die(Exit.ADAPTER, "the embedded default cannot run yet; see the column on the right")


def _serving() -> Iterator[Finding]:
    """What a language-model server would find on this machine."""
    gpus = visible_gpus()
    mend = "" if gpus else "NVIDIA's driver (apt install nvidia-driver); without one, small models"
    yield "serve", "GPUs", str(len(gpus) or "missing"), mend
    yield "serve", "vLLM", *_vllm()
    agent = AgentParameters()
    ports = (agent.language_model_server_port, "nip-fn serve"), (agent.vllm_server_port, "vLLM")
    for port, user in ports:
        free = _is_free(port)
        mend = "" if free else f"in use: fine if by {user}; else --port or --vllm-port"
        yield "serve", f"port {port}", "free" if free else "in use", mend


def _vllm() -> tuple[str, str]:
    """The version of vLLM in its own environment, and the command that installs it."""
    command = find_vllm()
    if isinstance(command, Failure):
        return "missing", command.failure()
    python, *_ = command.unwrap()
    asked = (python, "-c", "import vllm; print('vllm', vllm.__version__)")
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "broken", f"{python}: {error}"
    answers = [line for line in told.stdout.splitlines() if line.startswith("vllm ")]
    if not answers:
        last = (told.stderr.strip() or "no answer").splitlines()[-1]
        return "broken", f"{python}: {last}"
    return answers[-1].removeprefix("vllm "), ""


def _is_free(port: int) -> bool:
    try:
        check_port("127.0.0.1", port)
    except OSError:
        return False
    return True


def _sandbox() -> tuple[str, str]:
    """The sandbox for code that nobody trusts, or the command that makes one possible."""
    match open_sandbox():
        case Success(sandbox):
            return sandbox.name, ""
        case Failure(problem):
            return "none", f"{problem.problem}; {problem.remedy}"
    raise AssertionError("a result is a success or a failure")


def _python_mend() -> str:
    return "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"


def _requirements() -> list[tuple[str, Requirement]]:
    """What nip-fn asks for, by extra ("" for always)."""
    found = []
    for line in requires("nip-fn") or []:
        requirement = Requirement(line)
        for extra in ("", *EXTRAS):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                found.append((extra, requirement))
                break
    return found


def _check(requirement: Requirement, extra: str) -> tuple[str, str]:
    """What is installed, and the command that mends it if that is not enough."""
    mend = f'pip install "nip-fn[{extra}]"' if extra else "pip install nip-fn"
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return "missing", mend
    fits = requirement.specifier.contains(installed, prereleases=True)
    return (installed, "") if fits else (f"{installed}, too old", f"{mend} --upgrade")
