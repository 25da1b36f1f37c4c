"""Exit codes, and the one place where a failure ends a command: with one readable line."""

import shlex
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer
from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Failure, Result, Success

from nip_fn_cli.shown.terminal import visible

if TYPE_CHECKING:  # help needs this module, and must not wait for the core to be imported
    from nip_fn.errors import Problem, ProblemKind

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


# One for each kind of problem (`nip_fn.errors.ProblemKind`).
EXITS: "dict[ProblemKind, Exit]" = {
    "usage": Exit.USAGE,
    "run": Exit.RUN,
    "corrupt": Exit.CORRUPT,
    "truncated": Exit.TRUNCATED,
    "foreign": Exit.FOREIGN,
    "newer": Exit.NEWER,
    "mismatch": Exit.MISMATCH,
    "untrusted": Exit.USAGE,
    "adapter": Exit.ADAPTER,
    "system": Exit.SYSTEM,
    "budget": Exit.BUDGET,
    "skipped": Exit.SKIPPED,
    "interrupted": Exit.INTERRUPTED,
}


def say(line: str) -> None:
    """Print a line to stderr: stdout is for results."""
    # Visible already: while a bar is shown, rich takes what is written here to another console.
    print(visible(line), file=sys.stderr, flush=True)


def die(code: Exit, problem: "Problem | str") -> NoReturn:
    """End the command with one line and a code."""
    say(f"nip-fn: {problem}")
    raise typer.Exit(int(code))


def command(*words: object) -> str:
    """A command line that can be pasted into a shell, whatever its words are.

    >>> command("nip-fn", "replay", "runs/my run")
    "nip-fn replay 'runs/my run'"
    """
    return shlex.join(map(str, words))


def or_exit(result: "Result[T, Problem]") -> T:
    """The value of a success; a failure ends the command.

    Raises:
        typer.Exit: After the problem was printed to stderr; its code is that of the problem's kind.
    """
    match result:
        case Success(value):
            typed: T = value
            return typed
        case Failure(problem):
            for line in problem.details:
                say(line)
            die(EXITS[problem.kind], problem)
    raise AssertionError(result)


def die_of(error: OSError | UnwrapFailedError) -> NoReturn:
    """End the process because of a problem that no command has met."""
    # Imported late: help needs this module, and must not wait for the core to be imported.
    from nip_fn_adapters.experiments.outcomes import problem_of

    try:
        or_exit(Failure(problem_of(error)))
    except typer.Exit as end:
        sys.exit(end.exit_code)
    raise AssertionError(error)
