"""What never left this machine is known not to have been billed."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("openai")
from nip_fn_adapters.providers.api.clients import Chats, make_client
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.problems import failure_of
from nip_fn_adapters.providers.api.retries import RequestFailure, may_be_billed

from .proxying import with_tls

# Refused by the resolver itself: names are shorter.
LONG_NAME = ".".join(["a" * 60] * 5)
# No socket is connected to a group of machines.
MULTICAST = "224.0.0.1"


@asynccontextmanager
async def fixed(url: str) -> AsyncIterator[str]:
    yield url


@asynccontextmanager
async def refusing_proxy(patch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A proxy that wants to know who asks."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        patch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        patch.delenv("NO_PROXY", raising=False)
        patch.delenv("no_proxy", raising=False)
        yield "https://127.0.0.1:9/v1"


@asynccontextmanager
async def untrusted(folder: Path) -> AsyncIterator[str]:
    """A server with a certificate that nobody has signed."""
    with with_tls(9, folder) as (port, _):
        yield f"https://127.0.0.1:{port}/v1"


@asynccontextmanager
async def deaf() -> AsyncIterator[str]:
    """A port whose queue of connections is full, so that no other is ever taken."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        place = server.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(place)
        await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{place[1]}/v1"
        for client in waiting:
            client.close()


async def chat(endpoint: Endpoint) -> None:
    chats = Chats(endpoint, timeout=2.0, connections=1)
    try:
        await chats.post(b"{}")
    finally:
        await chats.aclose()


async def job(endpoint: Endpoint) -> None:
    """As all that is about trainings, files and batches is requested."""
    async with make_client(endpoint, timeout=2.0, connections=1) as client:
        await client.models.list()


async def failure(
    server: AbstractAsyncContextManager[str], call: Callable[[Endpoint], object]
) -> RequestFailure:
    async with server as url:
        try:
            await call(Endpoint(url, "key"))  # type: ignore[misc]
        except Exception as error:
            return failure_of(error)
    raise AssertionError("it was answered")


@pytest.mark.parametrize("call", [chat, job])
@pytest.mark.parametrize("case", ["name", "route", "refused", "certificate", "proxy", "time-out"])
def test_what_was_not_sent_is_known_not_to_be_billed(
    case: str,
    call: Callable[[Endpoint], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if case == "certificate" and shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    servers: dict[str, Callable[[], AbstractAsyncContextManager[str]]] = {
        "name": partial(fixed, f"http://{LONG_NAME}/v1"),
        "route": partial(fixed, f"http://{MULTICAST}/v1"),
        "refused": partial(fixed, "http://127.0.0.1:9/v1"),
        "certificate": partial(untrusted, tmp_path),
        "proxy": partial(refusing_proxy, monkeypatch),
        "time-out": deaf,
    }
    lost = asyncio.run(failure(servers[case](), call))
    assert (lost.kind, lost.reached) == ("proxy" if case == "proxy" else "connection", False)
    assert lost.message
    assert not may_be_billed(lost, seconds=60.0)
