"""Children of a process that has imported what they need: a training begins at once.

`python -m nip_fn_adapters.providers.local.warm MODULE ...` imports the modules, and then forks a
child for each order that it reads, one after the other.  It starts no threads and uses no device,
so that its fork is as good as a new interpreter; where that is not so, as with CUDA, the child
becomes a new one.  Like all children they end with the process that they work for.
"""

import asyncio
import json
import os
import runpy
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import BinaryIO, NoReturn

from nip_fn_adapters.providers.local.children import (
    LOOK_SECONDS,
    RunChild,
    end_with_parent,
    kill_family,
)


def warm_children(*modules: str) -> RunChild:
    """As `children.run_child`, for `-m MODULE ARGUMENT ...`, in forks that have the modules.

    One process forks one child at a time, and then waits for the next order; there are as many of
    them as there ever were children at once.
    """
    waiting: list[subprocess.Popen[bytes]] = []

    async def run(
        arguments: Sequence[str],
        log: BinaryIO,
        variables: Mapping[str, str],
        look: Callable[[], None],
    ) -> int:
        _, *command = arguments
        living = (server for server in waiting if server.poll() is None)
        server = next(living, None) or _start(modules, log, variables)
        if server in waiting:
            waiting.remove(server)
        assert server.stdin is not None
        assert server.stdout is not None
        order = json.dumps([log.name, command])
        with suppress(BrokenPipeError):  # it has just died, which reading tells, too
            server.stdin.write(f"{order}\n".encode())
        code = asyncio.ensure_future(asyncio.to_thread(server.stdout.readline))
        try:
            while not code.done():
                await asyncio.wait({code}, timeout=LOOK_SECONDS)
                look()
        except BaseException:
            await kill_family(server.pid)
            server.wait()
            raise
        if not code.result():
            return server.wait()
        waiting.append(server)
        return int(code.result())

    weakref.finalize(run, _dismiss, waiting)
    return run


def _dismiss(waiting: list[subprocess.Popen[bytes]]) -> None:
    """End processes that nobody orders from any more."""
    for server in waiting:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


def _start(
    modules: Sequence[str], log: BinaryIO, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A process that forks; what goes wrong in itself is told in the log of its first child."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", __name__, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        bufsize=0,
        env={**os.environ, **variables},
        start_new_session=True,  # Ctrl-C is for the process that ordered, which then decides
    )


def main() -> None:
    """Import, then fork a child for each line of the input."""
    end_with_parent()
    codes = os.dup(1)
    os.dup2(2, 1)  # only exit codes go where they are read
    for module in sys.argv[1:]:
        with suppress(ImportError):  # the child will say what is missing
            import_module(module)
    while order := _line():
        child = os.fork()
        if not child:
            os.close(codes)
            _be(*json.loads(order))
        _, status = os.waitpid(child, 0)
        os.write(codes, b"%d\n" % os.waitstatus_to_exitcode(status))


def _line() -> bytes:
    """The next line of the input; empty at its end."""
    # Nothing may be read ahead: the input is the child's, too, which ends when it does.
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return b""
        line += byte
    return line


def _be(log: str, command: list[str]) -> NoReturn:
    """Be the program that the command names, with its log."""
    printed = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    if not _survives_fork():
        os.execv(sys.executable, [sys.executable, "-u", "-m", *command])
    sys.argv, code = list(command), 0
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _survives_fork() -> bool:
    """True if a fork can do all that a new interpreter can."""
    torch = sys.modules.get("torch")
    # The system libraries of macOS do not, either.
    return sys.platform == "linux" and (torch is None or not torch.cuda.is_available())


if __name__ == "__main__":
    main()
