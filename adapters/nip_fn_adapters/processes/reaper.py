"""Run a command so that no process of its group outlives the process that started it.

    python -m nip_fn_adapters.processes.reaper COMMAND [ARGUMENT ...] < PIPE

The command's process id is printed; what it prints itself goes to standard error.  Nobody writes
to the pipe: it ends when its owner closes it or dies, in whatever way.  The command's process group
is then sent SIGTERM and, if it does not end in time, SIGKILL.  So is what the command leaves in its
group when it ends by itself: vLLM's engine runs on for ever when its API server is killed.

The exit code is the command's, or 128 and the signal's number, as a shell gives it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

GRACE = 10.0  # seconds in which a group may end by itself
REAPING = 5.0  # seconds in which the kernel may take to end what was killed
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl


def main() -> None:
    """Run the command that the arguments name."""
    # A process group alone would not do: an orphan's new parent is init, and nobody could wait for
    # it.  A subreaper inherits it, so that this process ends only after the group has.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    # The pipe is not inherited: this process must be the one that sees it end.
    command = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        process_group=0,
        preexec_fn=_end_with_parent,
    )
    # Passed on rather than obeyed: this process must outlive the group.
    signal.signal(signal.SIGTERM, lambda *_: _send(command.pid, signal.SIGTERM))
    print(command.pid, flush=True)
    threading.Thread(target=_watch_pipe, args=(command.pid,), daemon=True).start()
    code = command.wait()
    _send(command.pid, signal.SIGKILL)
    _reap()
    sys.exit(code if code >= 0 else 128 - code)


def _end_with_parent() -> None:
    """Ask for SIGTERM at the reaper's own end: Ray kills what its workers have started."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _watch_pipe(group: int) -> None:
    while os.read(0, 1):
        pass
    _send(group, signal.SIGTERM)
    time.sleep(GRACE)  # if the command ends before that, so does this process
    _send(group, signal.SIGKILL)


def _send(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _reap() -> None:
    """Return once no child is left, or after `REAPING`: one that left its group is not ours."""
    end = time.monotonic() + REAPING
    with suppress(ChildProcessError):
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)


if __name__ == "__main__":
    main()
