"""The outside of the sandbox: it starts the harness, and reads with care what comes out."""

import asyncio
import io
import marshal
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from contextlib import nullcontext, suppress
from functools import cache
from typing import Any, NamedTuple, get_args

from msgspec.structs import asdict
from returns.result import Failure, Result, Success

from nip_fn.code.programs import Ending, Limits, Program, RunResult
from nip_fn.errors import Problem
from nip_fn_adapters.sandbox import launch
from nip_fn_adapters.sandbox.launch import LIMITS_ONLY, Isolation

READY = b"ready\n"
STARTUP_SECONDS = 20.0  # for bubblewrap and Python to start on a busy machine
OVERHEAD = 1 << 13  # bytes of a run's report beyond its text
ERRORS_READ = 1 << 14  # bytes of the standard error that are worth reading
PIECE = 1 << 16
LONGEST_HEAD = 100  # bytes of the line that precedes a run's text

INSTALL = "install bubblewrap (apt install bubblewrap, or dnf install bubblewrap)"
TRUST = "give --unsafe if you trust the code: it then runs with your own rights"
ALLOW = (
    "allow unprivileged user namespaces (on Ubuntu, sysctl -w "
    f"kernel.apparmor_restrict_unprivileged_userns=0), or {TRUST}"
)


class _Heard(NamedTuple):
    """The complete output of the harness."""

    output: bytes
    errors: bytes
    late: bool  # it had to be killed


class Sandbox:
    """Runs untrusted programs, isolated in one way.  Calls may overlap."""

    def __init__(self, isolation: Isolation, name: str) -> None:
        """Take a way that was found to work, and its name for people to read."""
        self.isolated = isolation.isolated
        self.name = name
        self._isolation = isolation

    async def __call__(
        self, program: Program, limits: Limits
    ) -> Result[tuple[RunResult, ...], Problem]:
        """The end of the program's run on each of its inputs; a problem if nothing could be run."""
        if not program.inputs:
            return Success(())
        with nullcontext("") if self.isolated else _scratch() as folder:
            message = _message(self._isolation, program, limits, folder)
            try:
                heard = await _converse(self._isolation, message, program, limits)
            except OSError as error:
                return _failure(f"it does not start: {error}", INSTALL)
        return _results(program, heard)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder to write to, for a program that has no /tmp of its own."""
    prefix = f"nip-fn-{os.getpid()}-"
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


def open_sandbox(unsafe: bool = False) -> Result[Sandbox, Problem]:
    """A sandbox that isolates programs by bubblewrap.

    `unsafe` accepts one that only limits their resources, where bubblewrap does not work.
    """
    opened = _isolated()
    return opened.lash(lambda _: Success(limited())) if unsafe else opened


def limited() -> Sandbox:
    """A sandbox for trusted code: resource limits only."""
    return Sandbox(LIMITS_ONLY, "resource limits only: programs have your rights")


@cache
def _isolated() -> Result[Sandbox, Problem]:
    """A sandbox of bubblewrap, after a probe has verified its isolation."""
    if not sys.platform.startswith("linux"):
        problem = f"none isolates programs on {sys.platform}: bubblewrap needs Linux"
        return _failure(problem, f"use Linux (a container will do), or {TRUST}")
    if not shutil.which("bwrap"):
        return _failure("bubblewrap is not installed", f"{INSTALL}, or {TRUST}")
    reasons = []
    for isolation in launch.ways_to_isolate():
        flaw = _probe(isolation)
        if not flaw:
            printed = subprocess.run(["bwrap", "--version"], capture_output=True, text=True)
            return Success(
                Sandbox(isolation, f"{printed.stdout.strip()}: own namespaces, no network")
            )
        reasons.append(flaw)
    return _failure(f"bubblewrap does not work here: {'; '.join(reasons)}", ALLOW)


def _failure(problem: str, remedy: str = "") -> Result[Any, Problem]:
    return Failure(Problem(problem, "the sandbox", remedy, kind="adapter"))


# Bubblewrap is believed once this finds nothing.
# The address is reserved for documentation (RFC 5737), so that nobody is reached if it fails.
PROBE = """
import socket, os
def breaches(secret):
    found = []
    try:
        socket.create_connection(("192.0.2.1", 9), 0.1)
    except OSError as error:
        if error.errno != 101:  # the network is unreachable
            found.append("the network")
    if os.path.exists(secret):
        found.append("files")
    return found
