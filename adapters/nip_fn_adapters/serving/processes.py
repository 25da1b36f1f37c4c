"""Commands that end with this process, through `reaper`."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from nip_fn_adapters.processes import reaper
from nip_fn_adapters.processes.endings import exit_reason

LOGS_KEPT = 5  # of one name, the newest included
TAIL = 1 << 18  # bytes at the end of a log that are searched for an error


class OwnedProcess:
    """A running command; nothing of its process group outlives this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the command, in an event loop; all that it prints goes to a new file `log`.

        Raises:
            OSError: the process or the file cannot be created.
        """
        self._group: int | None = None  # the command's process group; None: not known yet
        self._log, self._survived = log, 0
        log.parent.mkdir(parents=True, exist_ok=True)
        rotate(log)
        with log.open("wb") as file:
            # Not asyncio's subprocess: it kills a process whose handle is collected as garbage, and
            # a killed reaper ends nothing.
            self._reaper = subprocess.Popen(
                (sys.executable, "-m", reaper.__name__, *command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which then decides
            )
        self._watching = asyncio.create_task(self._watch(_group_file(log)))

    def note_life(self) -> None:
        """Take what it has printed so far for no cause of its end: it answers."""
        self._survived = self._log.stat().st_size

    async def wait(self) -> str:
        """The reason of its end, once nothing of the process group is left."""
        # Several may wait, and one that is cancelled must not end the watching for the others.
        code = await asyncio.shield(self._watching)
        with self._log.open("rb") as file:
            file.seek(max(self._survived, file.seek(0, os.SEEK_END) - TAIL))
            return exit_reason(code, file.read().decode("utf-8", errors="replace"))

    async def place(self, name: str, folder: Path) -> Path:
        """The folder itself: the command shares this machine's files."""
        return folder

    async def end(self) -> None:
        """Send SIGTERM to the process group, and SIGKILL after `reaper.GRACE`."""
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        try:
            await asyncio.wait_for(self.wait(), 2 * (reaper.GRACE + reaper.REAPING))
        finally:  # also if somebody has killed the reaper
            self._reaper.kill()
            if self._group is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._group, signal.SIGKILL)

    async def _watch(self, group_file: Path) -> int:
        """The exit code.  The reaper prints the command's process id, and closes at its end."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._reaper.stdout
        )
        pid = await reader.readline()
        self._group = int(pid) if pid else None  # none if the command cannot be started
        # The reaper leads the session.
        group_file.write_text(f"{self._group} {self._reaper.pid}", "ascii")
        await reader.read()
        return self._reaper.wait()


def end_orphans(log: Path) -> None:
    """Kill what is left of the command that wrote this log last.

    Something is if it lost its reaper and the server at once, as where the kernel ends both because
    memory is short.
    """
    try:
        group, session = map(int, _group_file(log).read_text("ascii").split())
    except (FileNotFoundError, ValueError):
        return
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            # Both: the system may have given one of the numbers to another program since.
            if (os.getpgid(pid), os.getsid(pid)) == (group, session):
                os.kill(pid, signal.SIGKILL)


def _group_file(log: Path) -> Path:
    """The file of the process group and the session of the command that writes a log."""
    return log.with_suffix(".group")


def rotate(log: Path) -> None:
    """Make room for a new log; the last ones are kept as LOG.1, LOG.2 and so on."""
    names = [log, *(log.with_name(f"{log.name}.{i}") for i in range(1, LOGS_KEPT))]
    for newer, older in reversed(list(pairwise(names))):
        with suppress(FileNotFoundError):
            newer.replace(older)
