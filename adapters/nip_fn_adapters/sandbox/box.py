"""The outside of the sandbox: it starts the harness, and reads with care what comes out."""

import asyncio
import io
import marshal
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import IO, Any, NamedTuple, get_args

from msgspec.structs import asdict
from returns.result import Failure, Result, Success

from nip_fn.code.programs import Ending, Limits, Program, RunResult
from nip_fn_adapters.sandbox import backends
from nip_fn_adapters.sandbox.backends import BACKENDS, Backend, Level

READY = b"ready\n"
STARTUP_SECONDS = 20.0  # for the walls to be built on a busy machine
OVERHEAD = 1 << 13  # of a run's output over the limit
TALK = 1 << 14  # of an error message that is worth reading
PIECE = 1 << 16
SHORT = 100  # of a line that heads a run's text
TICK = 0.2  # seconds

_threads = ThreadPoolExecutor(256, "sandbox")


class Said(NamedTuple):
    """What the harness wrote until it ended."""

    output: bytes
    errors: bytes
    late: bool  # it had to be stopped


class Sandbox:
    """Runs programs behind one backend's walls.  Calls may overlap."""

    def __init__(self, backend: Backend, name: str) -> None:
        """Of a backend that was found to work."""
        self.level = backend.level
        self.name = name
        self._backend = backend

    async def __call__(
        self, program: Program, limits: Limits
    ) -> Result[tuple[RunResult, ...], str]:
        """How the program ended on each of its inputs; or why the sandbox does not work."""
        if not program.inputs:
            return Success(())
        with _Scratch(self._backend) as (scratch, spare):
            message = _message(self._backend, program, limits, scratch, spare)
            try:
                said = await _talk(self._backend, message, program, limits)
            except OSError as error:
                return Failure(f"the sandbox ({self._backend.name}) does not start: {error}")
        return _results(self._backend, program, said)


def open_sandbox(
    minimum: Level = Level.LANDLOCK, unsafe: bool = False, only: str | None = None
) -> Result[Sandbox, str]:
    """The strongest sandbox that works here; a failure where it is weaker than the minimum.

    `unsafe` accepts whatever there is; `only` names the one backend to try.
    """
    reasons = []
    for backend in BACKENDS:
        if only not in (None, backend.name):
            continue
        tried = _try(backend)
        if isinstance(tried, Success) and (unsafe or backend.level >= minimum):
            return Success(Sandbox(backend, tried.unwrap()))
        if isinstance(tried, Failure):
            reasons.append(f"{backend.name}: {tried.failure()} ({backend.advice})")
        else:
            reasons.append(f"{backend.name}: works, but is too weak")
    known = ", ".join(backend.name for backend in BACKENDS)
    return Failure(
        f"no sandbox here reaches the level {minimum.name}: "
        f"{'; '.join(reasons) or f'{only} is none of {known}'}; "
        "install one (apt install bubblewrap), or run programs with your own rights (--unsafe)"
    )


# The probe: what each backend must stand before it is believed.
PROBE = """
import socket, os
def breaches(secret, level):
    found = []
    try:
        socket.socket()
        found.append("the network")
    except OSError:
        pass
    try:
        open(secret)
        found.append("files")
    except OSError:
        pass
    return found
"""


@cache
def _try(backend: Backend) -> Result[str, str]:
    """A line that names the backend, once a probe has shown it to hold; or what is wrong."""
    if backend.name != "limits" and not sys.platform.startswith("linux"):
        return Failure("needs Linux")
    if backend.name == "bubblewrap" and not shutil.which("bwrap"):
        return Failure("bwrap is not installed")
    if backend.name == "filter" and os.uname().machine not in ("x86_64", "aarch64"):
        return Failure("no filter for this machine")
    with tempfile.NamedTemporaryFile() as secret:
        os.chmod(secret.name, 0o666)
        inputs = (repr([secret.name, int(backend.level)]),)
        program = Program(code=PROBE, function="breaches", inputs=inputs)
        ran = _run_now(backend, program, Limits(seconds=10.0, total_seconds=10.0))
    if isinstance(ran, Failure):
        return Failure(ran.failure())
    ending, text = ran.unwrap()[0].ending, ran.unwrap()[0].text
    allowed = {Level.LIMITS: "['the network', 'files']", Level.FILTER: "['files']"}
    if ending != "returned" or text not in ("[]", allowed.get(backend.level)):
        return Failure(f"it does not hold: {ending} {text}")
    return Success(_describe(backend))


def _describe(backend: Backend) -> str:
    match backend.name:
        case "bubblewrap":
            command = ["bwrap", "--version"]
            version = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            return f"{version.strip()}: own namespaces, no network"
        case "namespaces":
            return "Linux namespaces: own root, no network"
        case "landlock":
            return "Landlock and a filter: reads only Python, writes nothing, no network"
        case "filter":
            return "a system-call filter: no network, but your files are open to programs"
        case _:
            return "resource limits only: programs have your rights"


