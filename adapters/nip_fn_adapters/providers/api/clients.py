"""HTTP clients for the servers of models.

Every request to a server goes over one `Connection`, whichever client makes it.  So the rules are
in one place: the key is shown to the server alone, redirects are followed within the server only,
and no answer takes more memory than it may.
"""

import logging
import re
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import httpx2
import openai
from yarl import URL

from nip_fn_adapters.providers.api.endpoints import (
    Endpoint,
    clear_text_warning,
    has_no_path,
    proxy_of,
)
from nip_fn_adapters.providers.api.retries import RequestFailure

# Far less than a request may take: a server that is there accepts at once, even if its reply then
# takes minutes.
CONNECT_SECONDS = 15.0  # limit for establishing a connection

# Less than the 5 s of uvicorn (vLLM) and Node: a request is lost if it meets a connection that its
# server is closing.
KEEP_ALIVE_SECONDS = 4.0

# aiohttp's own limit is 8,190, which the content security policy of a gateway may exceed.
HEADER_BYTES = 1 << 18  # of one line of an answer's head

MOST_BYTES = 64 << 20  # of an answer's body, unless the caller knows better

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_LONGEST_ADDRESS = 200  # characters that are shown of one
# Headers of a request that aiohttp chooses, and of an answer that are not true of its read body.
_CHOSEN = frozenset({"accept-encoding", "connection", "host", "transfer-encoding"})
_UNTRUE = frozenset({"content-encoding", "content-length", "transfer-encoding"})
# LM Studio's answer, with status 200, to a path that it does not have.
_NO_SUCH_PATH = re.compile(rb"unexpected endpoint", re.IGNORECASE)


class RequestError(aiohttp.ClientError):
    """A request that was given up, with its failure."""

    def __init__(self, failure: RequestFailure) -> None:
        """Show the failure's message."""
        super().__init__(failure.message)
        self.failure = failure


class Response(NamedTuple):
    """A server's answer, whatever its status; the names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """The connections to one server."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout: float,
        connections: int,
        finds_base: bool = True,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Connect with the first request.  To be made while an event loop runs.

        Args:
            endpoint: the server.
            timeout: seconds for connecting, and for each read.
            connections: the most that are open at a time.
            finds_base: whether /v1 is tried, too, if the address has no path.
            tell: called with the address that was found.
        """
        self.endpoint, self._tell = endpoint, tell
        self._proxy = proxy_of(endpoint.url)
        # An address that ends with its host is tried as it is, and then with what most servers
        # have after it.
        guesses = finds_base and has_no_path(endpoint.url)
        self._base, self._guess = endpoint.url, f"{endpoint.url}/v1" if guesses else None
        # The session has no headers of its own: aiohttp shows those to the proxy, too.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                keepalive_timeout=KEEP_ALIVE_SECONDS,
                ssl=_ssl(endpoint),
            ),
            timeout=aiohttp.ClientTimeout(
                connect=timeout,
                # Before the whole time is up, so that it is known that nothing was sent.
                sock_connect=min(timeout / 2, CONNECT_SECONDS),
                sock_read=timeout,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self._proxy.url if self._proxy else None,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        )

    async def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes],
        most_bytes: int,
    ) -> Response:
        """The server's answer.

        Args:
            method: the HTTP method, in upper case.
            path: what follows the server's address, with its first slash.
            headers: of the request.
            body: of the request; it is read again if the request is sent again.
            most_bytes: the longest body of an answer, when it is no longer compressed.

        Raises:
            RequestError: the answer is too long, leads elsewhere, or is the proxy's.
        """
        base, guess = self._base, self._guess
        response = await self._follow(method, base, path, headers, body, most_bytes)
        if guess is None:
            return response
        if _is_elsewhere(response):
            response = await self._follow(method, guess, path, headers, body, most_bytes)
            if not _is_elsewhere(response):
                self._settle(guess)
        elif response.status < 300:  # a refusal may come from a gateway that has no such path
            self._settle(base)
        return response

    def _settle(self, base: str) -> None:
        """Use the address at which the API was found from now on."""
        if base != self._base:
            self._tell(f"{self._base} is not the address of an API, but {base} is")
        self._base, self._guess = base, None

    async def _follow(self, method: str, base: str, path: str, *request: Any) -> Response:
        """The answer at the end of all redirects, none of which leaves the server."""
        url = URL(f"{base}{path}")
        for _ in range(_MOST_REDIRECTS):
            response = await self._send(method, url, *request)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or not location:
                return response
            # By 301, 302 and 303 a POST becomes a GET without its body.
            keeps = response.status in (307, 308) or method == "GET"
            try:
                before, url = url, url.join(URL(location))
                stays = url.origin() == before.origin()
            except ValueError:
                failure = RequestFailure("moved", response.status, "which is no address of the web")
                raise RequestError(failure) from None
            if not (keeps and stays):
                break
        raise RequestError(_moved(response.status, url, path))

    async def _send(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes],
        most_bytes: int,
    ) -> Response:
        try:
            async with self._session.request(
                method, url, headers=headers, data=body or None, allow_redirects=False
            ) as response:
                content = await _read(response, most_bytes)
                return Response(response.status, response.headers, content)
        except (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError) as error:
            raise RequestError(self._failure_of_proxy(error)) from error

    def _failure_of_proxy(self, error: aiohttp.ClientError) -> RequestFailure:
        if isinstance(error, aiohttp.ClientHttpProxyError):
            cause = f"{error.status} {error.message}"
        else:
            cause = str(error.__cause__ or error)
        return RequestFailure("proxy", message=f"{self._proxy}: {cause}", reached=False)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of an answer; raises `RequestError` as soon as it is too long."""
    chunks, size = [], 0
    # In pieces, each of which aiohttp decompresses by itself: a whole body of a megabyte may stand
    # for a gigabyte.
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > most_bytes:
            message = f"its answer is longer than {most_bytes:,} bytes"
            raise RequestError(RequestFailure("malformed", message=message))
        chunks.append(chunk)
    return b"".join(chunks)


