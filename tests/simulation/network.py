"""A network between processes: aiohttp's client session, without sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from .faults import Faults
from .laws import Auditor
from .loop import PROCESS, Process

_REAL = aiohttp.ClientSession, aiohttp.TCPConnector
_ADDRESS: Any = SimpleNamespace(host="host", port=80, ssl=False, is_ssl=False)
ELSEWHERE = "elsewhere.test"
PAGE = b"<html><body>Please wait</body></html>"


class Asked(NamedTuple):
    """A request that arrives at a server."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """A server's answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


class Server(Protocol):
    """Somebody who answers requests."""

    key: str
    process: Process

    def is_away(self) -> bool:
        """True if nobody listens."""

    async def answer(self, asked: Asked) -> Answer:
        """The answer; whatever it costs is paid."""


def context_of(process: Process) -> Context:
    """A context whose tasks are the process's."""
    context = copy_context()
    context.run(PROCESS.set, process)
    return context


class Network:
    """The hosts by their address, and the ways between them."""

    def __init__(self, faults: Faults, auditor: Auditor) -> None:
        self.servers: dict[str, Server] = {}
        self._faults, self._auditor = faults, auditor
        self.since_stop: Callable[[], float] = lambda: 0.0  # seconds since the run was stopped
        self.on_cancelled: Callable[[Asked, Process, float], None] = lambda *cancelled: None
        self._speed = 10 ** faults.random.uniform(-2, 0.5)

    async def exchange(self, process: Process, asked: Asked) -> Answer:
        """The answer, if it comes; raises what aiohttp raises."""
        faults, random = self._faults, self._faults.random
        if process.is_dead:
            raise aiohttp.ServerDisconnectedError
        if asked.url.host == "127.0.0.1":  # on one machine nothing gets lost
            near = self.servers[f"{asked.url.host}:{asked.url.port}"]
            if near.is_away():
                raise aiohttp.ClientConnectorError(_ADDRESS, OSError(111, "Connection refused"))
            return await self._work(near, asked)
        began = asyncio.get_running_loop().time()
        server = self.servers[f"{asked.url.host}:{asked.url.port}"]
        if asked.url.path.endswith("/chat/completions"):
            self._auditor.nothing_is_sent_after_a_stop(self.since_stop())
        keys = [host.key for host in self.servers.values() if host.key != server.key]
        self._auditor.no_key_leaves(asked, keys)
        await asyncio.sleep(random.expovariate(1.0) * self._speed)
        if server.is_away() or faults.hits("unreachable"):
            raise aiohttp.ClientConnectorError(_ADDRESS, OSError(111, "Connection refused"))
        if faults.hits("lost request"):
            raise self._disconnection()
        if faults.hits("redirection"):
            elsewhere = asked.url.with_host(ELSEWHERE)
            return Answer(307, b"", {"Location": str(elsewhere)})
        try:
            answer = await self._work(server, asked)
        except asyncio.CancelledError:
            self.on_cancelled(asked, process, began)
            raise
        if faults.hits("doubled request") and _is_repeatable(asked):
            answer = await self._work(server, asked)
        await asyncio.sleep(random.expovariate(1.0) * self._speed)
        if faults.hits("late answer"):
            await asyncio.sleep(10 ** random.uniform(0, 4))
        if process.is_dead:
            raise self._disconnection()
        if faults.hits("lost answer"):
            if random.random() < 0.3:
                return Answer(random.choice((502, 504)), PAGE)
            raise self._disconnection()
        if faults.hits("broken answer"):
            return self._broken(answer)
        return answer

    def _disconnection(self) -> Exception:
        disconnected = aiohttp.ServerDisconnectedError()
        reset = aiohttp.ClientOSError(104, "Connection reset by peer")
        return self._faults.random.choice((disconnected, reset))

    def _broken(self, answer: Answer) -> Answer:
        cut = self._faults.random.randrange(len(answer.body) + 1)
        bodies = (answer.body[:cut], PAGE, b"", b"null")
        body = self._faults.random.choice(bodies)
        if body == answer.body[:cut] and self._faults.random.random() < 0.5:
            raise aiohttp.ClientPayloadError("Response payload is not completed")
        return answer._replace(body=body)

    async def _work(self, server: Server, asked: Asked) -> Answer:
        """The server's answer: it works on, whatever becomes of the client."""
        arrived: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                answer = await server.answer(asked)
            except asyncio.CancelledError:
                if not arrived.done():
                    arrived.set_exception(aiohttp.ServerDisconnectedError())
                raise
            if not arrived.done():
                arrived.set_result(answer)

        asyncio.get_running_loop().create_task(work(), context=context_of(server.process))
        return await arrived


def _is_repeatable(asked: Asked) -> bool:
    """True if a gateway may send it twice: what it asks for is done once."""
    return asked.method == "GET" or "Idempotency-Key" in asked.headers


class Session:
    """`aiohttp.ClientSession`."""

    def __init__(self, network: Network, headers: Mapping[str, str] | None, timeout: Any) -> None:
        self._network, self._headers, self._timeout = network, headers or {}, timeout
        self._process = PROCESS.get()

    def get(self, url: str, **options: Any) -> Any:
        return self.request("GET", url, **options)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: Any,
        *,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
        json: Any = None,
        timeout: Any = None,
        allow_redirects: bool = True,
    ) -> AsyncIterator[Any]:
        body = b"".join([part async for part in data]) if hasattr(data, "__aiter__") else data
        body = body if json is None else msgspec.json.encode(json)
        both = CIMultiDict({**self._headers, **(headers or {})})
        asked = Asked(method.upper(), URL(url), both, body or b"")
        limits = timeout or self._timeout
        limit = limits and (limits.total or limits.sock_read)
        try:
            async with asyncio.timeout(limit):
                answer = await self._network.exchange(self._process, asked)
        except TimeoutError:
            raise aiohttp.SocketTimeoutError from None
        yield _Response(answer)

    async def close(self) -> None:
        """Nothing is open."""


class _Response:
    def __init__(self, answer: Answer) -> None:
        self.status, self._body = answer.status, answer.body
        self.headers = CIMultiDict(answer.headers)
        self.ok = answer.status < 400
        self.content = SimpleNamespace(iter_any=self._pieces)

    async def _pieces(self) -> AsyncIterator[bytes]:
        half = len(self._body) // 2
        for piece in filter(None, (self._body[:half], self._body[half:])):
            yield piece

    async def read(self) -> bytes:
        return self._body

    async def text(self) -> str:
        return self._body.decode()

    async def json(self, **options: Any) -> Any:
        return msgspec.json.decode(self._body)


def connect(network: Network) -> None:
    """Let aiohttp's sessions use that network; `disconnect` must follow."""

    def session(
        *, headers: Mapping[str, str] | None = None, timeout: Any = None, **options: Any
    ) -> Session:
        return Session(network, headers, timeout)

    aiohttp.ClientSession = session  # type: ignore[assignment,misc]
    aiohttp.TCPConnector = lambda **options: None  # type: ignore[assignment,misc]


def disconnect() -> None:
    """Have the real network back."""
    aiohttp.ClientSession, aiohttp.TCPConnector = _REAL  # type: ignore[misc]
