"""Addresses of servers as people give them, over real HTTP on loopback."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from aiohttp import web

from nip_fn_adapters.api.endpoints import Chats, Endpoint


async def _posted(served: str, base: str, times: int = 1) -> tuple[list[int], list[str], list[str]]:
    """The statuses of some posts to a server that only serves that path, what it was asked for, and
    what was told; `base` is what follows its host.
    """
    asked: list[str] = []
    told: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        known = request.path == served
        return web.json_response({}, status=200 if known else 404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    endpoint = Endpoint(f"http://127.0.0.1:{port}{base}", "k")
    chats = Chats(endpoint, timeout=10.0, connections=4, tell=told.append)
    try:
        statuses = [(await chats.post(b"{}")).status_code for _ in range(times)]
    finally:
        await chats.aclose()
        await runner.cleanup()
    return statuses, asked, told


def posted(*arguments: Any) -> tuple[list[int], list[str], list[str]]:
    made: Coroutine[Any, Any, tuple[list[int], list[str], list[str]]] = _posted(*arguments)
    return asyncio.run(made)


def test_an_address_without_a_path_is_tried_with_v1_and_kept_there() -> None:
    statuses, asked, (line,) = posted("/v1/chat/completions", "", 3)
    assert statuses == [200, 200, 200]
    assert asked == ["/chat/completions", *["/v1/chat/completions"] * 3]
    assert "/v1 is" in line


@pytest.mark.parametrize(
    ("served", "base"),
    [("/chat/completions", ""), ("/v1/chat/completions", "/v1"), ("/x/chat/completions", "/x")],
)
def test_an_address_that_is_right_is_asked_as_it_is(served: str, base: str) -> None:
    statuses, asked, told = posted(served, base, 2)
    assert statuses == [200, 200]
    assert asked == [served] * 2
    assert told == []


def test_an_address_with_a_path_is_never_guessed_at() -> None:
    statuses, asked, told = posted("/v1/chat/completions", "/api")
    assert statuses == [404]
    assert asked == ["/api/chat/completions"]
    assert told == []


def test_a_server_without_either_says_so_itself() -> None:
    statuses, asked, told = posted("/elsewhere", "")
    assert statuses == [404]
    assert asked == ["/chat/completions", "/v1/chat/completions"]
    assert told == []
