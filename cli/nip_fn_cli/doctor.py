"""`nip-fn doctor`: what is installed, what is missing, and which command mends it."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from returns.result import Failure
from rich.table import Table

from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.sandbox import open_sandbox
from nip_fn_cli.exits import Exit, die
from nip_fn_cli.table import console

TINY = "builtin:tiny"
OPTIONAL = {
    "local": "sampling and training here",
    "data": "data sets of the hub, and Parquet files",
    "dev": "the tests",
}


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
    console().print(table)
    if broken & {"", "local"}:
        die(Exit.ADAPTER, "the embedded default cannot run yet; see the column on the right")


def _sandbox() -> tuple[str, str]:
    """What confines code that nobody trusts, and what would be better."""
    opened = open_sandbox()
    if isinstance(opened, Failure):
        return "none", "apt install bubblewrap"
    return opened.unwrap().name, ""


def _python_mend() -> str:
    return "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"


def _requirements() -> list[tuple[str, Requirement]]:
    """What nip-fn asks for, by extra ("" for always)."""
    found = []
    for line in requires("nip-fn") or []:
        requirement = Requirement(line)
        for extra in ("", *OPTIONAL):
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
