"""Work on many things at a time, with results in the order of the things."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

AHEAD = 8  # things begun, for each that is worked on at a time: a slow one holds up no others


async def in_order(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Outcome]], at_a_time: int
) -> AsyncGenerator[tuple[Item, Outcome], None]:
    """Each item with what the work on it came to; items are taken only as they are needed.

    What is under way when the caller closes this, or when a work raises, is cancelled.
    """
    free = asyncio.Semaphore(at_a_time)

    async def bounded(item: Item) -> Outcome:
        async with free:
            return await work(item)

    begun: deque[tuple[Item, asyncio.Task[Outcome]]] = deque()
    try:
        for item in items:
            begun.append((item, asyncio.create_task(bounded(item))))
            if len(begun) >= at_a_time * AHEAD:
                first, task = begun.popleft()
                yield first, await task
        while begun:
            first, task = begun.popleft()
            yield first, await task
    finally:
        for _, task in begun:
            task.cancel()
        await asyncio.gather(*(task for _, task in begun), return_exceptions=True)
