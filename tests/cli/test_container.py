"""A run in a container, where each start has the process ids of the one before it."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.recording import store

from .conftest import COMMAND, SMALL, call_cli, needs_bubblewrap, plain_environment
from .test_train import digest_of

INSIDE = ("bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--as-pid-1", "--proc", "/proc")


def begin(folder: Path, *more: str) -> "subprocess.Popen[str]":
    """`nip-fn train` as process 1 of a namespace of its own."""
    return subprocess.Popen(
        [*INSIDE, str(COMMAND), "train", *SMALL, "--run", "a", *more],
        cwd=folder,
        env=plain_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill the container, as one that is out of memory is."""
    for one in [*psutil.Process(process.pid).children(recursive=True), process]:
        one.kill()
    process.communicate()
    # The lock of the checkpoint ends with the last process that holds it.
    time.sleep(0.05)


def killed_and_resumed(folder: Path, kills: int) -> str:
    """The digest of a run that is killed at random instants, and then resumed to its end."""
    lots = random.Random(kills)
    for _ in range(kills):
        more = ("--resume",) if (folder / "runs/a" / store.CHECKPOINT).exists() else ()
        process = begin(folder, *more)
        time.sleep(lots.uniform(0.5, 2.5))
        if process.poll() is None:
            kill(process)
    more = ("--resume",) if (folder / "runs/a" / store.CHECKPOINT).exists() else ()
    process = begin(folder, *more)
    out, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return digest_of(out)


@needs_bubblewrap
@pytest.mark.parametrize(
    "kills", [2, pytest.param(20, marks=(pytest.mark.exhaustive, pytest.mark.timeout(1200)))]
)
def test_a_run_is_killed_and_resumed_in_a_container(tmp_path: Path, kills: int) -> None:
    straight = tmp_path / "straight"
    straight.mkdir()
    whole = call_cli(straight, "train", *SMALL, "--run", "a")
    assert killed_and_resumed(tmp_path, kills) == digest_of(whole.stdout)


def test_a_file_that_was_being_replaced_stops_nobody_with_the_same_process_id(
    tmp_path: Path,
) -> None:
    """A child is killed in `replace_file`; the next one has its id, and replaces the file."""
    path = tmp_path / "job.msgpack"
    child = os.fork()
    if not child:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        replace_file(path, b"half")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not path.exists()
    (left,) = tmp_path.iterdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        replace_file(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert left.exists()
