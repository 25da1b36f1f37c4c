"""Failures of requests: read from exceptions and answers, and described to people."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from shlex import quote

import aiohttp
import httpx2
import openai
from aiohttp.http_exceptions import ContentEncodingError

from nip_fn.errors import Problem
from nip_fn_adapters.api.clients import RequestError
from nip_fn_adapters.api.endpoints import NO_KEY, Endpoint
from nip_fn_adapters.api.pace import seconds
from nip_fn_adapters.api.replies import one_line, read_refusal
from nip_fn_adapters.api.retries import FailureKind, RequestFailure, kind_of

_CAUSES: dict[FailureKind, str] = {
    "rate_limit": "the server takes no more requests",
    "server": "the server fails",
    "connection": "the server cannot be reached",
    "proxy": "the proxy does not lead to the server",
    "timeout": "the server does not answer in time",
    "conflict": "the server is busy",
    "malformed": "the server does not answer in the JSON of OpenAI's API",
    "truncated": "the server's answer breaks off",
    "empty": "the server answers without a reply",
    "key": "the server refuses the API key",
    "quota": "the account has no credit left",
    "model": "the server does not have what is requested",
    "moved": "the server sends requests to another address",
    "too_large": "the server finds the prompt too long",
    "file_too_large": "the server finds the file too large",
    "filtered": "the server refuses the prompt for its content",
    "refused": "the server refuses the request",
}

_REMEDIES: dict[FailureKind, str] = {
    "connection": "check the address (api_base_url), and that the server runs",
    "proxy": "name another proxy there, or the server's host in NO_PROXY",
    "moved": "check the address (--base-url)",
    "malformed": "check the address (api_base_url): it ends in /v1 or the like",
    "quota": "add credit to the account",
    "model": "check --base-url, which --resume takes, too, and the name of the model, which only a "
    "new run can change",
    "too_large": "set fewer rounds or shorter messages, or use a model with a longer context",
}

# Raised only before a request is sent: by a look-up of a name, a certificate, a route.
_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    httpx2.ConnectError,
)


# Nothing but another request would help.
_LASTING: tuple[FailureKind, ...] = ("too_large", "file_too_large", "refused")


def failure_of(error: Exception) -> RequestFailure:
    """The failure that an exception of the client or of its connection stands for."""
    if isinstance(error, openai.APIStatusError):
        body = error.body if isinstance(error.body, dict) else {}
        kind, message = kind_of(error.status_code, error.code or ""), body.get("message") or ""
        if kind == "too_large" and error.request.url.path.endswith("/files"):
            size = int(error.request.headers.get("content-length", 0))
            kind, message = "file_too_large", f"{size:,} bytes. {message}"
        return RequestFailure(
            kind=kind,
            status=error.status_code,
            message=one_line(message),
            code=error.code or "",
            param=error.param or "",
            retry_after=retry_after(error.response.headers, datetime.now(UTC)),
        )
    # The client wraps time-outs and refused connections alike; only the causes tell them apart.
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    cause = next((cause for cause in causes if isinstance(cause, _TOLD_APART)), causes[-1])
    if isinstance(cause, RequestError):
        return cause.failure
    # Whoever wraps knows that nothing was sent; the innermost cause may be any error of a socket.
    if any(isinstance(cause, _NOT_SENT) for cause in causes):
        message = next(filter(None, map(one_line, reversed(causes))), "")
        return RequestFailure("connection", message=message, reached=False)
    if isinstance(cause, TimeoutError):
        return RequestFailure("timeout")
    if isinstance(cause.__cause__, ContentEncodingError):
        return RequestFailure("malformed", message="its body is not compressed as it says")
    if isinstance(cause, aiohttp.ClientPayloadError):
        return RequestFailure("truncated", message="the connection closed before its end")
    if isinstance(cause, _MALFORMED):
        return RequestFailure("malformed", message=one_line(getattr(cause, "message", cause)))
    dropped = isinstance(cause, aiohttp.ServerDisconnectedError | ConnectionResetError)
    return RequestFailure("connection", message=one_line(cause), dropped=dropped)


# An answer whose head is none.
_MALFORMED = (aiohttp.ClientResponseError,)
_TOLD_APART = (RequestError, TimeoutError, aiohttp.ClientPayloadError, *_MALFORMED)


def failure_in(body: bytes, status: int, headers: Mapping[str, str]) -> RequestFailure:
    """The failure that an answer with an error status stands for."""
    wait = retry_after(headers, datetime.now(UTC))
    return read_refusal(body, status)._replace(retry_after=wait)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The seconds that an answer asks to wait, given in seconds, in milliseconds or as a date."""
    text = headers.get("retry-after", "").strip()
    # As OpenAI's own client does it, the milliseconds come first: the seconds are rounded.
    exact = seconds(f"{headers.get('retry-after-ms', '')}ms")
    plain = exact if exact is not None else seconds(text)
    if plain is not None or not text:
        return plain
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError):
        return None


def describe(
    server: Endpoint, purpose: str, failure: RequestFailure, reason: str = "", remedy: str = ""
) -> Problem:
    """The failure as a problem at the server's address, without its key even if the server quotes
    it.

    Args:
        server: the server that was asked.
        purpose: a noun phrase: the model that was asked, or the work that failed.
        failure: what went wrong.
        reason: why it is not tried again; "" if it is, or if that is obvious.
        remedy: see `remedy_for`.
    """
    status = f" ({failure.status})" if failure.status else ""
    # Servers quote a wrong key, whole or in part, and a part would escape the replacement below.
    message = "" if failure.kind == "key" else failure.message.rstrip(".")
    if server.key != NO_KEY:
        message = message.replace(server.key, "***")
    text = f"{_CAUSES[failure.kind]}{status}{message and ': '}{message}"
    told = "; ".join(filter(None, (text, reason)))
    problem = Problem(told, remedy=remedy, lasting=failure.kind in _LASTING)
    return problem.at(purpose).at(server.url)


def remedy_for(failure: RequestFailure, key_variable: str | None) -> str:
    """The remedy for a failure; "" if there is nothing to do but to try later."""
    if failure.kind == "key" and key_variable:
        return f"check {key_variable}, in the environment or in a file .env"
    if failure.kind == "key":
        return (
            "name the environment variable that holds the key, as in --set "
            "agents._default.api_key_variable=VARIABLE (which --resume takes, too)"
        )
    if failure.moved_to:
        # Quoted, since it is the server's word, and will be pasted into a shell.
        return f"if you trust it, run or resume with --base-url {quote(failure.moved_to)}"
    return _REMEDIES.get(failure.kind, "")
