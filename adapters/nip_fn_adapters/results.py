"""Results of several steps: those that are awaited, and those of a sequence."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from returns.pipeline import is_successful
from returns.result import Result

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E")


async def bind_async(
    result: Result[T, E], step: Callable[[T], Awaitable[Result[U, E]]]
) -> Result[U, E]:
    """The result of the next step, or this failure: `Result.bind` for a step that is awaited."""
    # `returns.future.FutureResult` would do the same, but only for ports that return its container
    # rather than a plain awaitable (`Eventual`).
    if is_successful(result):
        return await step(result.unwrap())
    failed: Any = result  # a failure is one for every type of success
    return failed  # type: ignore[no-any-return]
