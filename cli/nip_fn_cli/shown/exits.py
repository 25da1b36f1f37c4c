"""Exit codes, and the one place where a failure ends a command: with one readable line."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer
from returns.result import Failure, Result, Success

from nip_fn_cli.shown.terminal import visible

if TYPE_CHECKING:  # help needs this module, and must not wait for the core to be imported
    from nip_fn.errors import Problem

T = TypeVar("T")


class Exit(IntEnum):
    """The meaning of each exit code."""

    OK = 0
    BUG = 1  # an error in nip-fn
    USAGE = 2  # a wrong option, parameter, data set or configuration file
    RUN = 3  # the run exists already, does not exist, or is in use
    CORRUPT = 4  # a checkpoint does not match its checksums
    TRUNCATED = 5  # a checkpoint ends inside an event, or before the first
    FOREIGN = 6  # not a checkpoint
    NEWER = 7  # a checkpoint of a newer version of nip-fn
    MISMATCH = 8  # the replay derives something else than was recorded
    ADAPTER = 9  # a model or a training failed
    SYSTEM = 10  # a file or the operating system refused
    BUDGET = 11  # stopped before it would cost more than the budget; the run can be resumed
    SKIPPED = 12  # the run is done, but went on without a training or an adapter that failed
    INTERRUPTED = 130  # stopped by Ctrl-C; the run can be resumed


_READ_EXITS = {
    "foreign": Exit.FOREIGN,
    "newer": Exit.NEWER,
    "corrupt": Exit.CORRUPT,
    "empty": Exit.TRUNCATED,
    "misfit": Exit.MISMATCH,
    "untrusted": Exit.USAGE,
}


_told: set[str] | None = None  # the lines that are not to be repeated; None: all may be


@contextmanager
def said_once() -> Iterator[None]:
    """Leave out lines that were said within the block, as in one that plans a hundred runs."""
    global _told
    _told = set()
    try:
        yield
    finally:
        _told = None


def say(line: str) -> None:
    """Print a line to stderr: stdout is for results."""
    if _told is not None:
        if line in _told:
            return
        _told.add(line)
    # Visible already: while a bar is shown, rich takes what is written here to another console.
    print(visible(line), file=sys.stderr, flush=True)


def die(code: Exit, problem: "Problem | str") -> NoReturn:
    """End the command with one line and a code."""
    say(f"nip-fn: {problem}")
    raise typer.Exit(int(code))


def die_of_system(error: OSError, remedy: str = "") -> NoReturn:
    """End the process because the operating system refused something."""
    where = f"{error.filename}: " if error.filename else ""
    say(f"nip-fn: {where}{error.strerror or error}{remedy and '; '}{remedy}")
    sys.exit(int(Exit.SYSTEM))


def command(*words: object) -> str:
    """A command line that can be pasted into a shell, whatever its words are.

    >>> command("nip-fn", "replay", "runs/my run")
    "nip-fn replay 'runs/my run'"
    """
    return shlex.join(map(str, words))


def run_name(name: str | None, option: str = "--run") -> str | None:
    """The name, if it can be that of a folder in the folder of all runs; ends the command if not.

    Otherwise `../x` would write beside that folder, and no list of runs would show it.
    """
    if name is None:
        return None
    from nip_fn.params.names import is_plain_name

    if not is_plain_name(name):
        from nip_fn.errors import Problem

        last = name.rstrip("/").rpartition("/")[2]
        give = f"write {command(option, last)}" if last.strip(".") else "write a word"
        problem = "a run's name is that of a folder in --runs, and cannot be a path"
        die(Exit.USAGE, Problem(problem, command(option, name), f"{give} (and --runs FOLDER)"))
    return name


def or_exit(result: "Result[T, Problem]", code: Exit = Exit.USAGE) -> T:
    """The value of a success; a failure ends the command.

    Args:
        result: The result of something that the user asked for.
        code: The exit code of its failure.  A file that is no readable checkpoint has a code of
            its own, which goes before this one.

    Returns:
        The value.

    Raises:
        typer.Exit: After the problem was printed to stderr.
    """
    match result:
        case Success(value):
            done: T = value
            return done
        case Failure(problem):
            # Imported late: neither help nor a success needs it.
            from nip_fn.run.checkpoint import ReadError

            die(_READ_EXITS[problem.kind] if isinstance(problem, ReadError) else code, problem)
    raise AssertionError(result)
