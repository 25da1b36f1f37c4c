"""One run of a program on one input, in a process of its own.

Runs inside the sandbox: the standard library and its neighbours only.  Nothing here is out of
the program's reach: a program can forge the report of its own run, but of no other.
"""

import ast
import builtins
import marshal
import os
import resource
import signal
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from nip_fn_adapters.sandbox.literal import TooLong, Writer

LONGEST_MESSAGE = 500
DESCRIPTORS = 64

Act = Callable[[], tuple[str, str | bytes]]  # how it ended, and its text


def be(act: Act, streams: tuple[int, int, int], report: int) -> None:
    """Act with these as standard streams, report the ending, and exit."""
    try:
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        # With a descriptor of the harness, a program could write another run's report.
        os.closerange(3, report)
        os.closerange(report + 1, 4 * DESCRIPTORS)
        _open_streams()
        _say(report, *_ending(act))
    finally:
        os._exit(0)


def _ending(act: Act) -> tuple[str, str | bytes]:
    try:
        return act()
    except MemoryError:
        return "memory", ""
    except TooLong:
        return "output", ""
    except BaseException as error:
        return "raised", exception_line(error)


def _say(report: int, ending: str, text: str | bytes) -> None:
    data = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
    view = memoryview(ending.encode() + b"\n" + data)
    while view:
        view = view[os.write(report, view) :]


def _open_streams() -> None:
    text = partial(open, encoding="utf-8", errors="replace", closefd=False)
    sys.stdin = sys.__stdin__ = text(0)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = text(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = text(2, "w")  # type: ignore[misc]


def limit(limits: dict[str, float], num_running: int) -> None:
    """Set the limits of this process; `num_running`: this user's other processes and threads."""
    # The soft limit sends SIGXCPU, which the harness takes for a timeout; the hard one ends what
    # ignores it.
    seconds = int(limits["seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    memory, files = (int(limits[name]) << 20 for name in ("memory_mb", "files_mb"))
    for name, value in (
        ("AS", memory),
        ("FSIZE", files),
        ("NPROC", int(limits["processes"]) + num_running),
        ("NOFILE", DESCRIPTORS),
        ("CORE", 0),
        ("MEMLOCK", 0),
        ("MSGQUEUE", 0),
    ):
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None and (name, sys.platform) != ("AS", "darwin"):  # it refuses this one
            _lower(which, value)


def _lower(which: int, value: int) -> None:
    highest = resource.getrlimit(which)[1]
    value = value if highest == resource.RLIM_INFINITY else min(value, highest)
    resource.setrlimit(which, (value, value))


def compiled(code: str) -> tuple[str, bytes]:
    """The code, compiled and packed."""
    return "returned", marshal.dumps(compile(code, "<program>", "exec", dont_inherit=True))


def call(code: bytes, name: str, arguments: str, room: int) -> tuple[str, str]:
    """The value that the code's function, or method of a class Solution, returns, as a literal."""
    values = ast.literal_eval(arguments)
    names = _module("solution", code)
    function = names.get(name)
    if not callable(function) and isinstance(names.get("Solution"), type):
        function = getattr(names["Solution"](), name, None)
    if not callable(function):
        raise NameError(f"no function {name!r} is defined")
    return "returned", Writer(room).write(function(*values))


def script(code: bytes) -> tuple[str, str]:
    """Run the code as a script, to the end of its threads and of what it does at exit."""
    try:
        _module("__main__", code)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    # A process that ends by `os._exit`, as this one does, would skip both.
    threading, atexit = sys.modules.get("threading"), sys.modules.get("atexit")
    if threading:
        threading._shutdown()
    if atexit:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):
        if stream:
            stream.flush()
    return "returned", ""


def _module(name: str, code: bytes) -> dict[str, Any]:
    """The names of a fresh module that the code fills."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    module = sys.modules[name] = types.ModuleType(name)
    sys.argv = ["program.py"]
    # `site`, which defines these two, is not loaded in the sandbox.
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    exec(marshal.loads(code), module.__dict__)
    return module.__dict__


def exception_line(error: BaseException) -> str:
    """ "ValueError: ...", cut to a length that one can read; whatever its methods do."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:
        message = ""
    text = f"{name}: {message}" if message else name
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
