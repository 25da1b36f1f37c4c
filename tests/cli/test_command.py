"""The command as a whole: help, version, doctor, and what it does not load."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest

from tests.cli.conftest import Finished

NipFn = Callable[..., Finished]


def test_version(nip_fn: NipFn) -> None:
    assert nip_fn("--version").stdout.strip() == f"nip-fn {version('nip-fn')}"


@pytest.mark.parametrize("command", [(), ("train",), ("replay",), ("doctor",)])
def test_every_command_has_help_that_fits_the_terminal(
    nip_fn: NipFn, command: tuple[str, ...]
) -> None:
    shown = nip_fn(*command, "--help", COLUMNS="100")
    assert shown.returncode == 0
    assert max(map(len, shown.stdout.splitlines())) <= 100


def test_help_names_the_exit_codes(nip_fn: NipFn) -> None:
    shown = " ".join(nip_fn("--help").stdout.split())
    assert "130 interrupted" in shown


def test_doctor_finds_everything_here(nip_fn: NipFn) -> None:
    told = nip_fn("doctor")
    assert told.returncode == 0, told.stderr
    assert "torch" in told.stdout
    assert "missing" not in told.stdout


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from nip_fn_cli.main import app\n"
        "heavy = {'torch', 'transformers', 'openai', 'numpy', 'rich.table', 'nip_fn.run'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
