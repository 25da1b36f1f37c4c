"""Files at a provider, and lists of its objects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from nip_fn_adapters import clock

Found = TypeVar("Found")


async def ensure_upload(client: Any, name: str, data: bytes, purpose: str) -> str:
    """The id of the file with that name and size, uploaded only if the provider does not have it.

    An upload whose answer was lost is found by its name when the caller tries again.
    """
    async for file in each(client.files.list(purpose=purpose)):
        # The name alone would also fit an upload that broke off.
        name_and_size = (getattr(file, "filename", None), getattr(file, "bytes", None))
        if name_and_size == (name, len(data)) and getattr(file, "status", None) != "error":
            return text_of(file, "id")
    upload = (name, data, "application/jsonl")
    return text_of(await client.files.create(file=upload, purpose=purpose), "id")


async def delete_file(client: Any, file: str) -> None:
    """Delete the file with that id, if it is there."""
    import openai

    with suppress(openai.NotFoundError):
        await client.files.delete(file)


async def look_for(
    find: Callable[[], Awaitable[Found | None]], requested_at: float | None, settle: float
) -> Found | None:
    """The object that `find` finds in a list, which may show a new object late; or None.

    Args:
        find: looks at the list once.
        requested_at: when the object was requested, in s since 1970; None: look only once.
        settle: seconds from then until it must be listed if it was created.
    """
    # A clock that has been set back must not make the wait longer than `settle`.
    until = 0.0 if requested_at is None else min(clock.wall(), requested_at) + settle
    while True:
        listed = await find()
        if listed or clock.wall() >= until:
            return listed
        await asyncio.sleep(min(1.0, settle / 10))


async def each(pages: Any) -> AsyncIterator[Any]:
    """The items of all pages.

    Servers that ignore the page's cursor repeat the first page for ever, so the first item that
    appears again is the end.
    """
    try:
        page = await pages
    except AttributeError:  # raised by the client itself if the answer is text instead of JSON
        raise ValueError("the answer is not a list") from None
    seen: set[str] = set()
    async for item in page:
        name = text_of(item, "id")
        if name in seen:
            return
        seen.add(name)
        yield item


def text_of(answer: Any, field: str) -> str:
    """A text field of an object that the client has read; raises `ValueError` if it has none."""
    value = getattr(answer, field, None)
    if not isinstance(value, str):
        raise ValueError(f"the answer has no {field!r}")
    return value
