"""The one way in which an experiment fails: it short-circuits, and its door returns the failure.

Within this package a function that cannot go on calls `refuse`, or `.unwrap()` of a failure; only
the functions that users call are wrapped with `outcome`.
"""

from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem

P = ParamSpec("P")
T = TypeVar("T")


def refuse(problem: Problem) -> NoReturn:
    """Raise a problem, which the next enclosing `outcome` returns as a failure."""
    Failure(problem).unwrap()
    raise AssertionError("a failure has been unwrapped")


def outcome(function: Callable[P, T]) -> Callable[P, Result[T, Problem]]:
    """The same function as one that returns a `Result`.

    Problems that it short-circuits with are its failures, and so is what the operating system
    refuses.  Any other exception is a bug, and raised.

    >>> outcome(refuse)(Problem("it is empty")).failure().problem
    'it is empty'
    """

    @wraps(function)
    def returning(*args: P.args, **kwargs: P.kwargs) -> Result[T, Problem]:
        try:
            return Success(function(*args, **kwargs))
        except (OSError, UnwrapFailedError) as error:
            return Failure(problem_of(error))

    return returning


def problem_of(error: OSError | UnwrapFailedError) -> Problem:
    """The problem that an exception stands for; an unwrapped failure of anything else is raised."""
    if isinstance(error, OSError):
        return refused_by_system(error)
    problem = error.halted_container.failure() if isinstance(error.halted_container, Failure) else 0
    if not isinstance(problem, Problem):
        raise error
    return problem


def refused_by_system(error: OSError, remedy: str = "") -> Problem:
    """The problem that the operating system refused something."""
    problem = error.strerror or str(error)
    return Problem(problem, str(error.filename or ""), remedy, kind="system")
