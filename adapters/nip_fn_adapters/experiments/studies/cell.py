"""A cell of a study: the ordinary command, in a process that ends with whoever started it.

Whoever runs it, and however often it was begun before: the recording tells what is left to do, and
a lock that nobody else is doing it.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from nip_fn_adapters.processes import reaper
from nip_fn_adapters.processes.exits import Exit
from nip_fn_adapters.recording.store import CHECKPOINT

LOG = "log"  # in the folder of a cell: all that its commands have said
BEGUN = "begun"  # beside it once somebody has begun the cell, which was queued before
POLL_SECONDS = 0.2
TAIL = 1 << 14  # bytes at the end of a log in which its last line is looked for

Child = subprocess.Popen[bytes]


class Order(NamedTuple):
    """The command that runs a cell.

    folder: of its run.
    command: its words, without what they need to resume it.
    resume: the words that are added where the run exists.
    directory: the working directory.
    """

    folder: str
    command: tuple[str, ...]
    resume: tuple[str, ...]
    directory: str


def run_cell(
    order: Order,
    began: Callable[[Child], object] = lambda child: None,
    stopping: Callable[[], bool] = lambda: False,
) -> int | None:
    """The exit code of a cell's command, once it has ended; None if it was not begun.

    While another command runs the cell, this one waits: the other may be what is left of one that
    was killed, or do all that there is to do.  Interrupted, it stops the cell as Ctrl-C does, and
    returns when the cell has stopped.

    Args:
        order: The cell.
        began: Called with its process.
        stopping: True once it need not be begun any more.
    """
    folder = Path(order.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BEGUN).touch()
    with (folder / LOG).open("ab") as log:
        # The lock is of the open file, which the cell's processes inherit: it is free when the last
        # of them has ended, whoever has killed whom.
        while not _locks(log):
            if stopping():
                return None
            time.sleep(POLL_SECONDS)
        child = _start(order, log)
    began(child)
    try:
        # Ray interrupts a task between two steps of Python, and would not wake a wait without end.
        while True:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(POLL_SECONDS)
    except BaseException:
        child.send_signal(signal.SIGTERM)
        child.wait()
        raise


def is_queued(folder: Path) -> bool:
    """True if the cell in that folder has not begun since it was queued."""
    return not (folder / BEGUN).exists()


def hand_over(folder: Path) -> None:
    """Create the folder of a cell and mark the cell as queued."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BEGUN).unlink(missing_ok=True)


def _locks(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(order: Order, log: BinaryIO) -> Child:
    exists = (Path(order.folder) / CHECKPOINT).exists()
    return subprocess.Popen(
        (sys.executable, "-m", reaper.__name__, *order.command, *order.resume * exists),
        stdin=subprocess.PIPE,  # ends with this process, and so does the cell
        stdout=subprocess.DEVNULL,
        stderr=log,
        cwd=order.directory,
        # Cores are shared with other cells: threads that spin while they wait would take them.
        env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ},
        start_new_session=True,  # Ctrl-C is for this process, which then decides
    )


def last_line(folder: Path) -> str:
    """The last line that the commands of a cell have printed; "" if there is none."""
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""


def why_stopped(folder: Path, code: int) -> str:
    """The reason why a cell's command has ended with an exit code: what it said last."""
    if code > 128 and code != Exit.INTERRUPTED:
        return f"killed by signal {code - 128}"
    return last_line(folder).removeprefix("nip-fn: ") or f"exit code {code}"