def _is_elsewhere(response: Response) -> bool:
    """True if the answer shows that there is no API at the address that was asked."""
    if response.status in (404, 405):
        return True
    start = response.body[:1000].lstrip()
    is_page = start.startswith(b"<") or _NO_SUCH_PATH.search(start) is not None
    return response.status < 300 and is_page


def _moved(status: int, target: URL, path: str) -> RequestFailure:
    """The failure of a request that is redirected to another address."""
    # Without the query, which may hold a secret.
    plain = str(target.with_query(None).with_fragment(None).with_user(None))
    requested_path = urlsplit(path).path
    fits = plain.endswith(requested_path) and len(plain) <= _LONGEST_ADDRESS
    base = plain.removesuffix(requested_path) if fits else ""
    return RequestFailure("moved", status, plain[:_LONGEST_ADDRESS], moved_to=base)


class _Transport(httpx2.AsyncBaseTransport):
    """The transport of the openai client's requests."""

    def __init__(self, connection: Connection, most_bytes: int) -> None:
        self._connection, self._most_bytes = connection, most_bytes
        self._base_path = httpx2.URL(connection.endpoint.url).raw_path.rstrip(b"/")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            body: bytes | AsyncIterable[bytes] = request.content
        except httpx2.RequestNotRead:  # a file
            assert isinstance(request.stream, httpx2.AsyncByteStream)
            body = request.stream
        path = request.url.raw_path.removeprefix(self._base_path).decode("ascii")
        sent = {name: text for name, text in request.headers.items() if name not in _CHOSEN}
        response = await self._connection.exchange(
            request.method, path, sent, body, self._most_bytes
        )
        received = response.headers.items()
        return httpx2.Response(
            response.status,
            headers=[(name, text) for name, text in received if name.lower() not in _UNTRUE],
            content=response.body,
            request=request,
        )

    async def aclose(self) -> None:
        await self._connection.aclose()


def make_client(
    endpoint: Endpoint,
    *,
    timeout: float,
    connections: int,
    finds_base: bool = True,
    most_bytes: int = MOST_BYTES,
) -> openai.AsyncOpenAI:
    """A client that never retries by itself: `api.retries` alone decides.

    `timeout` is in seconds, for each request; no answer has more than `most_bytes`.  For the rest
    see `Connection`.
    """
    connection = Connection(
        endpoint, timeout=timeout, connections=connections, finds_base=finds_base
    )
    return _client_over(connection, most_bytes)


def _client_over(connection: Connection, most_bytes: int) -> openai.AsyncOpenAI:
    # OPENAI_LOG sets only the level of the client's own logger.
    logging.getLogger("httpx2").setLevel(logging.getLogger("openai").level)
    return openai.AsyncOpenAI(
        base_url=connection.endpoint.url,
        api_key=connection.endpoint.key,
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=_Transport(connection, most_bytes)),
    )


class Chats:
    """A server's chat completions, requested as its `client`, an `openai.AsyncOpenAI`, would.

    Address and headers are the client's.  But the client builds them anew for each request, which
    took half of the processor time of a request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout: float,
        connections: int,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Take the arguments of `Connection`; to be closed with `aclose`."""
        self._connection = Connection(endpoint, timeout=timeout, connections=connections, tell=tell)
        self.client = self.client_for(MOST_BYTES)
        # The client marks a header that is to be left out by an object in place of its text.
        headers = {**self.client.default_headers, **self.client.auth_headers}
        self._headers = {name: text for name, text in headers.items() if isinstance(text, str)}
        warning = clear_text_warning(endpoint)
        if warning:
            tell(warning)

    def client_for(self, most_bytes: int) -> openai.AsyncOpenAI:
        """A client over the same connections for answers of that length; it need not be closed."""
        return _client_over(self._connection, most_bytes)

    async def post(self, body: bytes, most_bytes: int = MOST_BYTES) -> Response:
        """The answer to that JSON."""
        path, headers = "/chat/completions", self._headers
        return await self._connection.exchange("POST", path, headers, body, most_bytes)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connection.aclose()


def _ssl(endpoint: Endpoint) -> Any:
    # Without TLS there is nothing to verify, and certificates take 60 ms to load.
    return httpx2.create_ssl_context() if endpoint.url.startswith("https:") else False
