"""Laws of the reaper: a command's process group ends with its owner, whatever the group does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

REAPER = """
from nip_fn_adapters.processes import reaper
reaper.GRACE = {grace}
reaper.main()
"""
DEAF = "trap '' TERM; sleep 1000 & echo ready >&2; sleep 1000"
POLITE = "trap 'exit 7' TERM; echo ready >&2; while :; do sleep 0.05; done"
LEAVES_ONE = "trap '' TERM; sleep 1000 & echo ready >&2; exit 3"
DIES = "echo ready >&2; kill -USR1 $$"


@contextmanager
def reaped(script: str, *, grace: float) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """The reaper of a shell that has run its script up to "ready", and the process group."""
    with subprocess.Popen(
        [sys.executable, "-c", REAPER.format(grace=grace), "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reaper:
        assert reaper.stdin is not None
        assert reaper.stdout is not None
        assert reaper.stderr is not None
        group = int(reaper.stdout.readline())
        try:
            assert reaper.stderr.readline() == "ready\n"
            yield reaper, group
        finally:
            reaper.kill()
            if _lives(group):
                os.killpg(group, 9)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("script", "grace", "code"), [(DEAF, 0.2, 128 + 9), (POLITE, 1000, 7)], ids=["deaf", "polite"]
)
def test_the_group_ends_with_the_pipe_by_itself_or_by_force(
    script: str, grace: float, code: int
) -> None:
    with reaped(script, grace=grace) as (reaper, group):
        assert _lives(group)
        assert reaper.stdin is not None
        reaper.stdin.close()
        assert reaper.wait(30) == code
        assert not _lives(group)


def test_it_passes_sigterm_on_and_outlives_the_group() -> None:
    with reaped(POLITE, grace=1000) as (reaper, group):
        reaper.terminate()
        assert reaper.wait(30) == 7
        assert not _lives(group)


@pytest.mark.parametrize(
    ("script", "code"), [(LEAVES_ONE, 3), (DIES, 128 + 10)], ids=["leaves one", "dies"]
)
def test_what_a_command_leaves_is_killed_and_its_exit_code_is_kept(script: str, code: int) -> None:
    with reaped(script, grace=1000) as (reaper, group):
        assert reaper.wait(30) == code
        assert not _lives(group)
