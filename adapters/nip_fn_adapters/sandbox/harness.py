"""Runs a program on each of its inputs, in processes that it forks and outlives.

Runs inside the sandbox: the standard library and its neighbours only.  It never runs a line of
the program itself; the programs' processes can neither signal nor read it, nor write where it
writes.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from nip_fn_adapters.sandbox import child

RESULTS = 1  # the descriptor
READY = b"ready\n"
ENDINGS = ("returned", "raised", "memory", "output")
CLOCK_FACTOR = 4  # seconds on the clock for each second of processor time that a run may take
PROCESSOR_CLOCK = 2  # of a process, among the kernel's clocks
OVERHEAD = 4096  # of a report over the text in it
FEW_USERS = 60_000, 5_000  # the first spare id and their number, in a container with 65,536 ids

# Options of prctl(2).
_DIE_WITH_PARENT, _BE_DUMPABLE, _ADOPT_ORPHANS = 1, 4, 36

# Imported before the first fork where the program names them, so that no run waits for them.
COMMON = (
    "typing", "collections", "functools", "itertools", "heapq", "bisect", "math", "re", "string",
    "random", "copy", "operator", "fractions", "decimal", "dataclasses", "datetime", "threading",
)  # fmt: skip


class _Piped(NamedTuple):
    """The output of a run, and why it was cut short: "timeout", "output", "died" or ""."""

    out: bytes
    report: bytes
    cut: str
    status: int


class Harness:
    """Forks, watches and ends the runs of one program."""

    def __init__(self, job: dict[str, Any]) -> None:
        """Prepare for a job (see `main`)."""
        self._limits: dict[str, float] = job["limits"]
        self._room = int(self._limits["output_kb"]) << 10
        self._alone = not job["scratch"]  # in a namespace, all of whose processes are ours to end
        self._others: int = job["others"]
        self._until = time.monotonic() + self._limits["total_seconds"]

    def run_all(self, job: dict[str, Any], tell: Callable[[str, bytes], None]) -> None:
        """Run the job's program on each input; tell how each ended."""
        for name in COMMON:
            if f"import {name}" in job["code"] or f"from {name}" in job["code"]:
                __import__(name)
        # Compiled in a process of its own, too: hostile code can exhaust or crash the parser.
        ending, code = self._attempt(partial(child.compiled, job["code"]), room=1 << 24)
        for text in job["inputs"]:
            ended = (ending, code)
            if ending == "returned":
                ended = self._on_input(job["function"], code, text)
            if ended[0] == "timeout" and self._limits["give_up"]:
                self._until = 0.0
            tell(*ended)

    def _on_input(self, function: str | None, code: bytes, text: str) -> tuple[str, bytes]:
        if function is None:
            return self._attempt(partial(child.script, code), stdin=text, printed=True)
        return self._attempt(partial(child.call, code, function, text, self._room))

    def _attempt(
        self, act: child.Act, stdin: str = "", printed: bool = False, room: int = 0
    ) -> tuple[str, bytes]:
        """The ending of an act in a process of its own, and its text, or what it printed."""
        if self._until <= time.monotonic():
            return "timeout", b""
        piped = self._run(act, stdin, (room or self._room) + OVERHEAD)
        if piped.cut:
            return piped.cut, b""
        ending, _, text = piped.report.partition(b"\n")
        if ending.decode("ascii", "replace") in ENDINGS:
            return ending.decode(), piped.out if printed and ending == b"returned" else text
        if os.WIFSIGNALED(piped.status):
            number = os.WTERMSIG(piped.status)
            return "timeout" if number == signal.SIGXCPU else "died", b"signal %d" % number
        return "died", b"exit %d" % os.waitstatus_to_exitcode(piped.status)

    def _run(self, act: child.Act, stdin: str, room: int) -> _Piped:
        source = _readable(stdin)
        readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)  # out, errors, report
        pid = os.fork()
        if pid == 0:
            try:
                # With a session of its own, a run can be killed with all that it has started.
                os.setsid()
                if not self._alone:
                    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
                child.limit(self._limits, self._others)
                child.be(act, (source, *writers[:2]), writers[2])
            finally:
                os._exit(1)
        for descriptor in (source, *writers):
            os.close(descriptor)
        watched = {reader: bytearray() for reader in readers}
        cut, status = "died", 0
        try:
            cut, status = _watch(pid, watched, self._limits["seconds"], self._until, room)
        finally:
            self._sweep(pid if cut else 0)
            for reader in readers:
                os.close(reader)
        out, _, report = (bytes(data) for data in watched.values())
        return _Piped(out, report, cut, status)

    def _sweep(self, pid: int) -> None:
        """End all that a run left, its own process `pid` unless that is 0, and clear its files."""
        while True:
            for leftover in self._left(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(leftover, signal.SIGKILL)
            try:
                # Outside a namespace an orphan may fork before it is found: look again and again.
                ended = os.waitpid(-1, 0 if self._alone else os.WNOHANG)[0]
            except ChildProcessError:
                break
            if ended == 0:
                time.sleep(0.001)
            if ended == pid:
                pid = 0
        with suppress(OSError, RecursionError):
            _clear(".")

    def _left(self, pid: int) -> list[int]:
        """The processes to kill: the whole namespace, or the run's group and the orphans."""
        if self._alone:
            return [-1]
        return [*((pid, -pid) if pid else ()), *_children()]


def _readable(text: str) -> int:
    """A descriptor from which the text can be read."""
    data = text.encode("utf-8", "surrogatepass")
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
    else:
        descriptor = os.open("stdin", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.unlink("stdin")
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _watch(
    pid: int, watched: dict[int, bytearray], seconds: float, until: float, room: int
) -> tuple[str, int]:
    """Read the output of a run until its process ends.

    Returns the reason why it was cut short ("" if it was not; see `_Piped`), and its exit status.
    """
    poller, ended = select.poll(), -1
    last = min(time.monotonic() + CLOCK_FACTOR * seconds, until)
    poller.register(RESULTS, 0)  # an error there: nobody reads any longer
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            ended = os.pidfd_open(pid)
            poller.register(ended, select.POLLIN)
    for reader in watched:
        os.set_blocking(reader, False)
        poller.register(reader, select.POLLIN)
    try:
        while True:
            # By processor time, so that a busy machine fails no program; by the clock only
            # generously.
            seconds_left = min(seconds - _used(pid), last - time.monotonic())
            if seconds_left <= 0:
                return "timeout", 0
            # Without a descriptor of the process, its end is found only by looking every 5 ms.
            events = poller.poll(
                seconds_left * 1000 + 1 if ended >= 0 else min(seconds_left * 1000, 5)
            )
            if any(descriptor == RESULTS for descriptor, _ in events):
                return "died", 0
            gone, status = (0, 0)
            if ended < 0 or any(descriptor == ended for descriptor, _ in events):
                gone, status = os.waitpid(pid, os.WNOHANG)
            readable = watched if gone else [name for name, _ in events if name != ended]
            for reader in readable:
                if not _take(reader, watched[reader], room, bool(gone)):
                    poller.unregister(reader)
            if sum(map(len, watched.values())) > room:
                return "output", 0
            if gone:
                return "", status
    finally:
        if ended >= 0:
            os.close(ended)


def _used(pid: int) -> float:
    """The seconds of processor time that a process has used, as Linux tells them."""
    try:
        # The number that clock_getcpuclockid(3) gives: far finer than the ticks in /proc/PID/stat.
        return time.clock_gettime(~pid << 3 | PROCESSOR_CLOCK)
    except OSError:  # it has just ended, or this is no Linux
        return 0.0


def _take(reader: int, data: bytearray, room: int, all_of_it: bool) -> bool:
    """Add what can be read now, up to a little more than the room; True if more may come."""
    while len(data) <= room:
        try:
            piece = os.read(reader, 1 << 16)
        except BlockingIOError:
            return True
        if not piece:
            return all_of_it
        data += piece
        if not all_of_it:
            break
    return True


def _children() -> list[int]:
    """The processes that are children of this one, orphans that it adopted among them."""
    children = []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and _parent(name) == os.getpid():
                children.append(int(name))
    return children


def _parent(process: str) -> int:
    with suppress(OSError), open(f"/proc/{process}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def _clear(folder: str) -> None:
    """Remove the contents of a folder."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            with suppress(OSError):
                os.chmod(entry.path, 0o700)
            _clear(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def _settle(job: dict[str, Any]) -> None:
    """Protect this process from its programs, and change to the folder for their files."""
    if job["scratch"]:
        os.chdir(job["scratch"])
        _prctl(_ADOPT_ORPHANS, 1)
    elif os.getpid() != 1:  # all processes that can be seen are going to be killed
        raise RuntimeError("not the first process of a namespace")
    if job["user"]:
        _become(job["user"])
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # after a change of user, which forgets it
    _prctl(_BE_DUMPABLE, 0)  # programs run as the same user, who may else trace this process


def _become(user: int) -> None:
    """Switch to an unprivileged user id that no other process has."""
    first, number = FEW_USERS
    for spare in (user, first + user % number):
        with suppress(OSError):  # this container has no such user id
            os.setgroups([])
            os.setresgid(spare, spare, spare)
            os.setresuid(spare, spare, spare)
            return
    raise RuntimeError("no right to be another user")


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process where the kernel is Linux."""
    if sys.platform.startswith("linux"):
        import ctypes

        if ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))):
            raise OSError(f"prctl {option} is refused")


def main(job: dict[str, Any]) -> None:
    """Do a job, and write how each input ended to the standard output.

    Args:
        job: `code`; `function`, None for a script; `inputs`; `limits`, by the names of `Limits`;
            `scratch`, the folder to write to, "" inside bubblewrap; `user`, the id of the user to
            become, 0 for none; `others`, the processes that the kernel counts as the program's.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    results = os.fdopen(RESULTS, "wb")
    _settle(job)
    harness = Harness(job)
    results.write(READY)
    results.flush()

    def tell(ending: str, text: bytes) -> None:
        results.write(b"%s %d\n" % (ending.encode(), len(text)) + text)
        results.flush()

    harness.run_all(job, tell)
    results.close()
    os._exit(0)
