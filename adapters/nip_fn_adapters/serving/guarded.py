"""Commands that end with this process, through `guard`."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from nip_fn_adapters.api.replies import one_line
from nip_fn_adapters.serving import guard

LOGS_KEPT = 5  # of one name, the newest included
TAIL = 1 << 18  # bytes of a log that are looked through

# What a Python program says when it ends by itself, without what logging puts before it.
_ERROR = re.compile(r"\b(?:[\w.]*(?:Error|Exception)|error|Value error)[:,] \S.*")
# Errors that only say that there was another one before.
_EMPTY = re.compile(r"root cause|stack trace above|EngineDeadError")


class Guarded:
    """A command that runs; nothing of its process group outlives this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the command, in an event loop; all that it prints goes to a new file `log`.

        Raises `OSError` where no process or no file can be had.
        """
        self.pid: int | None = None  # of the command and of its process group; None: not known yet
        log.parent.mkdir(parents=True, exist_ok=True)
        rotate(log)
        with log.open("wb") as file:
            # Not asyncio's: it kills a process that is forgotten, and then nothing guards.
            self._guard = subprocess.Popen(
                (sys.executable, "-m", guard.__name__, *command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which then decides
            )
        self._watching = asyncio.create_task(self._watch())

    async def wait(self) -> int:
        """The exit code, once nothing of the process group is left."""
        return await asyncio.shield(self._watching)

    async def end(self) -> None:
        """Ask the process group to end; what has not done so within `guard.GRACE` is killed."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            await asyncio.wait_for(self.wait(), 2 * (guard.GRACE + guard.REAPING))
        finally:  # whatever became of the guard
            self._guard.kill()
            if self.pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    async def _watch(self) -> int:
        """The guard prints a number, and nothing more before its end."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._guard.stdout
        )
        told = await reader.readline()
        self.pid = int(told) if told else None  # nothing, if the command cannot be started
        await reader.read()
        return self._guard.wait()


def rotate(log: Path) -> None:
    """Make room for a new log; the last ones are kept as LOG.1, LOG.2 and so on."""
    names = [log, *(log.with_name(f"{log.name}.{i}") for i in range(1, LOGS_KEPT))]
    for newer, older in reversed(list(pairwise(names))):
        with suppress(FileNotFoundError):
            newer.replace(older)


def why(code: int, log: Path) -> str:
    """Why a command ended: the signal, or the last error in its log that tells more."""
    number = -code if code < 0 else code - 128
    if number in {*signal.Signals}:
        return f"killed by {signal.Signals(number).name}"
    return f"{last_words(log)} (exit code {code})"


def last_words(log: Path) -> str:
    """The last error in a log that tells more than that there was one; or its last line."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    errors = [match.group() for match in map(_ERROR.search, lines) if match is not None]
    telling = [error for error in errors if not _EMPTY.search(error)]
    return one_line((telling or errors or lines or ["it printed nothing"])[-1])
