"""The one way to fail: a value that says what was given, why it cannot be, and what to do.

Whatever a caller can cause comes back as a `returns` failure that holds a `Problem`.  A bug raises.
"""

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from returns.pipeline import is_successful
from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Failure, Result, Success

T = TypeVar("T")
E = TypeVar("E")

ProblemKind = Literal[
    "usage",  # a wrong option, parameter, data set or configuration file
    "run",  # the run exists already, does not exist, or is in use
    "corrupt",  # a checkpoint does not match its checksums
    "truncated",  # a checkpoint ends inside an event, or before the first
    "foreign",  # not a checkpoint
    "newer",  # a checkpoint of a newer version of nip-fn
    "mismatch",  # the replay derives something else than was recorded
    "untrusted",  # a recording names code that nobody here has named; it was not run
    "adapter",  # a model or a training failed
    "system",  # a file or the operating system refused
    "budget",  # stopped before it would cost more than the budget; the run can be resumed
    "skipped",  # the run is done, but went on without a training or an adapter that failed
    "interrupted",  # stopped on request; the run can be resumed
]


# An exception, so that `.unwrap()` of a failure raises its error from it; nothing in this package
# raises it.
@dataclass(frozen=True)
class Problem(Exception):
    """The reason why something that was asked for cannot be done.

    Its text is one readable line:

    >>> print(Problem("it has no rows", address="data.jsonl", remedy="give it at least one"))
    data.jsonl: it has no rows; give it at least one
    """

    problem: str  # what was given, and why it cannot be
    address: str = ""  # the parameter, file or option at fault; "" if there is none
    remedy: str = ""  # a change or a command that works; "" if there is none
    lasting: bool = False  # True if a run with the same parameters would always meet it again
    kind: ProblemKind = "usage"
    details: tuple[str, ...] = ()  # further lines, such as each bad row of a file

    def __str__(self) -> str:
        """The line that a person reads: address, problem and remedy."""
        where = f"{self.address}: " if self.address else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{where}{self.problem}{remedy}"

    def at(self, address: str) -> "Problem":
        """The same problem, found at this address (in front of its own, if it has one).

        >>> print(Problem("it is empty", "rows").at("data.jsonl"))
        data.jsonl: rows: it is empty
        """
        return replace(self, address=f"{address}: {self.address}" if self.address else address)

    def of(self, kind: ProblemKind) -> "Problem":
        """The same problem, of this kind if it is of none but the usual one."""
        return replace(self, kind=kind) if self.kind == "usage" else self


def _text_of_failure(error: UnwrapFailedError) -> str:
    """The problem in a failure that was unwrapped; "" where it holds anything else."""
    held = getattr(error.halted_container, "_inner_value", None)
    return str(held) if isinstance(held, Problem) else ""


# The library's own error has no text.  Whoever unwraps in a notebook or logs the error would have
# to find the problem in the traceback of its cause; a subclass of `Failure`, which is final, would
# be lost at the next `.alt`.
UnwrapFailedError.__str__ = _text_of_failure  # type: ignore[assignment, method-assign]


LONGEST_LINE = 300  # characters


def one_line(text: object, longest: int = LONGEST_LINE) -> str:
    """The text as a single line of limited length.

    >>> one_line("Line 3\\n is cut", longest=10)
    'Line 3 ...'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def or_raise(result: Result[T, Problem]) -> T:
    """The value of a result; raises a `ValueError` whose cause is the problem of a failure."""
    if isinstance(result, Failure):
        problem = result.failure()
        raise ValueError(str(problem)) from problem
    return result.unwrap()


# The answer of every port: a result that is to be awaited, with a problem if it fails.
Eventual = Awaitable[Result[T, Problem]]


# `returns.iterables.Fold.collect` does the same, but without its mypy plugin it has no type.
def collect(results: Iterable[Result[T, E]]) -> Result[tuple[T, ...], E]:
    """All values, or the first failure, after which no more results are taken.

    `returns.iterables.Fold.collect`, but typed without a plugin for mypy.

    >>> collect([Success(1), Success(2)])
    <Success: (1, 2)>
    """
    values: list[T] = []
    for result in results:
        if not is_successful(result):
            return result.map(lambda _: ())
        values.append(result.unwrap())
    return Success(tuple(values))
