"""Where agents' models are served, and with which key."""

import logging
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from returns.result import Failure, Result, Success

from nip_fn.params.agent import AgentParameters

OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
KEY_VARIABLES = {"OpenAI": "OPENAI_API_KEY", "OpenRouter": "OPENROUTER_API_KEY"}

CONNECT_SECONDS = 15.0  # at most, until a server takes a connection

# What a server that asks for no key is sent.
NO_KEY = "EMPTY"


class Endpoint(NamedTuple):
    """One server, and the key that it is to be shown.  Its key is in no text of it."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"


def endpoints_of(
    agent: AgentParameters, environment: Mapping[str, str]
) -> Result[tuple[Endpoint, ...], str]:
    """The servers that an agent's requests are shared among; or what is wrong with an address, or
    which key is missing.
    """
    problem = next(filter(None, map(_url_problem, base_urls(agent) or ("",))), None)
    if problem:
        return Failure(f"agents.{agent.name}.api_base_url: {problem}")
    key = _key(agent, environment)
    if isinstance(key, Failure):
        return Failure(key.failure())
    return Success(tuple(Endpoint(url, key.unwrap()) for url in base_urls(agent)))


def base_urls(agent: AgentParameters) -> tuple[str, ...]:
    """The addresses that end in /v1 or the like, without a slash at their end."""
    if agent.api_base_url is not None:
        urls = (url.strip().rstrip("/") for url in agent.api_base_url.split(","))
        return tuple(filter(None, urls))
    if agent.model_provider == "OpenRouter":
        return (OPENROUTER,)
    if agent.model_provider == "SelfHosted":
        host = agent.language_model_server_scheme_host.rstrip("/")
        return (f"{host}:{agent.vllm_server_port}/v1",)
    return (OPENAI,)


def _url_problem(url: str) -> str | None:
    """Why no server can be asked there; addresses are recorded, so no secret may be in them."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or re.search(r"\s", url):
        return f"{url!r} is no address; expected one like https://api.openai.com/v1"
    if parts.username or parts.password or parts.query:
        return "an address with a user, a password or a query; keys belong into the environment"
    return None


def _key(agent: AgentParameters, environment: Mapping[str, str]) -> Result[str, str]:
    variable = agent.api_key_variable or KEY_VARIABLES.get(agent.model_provider)
    if variable is None:
        return Success(NO_KEY)
    key = environment.get(variable, "").strip()
    if key:
        return Success(key)
    return Failure(
        f"agents.{agent.name}: {agent.model_provider} needs an API key; set {variable} in the "
        "environment or in a file .env"
    )


def environment(folder: Path = Path()) -> dict[str, str]:
    """The variables of the process, over those of the folder's file .env."""
    file = folder / ".env"
    if not file.is_file():
        return dict(os.environ)
    from dotenv import dotenv_values

    return {**{k: v for k, v in dotenv_values(file).items() if v is not None}, **os.environ}


def make_client(endpoint: Endpoint, *, timeout: float, connections: int) -> Any:
    """An `openai.AsyncOpenAI` that never retries by itself: `nip_fn.retries` alone decides.

    `timeout` in seconds, for each request; at most so many `connections` are open at a time.
    """
    return _client(endpoint, _http(endpoint, connections), timeout)


class Chats:
    """A server's chat completions, as its `client`, an `openai.AsyncOpenAI`, would ask for them.

    The address and the headers are the client's, and so are the connections; but the client works
    them out anew for each request, which took about half of the processor time of a request.
    """

    def __init__(self, endpoint: Endpoint, *, timeout: float, connections: int) -> None:
        """As `make_client`; close it with `aclose`."""
        import httpx2

        self._http = _http(endpoint, connections)
        self.client = _client(endpoint, self._http, timeout)
        self._url = httpx2.URL(f"{self.client.base_url}chat/completions")
        own = {**self.client.default_headers, **self.client.auth_headers}
        self._headers = httpx2.Headers({k: v for k, v in own.items() if isinstance(v, str)})
        self._request = partial(
            httpx2.Request, "POST", self._url, extensions={"timeout": _timeout(timeout).as_dict()}
        )

    async def post(self, body: bytes) -> Any:
        """The `httpx2.Response` to that JSON, whatever its status, with its body."""
        return await self._http.send(self._request(headers=self._headers, content=body))

    async def aclose(self) -> None:
        """Close all connections."""
        await self.client.close()


def _client(endpoint: Endpoint, http: Any, timeout: float) -> Any:
    import openai

    return openai.AsyncOpenAI(
        base_url=endpoint.url,
        api_key=endpoint.key,
        max_retries=0,
        timeout=_timeout(timeout),
        http_client=http,
    )


def _timeout(seconds: float) -> Any:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))


def _http(endpoint: Endpoint, connections: int) -> Any:
    """What speaks HTTP, through aiohttp: in half the time of the client's own transport, and in a
    fifth of it with hundreds of connections.
    """
    import httpx2
    import openai

    # OPENAI_LOG sets the client's own logger alone.
    logging.getLogger("httpx2").setLevel(logging.getLogger("openai").level)
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    # Without TLS there is nothing to verify, and certificates take 60 ms to load.
    return openai.DefaultAioHttpClient(limits=limits, verify=not endpoint.url.startswith("http:"))