class _Scratch:
    """A user to be, where we are root, and a folder to write to, where there is no other."""

    def __init__(self, backend: Backend) -> None:
        self._needed = backend.level < Level.LANDLOCK
        self._folder = ""

    def __enter__(self) -> tuple[str, int]:
        spare = backends.spare_user()
        if self._needed:
            self._folder = tempfile.mkdtemp(prefix=f"nip-fn-{os.getpid()}-")
            if spare:
                os.chown(self._folder, spare, spare)
        return self._folder, spare

    def __exit__(self, *error: object) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


@cache
def _harness() -> bytes:
    return marshal.dumps(backends.modules())


def _message(backend: Backend, program: Program, limits: Limits, scratch: str, spare: int) -> bytes:
    job = backends.job(backend, scratch, spare)
    job |= {"code": program.code, "function": program.function, "inputs": program.inputs}
    return _harness() + marshal.dumps(job | {"limits": asdict(limits)})


def _most(program: Program, limits: Limits) -> int:
    """What the harness may say at most, in bytes."""
    return len(READY) + len(program.inputs) * ((limits.output_kb << 10) + OVERHEAD)


def _run_now(
    backend: Backend, program: Program, limits: Limits
) -> Result[tuple[RunResult, ...], str]:
    """What a sandbox does, but for programs of ours, and waiting."""
    with _Scratch(backend) as (scratch, spare):
        message = _message(backend, program, limits, scratch, spare)
        try:
            said = _converse(_start(backend, limits), message, program, limits)
        except OSError as error:
            return Failure(str(error))
    return _results(backend, program, said)


def _start(backend: Backend, limits: Limits) -> "subprocess.Popen[bytes]":
    """The harness, waiting for its message.

    It dies with the thread that starts it: not one of the pool's.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(
        backends.command(backend, limits.files_mb),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=backends.ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )


async def _talk(backend: Backend, message: bytes, program: Program, limits: Limits) -> Said:
    """What the harness says to the message; where the caller is cancelled, it is killed first."""
    process = _start(backend, limits)
    try:
        talk = _threads.submit(_converse, process, message, program, limits)
    except RuntimeError:  # the interpreter is going down
        process.kill()
        raise
    future = asyncio.wrap_future(talk)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        process.kill()
        with suppress(Exception):
            await future
        raise


def _converse(
    process: "subprocess.Popen[bytes]", message: bytes, program: Program, limits: Limits
) -> Said:
    """Hand over the message and read until the harness ends, or must be ended."""
    late = True
    outputs = {process.stdout: bytearray(), process.stderr: bytearray()}
    with process:
        try:
            late = not _exchange(process, message, outputs, _most(program, limits), limits)
        finally:
            if late:
                process.kill()
    output, errors = (bytes(data) for data in outputs.values())
    return Said(output, errors, late)


def _exchange(
    process: "subprocess.Popen[bytes]",
    message: bytes,
    outputs: "dict[IO[bytes] | None, bytearray]",
    most: int,
    limits: Limits,
) -> bool:
    """Write and read as either is possible; whether both outputs came to their end in time."""
    end = time.monotonic() + limits.total_seconds + STARTUP_SECONDS
    left = memoryview(message)
    with selectors.DefaultSelector() as selector:
        for pipe in outputs:
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while any(pipe in selector.get_map() for pipe in outputs):
            wait = end - time.monotonic()
            if wait <= 0 or sum(map(len, outputs.values())) > most + TALK:
                return False
            events = selector.select(min(wait, TICK))
            if not events and process.poll() is not None:
                return False  # killed, and nobody is left to end the outputs
            for key, _ in events:
                if key.fileobj is process.stdin:
                    left = left[_write(key.fd, left[:PIECE]) :]
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                piece = os.read(key.fd, PIECE)
                outputs[key.fileobj] += piece  # type: ignore[index]
                if not piece:
                    selector.unregister(key.fileobj)
    return True


def _write(descriptor: int, data: memoryview) -> int:
    """How much is done with; all of it where nobody reads."""
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(data)


def _results(backend: Backend, program: Program, said: Said) -> Result[tuple[RunResult, ...], str]:
    """The runs that the harness told of; those that it did not get to tell of died with it."""
    if not said.output.startswith(READY):
        return Failure(f"the sandbox ({backend.name}) does not work: {_last_line(said.errors)}")
    runs = _parse(said.output[len(READY) :])[: len(program.inputs)]
    rest = RunResult("timeout") if said.late else RunResult("died", _last_line(said.errors))
    return Success((*runs, *[rest] * (len(program.inputs) - len(runs))))


def _last_line(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it ended without a word"


def _parse(output: bytes) -> list[RunResult]:
    """Whole runs, up to the first that is broken off or not to be understood."""
    stream, runs = io.BytesIO(output), list[RunResult]()
    while head := stream.readline(SHORT):
        words: list[Any] = head.decode("ascii", "replace").split()
        if len(words) != 2 or words[0] not in get_args(Ending) or not words[1].isdecimal():
            break
        size = int(words[1])
        text = stream.read(min(size, len(output)))
        if len(text) < size:
            break
        runs.append(RunResult(words[0], text.decode("utf-8", "replace")))
    return runs
