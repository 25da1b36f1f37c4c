"""Child processes that train: they end with the process that started them, and leave nothing."""

import asyncio
import ctypes
import os
import shutil
import signal
import stat
import sys
import threading
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

from nip_fn_adapters.providers.local.jobs import JobFiles

PR_SET_PDEATHSIG = 1  # of Linux's prctl
LOOK_SECONDS = 1.0  # between two calls of `look`


class RunChild(Protocol):
    """A way to run a child, as `run_child` does."""

    async def __call__(
        self,
        arguments: Sequence[str],
        log: BinaryIO,
        variables: Mapping[str, str],
        look: Callable[[], None],
    ) -> int:
        """The exit code of a Python with these arguments."""


def cores() -> int:
    """The number of processor cores that this process may use."""
    # Containers and batch systems often allow fewer cores than the machine has.
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


async def train_in_child(
    arguments: Sequence[str],
    files: JobFiles,
    threads: int,
    look: Callable[[], None],
    run: RunChild | None = None,
) -> int:
    """The exit code of the child that trains a job, as `run_child`, or as `run` if it is given.

    The files of earlier attempts are deleted first, and the log starts empty.
    """
    shutil.rmtree(files.unfinished, ignore_errors=True)
    for file in (files.progress, files.failure):
        file.unlink(missing_ok=True)
    variables = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait cost a core that is shared more than they save: 113 s
        # against 16 s for one training beside a vLLM; alone, waiting costs 12 to 15 %.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    with files.log.open("wb", buffering=0) as log:
        return await (run or run_child)(arguments, log, variables, look)


async def run_child(
    arguments: Sequence[str], log: BinaryIO, variables: Mapping[str, str], look: Callable[[], None]
) -> int:
    """The exit code of a Python, once it and all that it started are gone.

    All of them are killed when the caller is cancelled.

    Args:
        arguments: Those of the Python.
        log: The file of all that they print.
        variables: Environment variables to set.
        look: Called about once a second, and when the child has ended.
    """
    # The child reads from a pipe that nobody writes to: when this process dies, however it dies,
    # the pipe ends, and so does the child (`die_with_parent`).  What the family prints goes through
    # a pipe that ends with the last of them: the child's own end would come too early.
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", *arguments),
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, **variables},
        start_new_session=True,  # Ctrl-C is for this process, which then decides
    )
    assert child.stdin is not None
    copying = asyncio.ensure_future(_copy(child, log))
    try:
        while child.returncode is None and not copying.done():
            await asyncio.wait({copying}, timeout=LOOK_SECONDS)
            look()
    except BaseException:
        await kill_family(child.pid)
        raise
    finally:
        child.stdin.close()
        await asyncio.wait({copying})
        code = await child.wait()
    return code


async def kill_family(parent: int) -> None:
    """Kill a process and all that it started; they are dead on return, and hold no memory."""
    import psutil  # type: ignore[import-untyped]  # there wherever accelerate is

    family: list[Any] = []
    with suppress(psutil.NoSuchProcess):
        family = [psutil.Process(parent)]
        # All are found before any is killed: the children of a dead process have another parent.
        family += family[0].children(recursive=True)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)


async def _copy(child: Process, log: BinaryIO) -> None:
    """Write all that the child and its own children print to the log."""
    assert child.stdout is not None
    while printed := await child.stdout.read(1 << 16):
        log.write(printed)


def die_with_parent() -> None:
    """End this process when its parent dies: by a signal on Linux, by the pipe's end anywhere."""
    end_with_parent()
    if stat.S_ISFIFO(os.fstat(0).st_mode):  # another machine's launcher may give nothing to read
        threading.Thread(target=_watch_pipe, daemon=True).start()


def end_with_parent() -> None:
    """End this process when its parent dies, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch_pipe() -> None:
    while os.read(0, 1):  # ends when the parent does
        pass
    os._exit(1)
