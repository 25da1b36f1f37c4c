"""Exit codes, and the one place where a failure ends a command: with one readable line."""

import re
import shlex
import sys
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer
from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Failure, Result, Success

from nip_fn_adapters.processes.exits import Exit
from nip_fn_cli.shown.terminal import terminal_safe

if TYPE_CHECKING:  # help needs this module, and must not wait for the core to be imported
    from nip_fn.errors import Problem

__all__ = ["Exit", "command", "die", "die_of", "or_exit", "say"]

T = TypeVar("T")


# The options of the command that runs, by the parameters that problems name in backticks.
OPTIONS: dict[str, str] = {}


def say(line: str) -> None:
    """Print a line to stderr: stdout is for results.  Parameters are told as options."""
    line = re.sub("`([a-z_]+)`", lambda word: OPTIONS.get(word[1], word[0]), line)
    # Visible already: while a bar is shown, rich takes what is written here to another console.
    print(terminal_safe(line), file=sys.stderr, flush=True)


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
            die(Exit[problem.kind.upper()], problem)
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
