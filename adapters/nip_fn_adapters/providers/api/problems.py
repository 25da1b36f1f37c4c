"""Failures of requests: read from exceptions and answers, and described to people."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from shlex import quote

import aiohttp
import openai
from aiohttp.http_exceptions import ContentEncodingError

from nip_fn.errors import Problem, one_line
from nip_fn_adapters import clock
from nip_fn_adapters.providers.api.clients import RequestError
from nip_fn_adapters.providers.api.endpoints import NO_KEY, Endpoint
from nip_fn_adapters.providers.api.pace import seconds
from nip_fn_adapters.providers.api.refusals import read_refusal
from nip_fn_adapters.providers.api.retries import FailureKind, RequestFailure

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
    "forbidden": "the server does not allow it",
    "quota": "the account has no credit left",
    "model": "the server does not have the model",
    "address": "the server does not have what is requested",
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
    "model": "check the name of the model, and --base-url",
    "address": "check --base-url, which --resume takes, too",
    "too_large": "set fewer rounds or shorter messages, or use a model with a longer context",
}

# Raised only before a request is sent: by a look-up of a name, a certificate, a route.
_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
)


SHOWN_OF_KEY = 5  # the least of a key that is taken for it: "sk-" and two characters

# Nothing but another request would help.
_LASTING: tuple[FailureKind, ...] = ("too_large", "file_too_large", "model", "refused")


def failure_of(error: Exception) -> RequestFailure:
    """The failure that an exception of the client or of its connection stands for."""
    if isinstance(error, openai.APIStatusError):
        response = error.response
        failure = failure_in(response.content, response.status_code, response.headers)
        if failure.kind == "too_large" and error.request.url.path.endswith("/files"):
            size = int(error.request.headers.get("content-length", 0))
            message = f"{size:,} bytes. {failure.message}"
            return failure._replace(kind="file_too_large", message=message)
        return failure
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
    wait = retry_after(headers, datetime.fromtimestamp(clock.wall(), UTC))
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
    server: Endpoint,
    purpose: str,
    failure: RequestFailure,
    reason: str = "",
    remedy: str = "",
    *,
    lasting: bool | None = None,
) -> Problem:
    """The failure as a problem at the server's address, without its key even if the server quotes
    it.

    Args:
        server: the server that was asked.
        purpose: a noun phrase: the model that was asked, or the work that failed.
        failure: what went wrong.
        reason: why it is not tried again; "" if it is, or if that is obvious.
        remedy: see `remedy_for`.
        lasting: True if only a run with other parameters can help; None: as usual for its kind.
    """
    status = f" ({failure.status})" if failure.status else ""
    # All that a server says of a wrong key is the key.
    message = "" if failure.kind == "key" else without_key(failure.message, server.key)
    message = one_line(message.rstrip("."))
    text = f"{_CAUSES[failure.kind]}{status}{message and ': '}{message}"
    cause = "; ".join(filter(None, (text, reason)))
    is_lasting = failure.kind in _LASTING if lasting is None else lasting
    return Problem(cause, remedy=remedy, lasting=is_lasting).at(purpose).at(server.url)


def without_key(text: str, key: str) -> str:
    """The text with "***" for the key, and for each word that begins as the key does.

    >>> without_key("no sk-abcdef, sk-ab***ef or (sk-abc", "sk-abcdef")
    'no ***, *** or (***'
    """
    if key in ("", NO_KEY):
        return text
    text = text.replace(key, "***")
    # Servers quote a key in part, with stars, and cut what they quote.
    start = re.escape(key[:SHOWN_OF_KEY])
    return re.sub(rf"(?<!\w){start}[^\s,;'\"`)]*", "***", text) if len(key) > SHOWN_OF_KEY else text


def remedy_for(failure: RequestFailure, key_variable: str | None) -> str:
    """The remedy for a failure; "" if retrying later is all that can help."""
    if failure.kind == "key" and key_variable:
        return f"check {key_variable}, in the environment or in a file .env"
    if failure.kind == "forbidden" and key_variable:
        return f"check what the key in {key_variable} may do"
    if failure.kind in ("key", "forbidden"):
        return (
            "name the environment variable that holds the key, as in --set "
            "agents._default.api_key_variable=VARIABLE (which --resume takes, too)"
        )
    if failure.moved_to:
        # Quoted, since it is the server's word, and will be pasted into a shell.
        return f"if you trust it, run or resume with --base-url {quote(failure.moved_to)}"
    return _REMEDIES.get(failure.kind, "")
