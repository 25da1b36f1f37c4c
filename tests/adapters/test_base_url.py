"""Addresses of servers as people give them, over real HTTP on loopback."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nip_fn_adapters.providers.api.clients import Chats, Response
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.problems import failure_of
from nip_fn_adapters.providers.api.retries import RequestFailure

from .proxying import set_proxy


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
    chats = Chats(endpoint, timeout=60.0, connections=4, tell=told.append)
    try:
        statuses = [(await chats.post(b"{}")).status for _ in range(times)]
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


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%b\r\n{}"


@asynccontextmanager
async def _answering(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """The port of a server with one answer, and the heads of the requests that it was sent."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], heads


def test_requests_go_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> tuple[Response, list[bytes]]:
        async with _answering(ANSWER % b"") as (port, heads):
            set_proxy(monkeypatch, http_proxy=f"127.0.0.1:{port}", no_proxy="localhost")
            chats = Chats(Endpoint("http://models.invalid/v1", "k"), timeout=60.0, connections=4)
            response = await chats.post(b"{}")
            await chats.aclose()
            return response, heads

    response, (head,) = asyncio.run(ask())
    assert (response.status, response.body) == (200, b"{}")
    assert head.startswith(b"POST http://models.invalid/v1/chat/completions ")
    assert head.count(b"Bearer k") == 1, "for the server, and not for the proxy as well"


def test_an_answer_that_is_not_compressed_as_it_says_is_malformed_and_not_cut() -> None:
    async def ask() -> RequestFailure:
        async with _answering(ANSWER % b"Content-Encoding: gzip\r\n") as (port, _):
            endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", "k")
            chats = Chats(endpoint, timeout=60.0, connections=4)
            with pytest.raises(aiohttp.ClientError) as raised:
                await chats.post(b"{}")
            await chats.aclose()
            return failure_of(raised.value)

    failure = asyncio.run(ask())
    assert failure.kind == "malformed"
    assert "compressed" in failure.message
