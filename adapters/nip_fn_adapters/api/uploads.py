"""Files at a provider, and lists of what it holds."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


async def ensure_upload(client: Any, name: str, data: bytes, purpose: str) -> str:
    """The id of the file with that name and size, uploaded only where it is not there yet."""
    async for file in each(client.files.list(purpose=purpose)):
        found = (getattr(file, "filename", None), getattr(file, "bytes", None))
        if found == (name, len(data)) and getattr(file, "status", None) != "error":
            return text_of(file, "id")
    upload = (name, data, "application/jsonl")
    return text_of(await client.files.create(file=upload, purpose=purpose), "id")


async def look_for(
    find: Callable[[], Awaitable[Found | None]], asked: float | None, settle: float
) -> Found | None:
    """What is listed of something that was asked for then, if it was: lists may show it late.

    `asked` is in s since 1970; it has `settle` seconds to come up.
    """
    until = 0.0 if asked is None else min(time.time(), asked) + settle
    while True:
        found = await find()
        if found or time.time() >= until:
            return found
        await asyncio.sleep(min(1.0, settle / 10))


async def each(pages: Any) -> AsyncIterator[Any]:
    """The items of all pages; no more once one comes again, as from a server without pages."""
    try:
        page = await pages
    except AttributeError:  # the client's own, where it has read text instead of JSON
        raise ValueError("the answer is no list") from None
    seen: set[str] = set()
    async for item in page:
        id = text_of(item, "id")
        if id in seen:
            return
        seen.add(id)
        yield item


def text_of(told: Any, field: str) -> str:
    """A field of what a provider told; `ValueError` where it is no text."""
    value = getattr(told, field, None)
    if not isinstance(value, str):
        raise ValueError(f"the answer has no {field!r}")
    return value
