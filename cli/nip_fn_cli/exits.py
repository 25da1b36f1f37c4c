"""Exit codes, and how a command ends early: with one readable line."""

import sys
from enum import IntEnum
from typing import NoReturn

import typer


class Exit(IntEnum):
    """What the exit code of a command means."""

    OK = 0
    BUG = 1  # an error in nip-fn
    USAGE = 2  # a wrong option, parameter or configuration file
    RUN = 3  # the run exists already, does not exist, or is in use
    CORRUPT = 4  # a checkpoint does not match its checksums
    TRUNCATED = 5  # a checkpoint ends inside an event
    FOREIGN = 6  # not a checkpoint
    NEWER = 7  # a checkpoint of a newer version of nip-fn
    MISMATCH = 8  # what was derived differs from what was recorded
    ADAPTER = 9  # a model, a training or a data set failed
    SYSTEM = 10  # a file or the system refused
    BUDGET = 11  # stopped before it would cost more than allowed; can be gone on with
    INTERRUPTED = 130  # stopped by Ctrl-C; the run can be resumed


READ_EXITS = {"foreign": Exit.FOREIGN, "newer": Exit.NEWER, "corrupt": Exit.CORRUPT}


def say(line: str) -> None:
    """Talk, as opposed to data: a line on stderr."""
    print(line, file=sys.stderr, flush=True)


def die(code: Exit, line: str) -> NoReturn:
    """End the command with one line and a code."""
    say(f"nip-fn: {line}")
    raise typer.Exit(int(code))
