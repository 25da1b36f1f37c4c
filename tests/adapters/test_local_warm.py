"""Children that are forked from a process that has their imports."""

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from nip_fn_adapters.providers.local.children import RunChild
from nip_fn_adapters.providers.local.warm import warm_children

PROGRAM = """
import os, sys
print("I am", sys.argv[1:], os.getppid(), "colorsys" in sys.modules)
if "exit" in sys.argv: sys.exit(3)
if "words" in sys.argv: sys.exit("no more")
if "raise" in sys.argv: raise ValueError("broken")
if "kill" in sys.argv: os.kill(os.getpid(), 9)
if "wait" in sys.argv: sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunChild:
    """Children with a module of the standard library."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return warm_children("colorsys", "no_such_module")


async def do(run: RunChild, folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of a child."""
    variables = {"PYTHONPATH": str(folder)}
    with (folder / f"{'-'.join(arguments)}.log").open("wb", buffering=0) as log:
        code = await run(("-m", "program", *arguments), log, variables, lambda: None)
    return code, Path(log.name).read_text()


def servers() -> list[psutil.Process]:
    """The processes that fork."""
    found = psutil.Process().children()
    return [child for child in found if "nip_fn_adapters.providers.local.warm" in child.cmdline()]


def runs(process: psutil.Process) -> bool:
    """True if the process is there, and is more than a zombie."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("arguments", "code", "last"),
    [
        (("1", "two"), 0, "I am ['1', 'two']"),
        (("exit",), 3, "I am ['exit']"),
        (("words",), 1, "no more"),
        (("raise",), 1, "ValueError: broken"),
        (("kill",), -signal.SIGKILL, "I am ['kill']"),
    ],
)
def test_a_child_is_as_one_of_a_new_interpreter(
    run: RunChild, tmp_path: Path, arguments: Sequence[str], code: int, last: str
) -> None:
    ended, printed = asyncio.run(do(run, tmp_path, *arguments))
    assert ended == code
    assert printed.splitlines()[-1].startswith(last)
    assert " True" in printed  # the import that its parent made


def test_children_one_after_the_other_have_one_parent_whatever_becomes_of_them(
    run: RunChild, tmp_path: Path
) -> None:
    printed = [asyncio.run(do(run, tmp_path, how))[1] for how in ("first", "kill", "raise", "last")]
    parents = {words.split("] ")[1].split()[0] for words in printed}
    assert len(parents) == 1
    (server,) = (psutil.Process(int(parent)) for parent in parents)
    server.kill()
    while runs(server):
        time.sleep(0.01)
    code, again = asyncio.run(do(run, tmp_path, "again"))
    assert code == 0
    assert "I am ['again']" in again


def test_children_at_once_do_not_wait_for_each_other(run: RunChild, tmp_path: Path) -> None:
    async def both() -> list[tuple[int, str]]:
        waiting = asyncio.ensure_future(do(run, tmp_path, "wait"))
        done = await do(run, tmp_path, "first")
        log = tmp_path / "wait.log"
        while "I am" not in log.read_text():
            await asyncio.sleep(0.01)
        mine = [child for server in servers() for child in server.children()]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert mine
        assert not any(map(runs, mine))
        return [done]

    assert [code for code, _ in asyncio.run(both())] == [0]


def test_nothing_is_left_when_nobody_orders_any_more(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    before = {server.pid for server in servers()}
    run = warm_children()
    asyncio.run(do(run, tmp_path, "first"))
    (server,) = [server for server in servers() if server.pid not in before]
    del run
    assert not runs(server)
