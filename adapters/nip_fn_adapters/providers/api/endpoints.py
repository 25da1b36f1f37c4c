"""The servers of agents' models: their addresses, their keys, and the proxies on the way."""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.params.agent import OPTIONS, AgentParameters

OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
KEY_VARIABLES = {"OpenAI": "OPENAI_API_KEY", "OpenRouter": "OPENROUTER_API_KEY"}

BASE_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")  # the newer name first

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

    Failure: an address is not one, the key is missing, or no proxy of that kind can be used.
    """
    urls = base_urls(agent)
    problem = address_problem(agent) or next(filter(None, map(_proxy_problem, urls)), None)
    if problem is not None:
        return Failure(problem)
    return _key(agent, environment).map(lambda key: tuple(Endpoint(url, key) for url in urls))


def address_problem(agent: AgentParameters) -> Problem | None:
    """A problem if one of the agent's addresses is none."""
    problems = filter(None, map(_url_problem, base_urls(agent) or ("",)))
    problem = next(problems, None)
    return problem and problem.at(f"agents.{agent.name}.api_base_url")


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


def has_no_path(url: str) -> bool:
    """True if the address ends with its host."""
    return urlsplit(url).path in ("", "/")


def _url_problem(url: str) -> Problem | None:
    try:
        address = urlsplit(url)
        whole = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        whole = False
    if not whole or re.search(r"\s", url):
        return Problem(
            f"{url!r} is not the address of a server",
            remedy="give one like https://api.openai.com/v1",
        )
    # Addresses are recorded and logged, so no secret may be part of one.
    if address.username or address.password or address.query:
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


class Proxy(NamedTuple):
    """A proxy that the environment names.  Its text does not show its password."""

    url: str
    variable: str

    def __str__(self) -> str:
        address = urlsplit(self.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]} ({self.variable})"


def proxy_of(url: str) -> Proxy | None:
    """The proxy through which an address is reached; None if it is reached directly."""
    address, proxies = urlsplit(url), getproxies()
    name = address.scheme if proxies.get(address.scheme) else "all"
    proxy = proxies.get(name)
    if not proxy or proxy_bypass(address.netloc):
        return None
    return Proxy(proxy if "://" in proxy else f"http://{proxy}", f"{name.upper()}_PROXY")


def _proxy_problem(url: str) -> Problem | None:
    proxy = proxy_of(url)
    if proxy is None or re.match(r"https?://[^/]", proxy.url):
        return None
    host = urlsplit(url).hostname
    return Problem(
        f"it is to be reached through the proxy {proxy}, and only HTTP proxies can be used",
        address=url,
        remedy=f"name one like http://HOST:PORT in {proxy.variable}, or add {host} to NO_PROXY",
    )


def clear_text_warning(endpoint: Endpoint) -> str:
    """A warning that the key can be read on its way; "" if it cannot be."""
    address, proxy = urlsplit(endpoint.url), proxy_of(endpoint.url)
    stays = proxy is None and _is_loopback(address.hostname or "")
    if address.scheme == "https" or endpoint.key == NO_KEY or stays:
        return ""
    route = f", through the proxy {proxy}" if proxy else ""
    return f"the API key is sent to {endpoint.url} unencrypted{route}; use https, or a tunnel"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def environment(folder: Path = Path()) -> dict[str, str]:
    """The environment variables; those of the process override those of the folder's .env."""
    file = folder / ".env"
    if not file.is_file():
        return dict(os.environ)
    from dotenv import dotenv_values

    # What is set for one command is meant for it, and must not be overridden by a file.
    return {**{k: v for k, v in dotenv_values(file).items() if v is not None}, **os.environ}
