"""The servers of agents' models: their addresses, their keys, and HTTP clients for them."""

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.params.agent import OPTIONS, AgentParameters

OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
KEY_VARIABLES = {"OpenAI": "OPENAI_API_KEY", "OpenRouter": "OPENROUTER_API_KEY"}

BASE_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")  # the newer name first

# Far less than a request may take: a server that is there accepts at once, even if its reply then
# takes minutes.
CONNECT_SECONDS = 15.0  # limit for establishing a connection

# Less than the 5 s of uvicorn (vLLM) and Node: a request is lost if it meets a connection that its
# server is closing.
KEEP_ALIVE_SECONDS = 4.0

# Sent to servers that need no key: the openai client refuses an empty one.
NO_KEY = "EMPTY"


class Endpoint(NamedTuple):
    """A server and the key for it.  Its text does not show the key."""

    url: str
    key: str

    # Tracebacks and logs print the repr of a tuple, which would hold the key.
    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"


def endpoints_of(
    agent: AgentParameters, environment: Mapping[str, str]
) -> Result[tuple[Endpoint, ...], Problem]:
    """The servers among which an agent's requests are shared.

    Failure: an address is not one, or the key is missing.
    """
    urls, problem = base_urls(agent), address_problem(agent)
    if problem is not None:
        return Failure(problem)
    return _key(agent, environment).map(lambda key: tuple(Endpoint(url, key) for url in urls))


def address_problem(agent: AgentParameters) -> Problem | None:
    """A problem if one of the agent's addresses is none."""
    problems = filter(None, map(_url_problem, base_urls(agent) or ("",)))
    found = next(problems, None)
    return found and found.at(f"agents.{agent.name}.api_base_url")


def base_urls(agent: AgentParameters) -> tuple[str, ...]:
    """The addresses of an agent's servers, which end in /v1 or the like, without a final slash."""
    if agent.api_base_url is not None:
        urls = (url.strip().rstrip("/") for url in agent.api_base_url.split(","))
        return tuple(filter(None, urls))
    if agent.model_provider == "OpenRouter":
        return (OPENROUTER,)
    if agent.model_provider == "SelfHosted":
        host = agent.language_model_server_scheme_host.rstrip("/")
        return (f"{host}:{agent.vllm_server_port}/v1",)
    return (OPENAI,)


def usual_base_url(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable by which programs that use OpenAI's client are told another server, and its
    address; None if there is none.
    """
    named = ((name, environment.get(name, "").strip()) for name in BASE_URL_VARIABLES)
    return next(((name, url) for name, url in named if url), None)


def _has_no_path(url: str) -> bool:
    return urlsplit(url).path in ("", "/")


def _url_problem(url: str) -> Problem | None:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or re.search(r"\s", url):
        return Problem(
            f"{url!r} is not the address of a server",
            remedy="give one like https://api.openai.com/v1",
        )
    # Addresses are recorded and logged, so no secret may be part of one.
    if parts.username or parts.password or parts.query:
        return Problem(
            "an address may not hold a user, a password or a query, since it is recorded",
            remedy="put the key into an environment variable and name it in api_key_variable",
        )
    return None


def _key(agent: AgentParameters, environment: Mapping[str, str]) -> Result[str, Problem]:
    variable = agent.api_key_variable or KEY_VARIABLES.get(agent.model_provider)
    if variable is None:
        return Success(NO_KEY)
    key = environment.get(variable, "").strip()
    if key:
        return Success(key)
    return Failure(
        Problem(
            f"provider {OPTIONS[agent.model_provider]} needs an API key",
            address=f"agents.{agent.name}",
            remedy=f"set {variable} in the environment or in a file .env",
        )
    )


def environment(folder: Path = Path()) -> dict[str, str]:
    """The environment variables; those of the process override those of the folder's .env."""
    file = folder / ".env"
    if not file.is_file():
        return dict(os.environ)
    from dotenv import dotenv_values

    # What is set for one command is meant for it, and must not be overridden by a file.
    return {**{k: v for k, v in dotenv_values(file).items() if v is not None}, **os.environ}


def make_client(endpoint: Endpoint, *, timeout: float, connections: int) -> Any:
    """An `openai.AsyncOpenAI` that never retries by itself: `api.retries` alone decides.

    `timeout` is in seconds, for each request; at most `connections` are open at a time.
    """
    import openai

    return openai.AsyncOpenAI(
        base_url=endpoint.url,
        api_key=endpoint.key,
        max_retries=0,
        timeout=_timeout(timeout),
        http_client=_http(endpoint, connections),
    )


class Response(NamedTuple):
    """A server's answer, whatever its status; the names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Chats:
    """A server's chat completions, requested as its `client`, an `openai.AsyncOpenAI`, would.

    Address and headers are the client's.  But the client builds them anew for each request, which
    took half of the processor time of a request, and wraps aiohttp, which took a quarter.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout: float,
        connections: int,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Take the arguments of `make_client`; `tell` is given a line about what is odd.

        To be made while an event loop runs, and closed with `aclose`.
        """
        import aiohttp

        self.client = make_client(endpoint, timeout=timeout, connections=connections)
        self._base, self._tell = endpoint.url, tell
        # An address that ends with its host is tried as it is, and then with what most servers
        # have after it.
        bases = [endpoint.url] + ([f"{endpoint.url}/v1"] if _has_no_path(endpoint.url) else [])
        self._urls = [f"{base}/chat/completions" for base in bases]
        # The client marks a header that is to be left out by an object in place of its text.
        own = {**self.client.default_headers, **self.client.auth_headers}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                keepalive_timeout=KEEP_ALIVE_SECONDS,
                ssl=_ssl(endpoint),
            ),
            headers={name: text for name, text in own.items() if isinstance(text, str)},
            timeout=aiohttp.ClientTimeout(
                connect=timeout,
                sock_connect=min(timeout, CONNECT_SECONDS),
                sock_read=timeout,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=_proxy(endpoint.url),
        )

    async def post(self, body: bytes) -> Response:
        """The answer to that JSON."""
        url, *others = self._urls
        response = await self._send(url, body)
        if not others or response.status not in (404, 405):
            return response
        second = await self._send(others[0], body)
        if second.status not in (404, 405) and others[0] != self._urls[0]:
            self._urls = others
            self._tell(f"{self._base} is not the address of an API, but {self._base}/v1 is")
        return second

    async def _send(self, url: str, body: bytes) -> Response:
        async with self._session.post(url, data=body) as response:
            return Response(response.status, response.headers, await response.read())

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self.client.close()


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for an address, as for the client."""
    # aiohttp can read the environment itself, but does so in a thread for each request.
    parts, named = urlsplit(url), getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _ssl(endpoint: Endpoint) -> Any:
    import httpx2

    # Without TLS there is nothing to verify, and certificates take 60 ms to load.
    return httpx2.create_ssl_context() if endpoint.url.startswith("https:") else False


def _timeout(seconds: float) -> Any:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))


def _http(endpoint: Endpoint, connections: int) -> Any:
    """The HTTP transport, through aiohttp.

    It takes half the time of the client's own transport, and a fifth with hundreds of connections.
    """
    import httpx2
    import openai

    # OPENAI_LOG sets only the level of the client's own logger.
    logging.getLogger("httpx2").setLevel(logging.getLogger("openai").level)
    # As many are kept open as may be in use: requests come in waves, and each wave would otherwise
    # connect anew.
    limits = httpx2.Limits(
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=KEEP_ALIVE_SECONDS,
    )
    return openai.DefaultAioHttpClient(limits=limits, verify=_ssl(endpoint))