"""


def _probe(isolation: Isolation) -> str:
    """The flaw of a way of isolation in one line; "" if it has none."""
    with tempfile.NamedTemporaryFile() as secret:
        program = Program(code=PROBE, function="breaches", inputs=(repr([secret.name]),))
        limits = Limits(seconds=10.0, total_seconds=10.0)
        try:  # without asyncio: whoever opens a sandbox may be in a loop of events already
            completed = subprocess.run(
                launch.harness_command(isolation, limits.files_mb),
                input=_message(isolation, program, limits, ""),
                capture_output=True,
                env=launch.ENVIRONMENT,
                cwd="/",
                timeout=STARTUP_SECONDS + limits.total_seconds,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    match _results(program, _Heard(completed.stdout, completed.stderr, late=False)):
        case Success((RunResult("returned", "[]"),)):
            return ""
        case Success((run, *_)):
            return f"it does not hold: {run.ending} {run.text}"
        case Failure(problem):
            return str(problem.problem)
    raise AssertionError("a result is a success or a failure")


def _message(isolation: Isolation, program: Program, limits: Limits, scratch: str) -> bytes:
    """The harness, and its job: see `harness.Job`."""
    spare = launch.FIRST_SPARE_USER + secrets.randbelow(launch.SPARE_USERS)
    job = {
        "code": program.code,
        "function": program.function,
        "inputs": program.inputs,
        "limits": asdict(limits),
        "scratch": scratch,
        "user": spare if isolation.changes_user else 0,
        "others": launch.others_counted(isolation),
    }
    return launch.harness() + marshal.dumps(job)


async def _converse(
    isolation: Isolation, message: bytes, program: Program, limits: Limits
) -> _Heard:
    """Hand over the message and read until the harness ends, or is killed; cancelled, kill it.

    Raises OSError where the harness cannot be started.  It dies with the thread that started it,
    which therefore is that of the loop of events, and none of a pool.
    """
    process = await _start(launch.harness_command(isolation, limits.files_mb))
    # A program that gets past its own limits must not fill the memory of this process.
    most = len(READY) + len(program.inputs) * ((limits.output_kb << 10) + OVERHEAD)
    output, errors, late = bytearray(), bytearray(), True
    try:
        async with asyncio.timeout(limits.total_seconds + STARTUP_SECONDS):
            in_bounds = await asyncio.gather(
                _read(process, process.stdout, output, most),
                _read(process, process.stderr, errors, ERRORS_READ),
                _send(process, message),
            )
        late = not all(in_bounds)
    except TimeoutError:
        pass
    finally:
        if late:
            _end(process)
        await process.wait()
    return _Heard(bytes(output), bytes(errors), late)


async def _start(command: tuple[str, ...]) -> Process:
    """The harness, waiting for its message."""
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=launch.ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
    )
    try:
        # Shielded, as asyncio (3.11) waits for ever where it is cancelled between fork and pipes.
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        _end(process)
        await process.wait()
        raise


async def _read(
    process: Process, stream: asyncio.StreamReader | None, data: bytearray, most: int
) -> bool:
    """Read a stream into `data`; False if the process was killed for writing more than `most`."""
    assert stream is not None
    while piece := await stream.read(PIECE):
        data += piece
        if len(data) > most:
            _end(process)
            return False
    return True


async def _send(process: Process, message: bytes) -> bool:
    """Write the message, as far as the harness reads it; True."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(message)
        await process.stdin.drain()
    process.stdin.close()
    return True


def _end(process: Process) -> None:
    """Kill the harness, and close its pipes.

    Killing bubblewrap is not enough if it has not tied the harness to itself yet: such a harness
    ends when it finds that nobody reads its results.  asyncio closes pipes only by its transport.
    """
    process._transport.close()  # type: ignore[attr-defined]


def _results(program: Program, heard: _Heard) -> Result[tuple[RunResult, ...], Problem]:
    """The runs that the harness reported; runs without a report died with it."""
    if not heard.output.startswith(READY):
        return _failure(f"it does not work: {_last_line(heard.errors)}")
    runs = _parse(heard.output[len(READY) :])[: len(program.inputs)]
    rest = RunResult("timeout") if heard.late else RunResult("died", _last_line(heard.errors))
    return Success((*runs, *[rest] * (len(program.inputs) - len(runs))))


def _last_line(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it ended without a word"


def _parse(output: bytes) -> list[RunResult]:
    """The complete runs, up to the first that is truncated or malformed."""
    stream, runs = io.BytesIO(output), list[RunResult]()
    while head := stream.readline(LONGEST_HEAD):
        words: list[Any] = head.decode("ascii", "replace").split()
        if len(words) != 2 or words[0] not in get_args(Ending) or not words[1].isdecimal():
            break
        size = int(words[1])
        text = stream.read(min(size, len(output)))
        if len(text) < size:
            break
        runs.append(RunResult(words[0], text.decode("utf-8", "replace")))
    return runs
