"""Concurrent work on many items, with results in the order of the items."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Returned = TypeVar("Returned")

AHEAD = 8  # items begun for each that is worked on, so that a slow one does not delay the others


async def in_order(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Returned]], at_a_time: int
) -> AsyncGenerator[tuple[Item, Returned], None]:
    """Each item with the outcome of the work on it, in order.

    Items are taken only as they are needed, so the iterable may be endless.  Work that is under way
    when the caller closes the generator, or when other work raises, is cancelled.
    """
    free = asyncio.Semaphore(at_a_time)

    async def bounded(item: Item) -> Returned:
        async with free:
            return await work(item)

    begun: deque[tuple[Item, asyncio.Task[Returned]]] = deque()
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
