"""What went wrong at a server: from exceptions to kinds of failure, and to a line for people."""

from collections.abc import Mapping
from datetime import UTC, datetime

import httpx2
import openai

from nip_fn_adapters.api.endpoints import NO_KEY, Endpoint
from nip_fn_adapters.api.replies import Problem, one_line, read_refusal, retry_after
from nip_fn_adapters.api.retries import FailureKind, kind_of

_CAUSES: dict[FailureKind, str] = {
    "rate_limit": "takes no more requests",
    "server": "fails",
    "connection": "cannot be reached",
    "timeout": "does not answer in time",
    "conflict": "is busy",
    "malformed": "does not answer in the JSON of OpenAI's API",
    "empty": "answers without a reply",
    "key": "refuses the API key",
    "quota": "has nothing left to charge",
    "model": "does not have what is asked for",
    "too_large": "finds the request too large",
    "refused": "refuses the request",
}

_ADVICE: dict[FailureKind, str] = {
    "connection": "check the address (api_base_url), and that the server runs",
    "malformed": "check the address (api_base_url): it ends in /v1 or the like",
    "quota": "pay in there",
    "model": "check model_name and api_base_url",
    "too_large": "fewer rounds or shorter messages, or a model with a longer context",
}


def headers_of(response: httpx2.Response) -> dict[str, str]:
    """An answer's headers, their names in lower case."""
    raw = response.headers.raw
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def problem_of(error: Exception) -> Problem:
    """What an exception of the client or of its connection stands for."""
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, headers_of(error.response))
    causes = list(_causes(error))
    if any(isinstance(cause, TimeoutError) for cause in causes):
        return Problem("timeout")
    return Problem("connection", said=one_line(causes[-1]))


def problem_in(body: bytes, status: int, headers: Mapping[str, str]) -> Problem:
    """What an answer stands for whose status is that of no success."""
    problem = read_refusal(body, status)
    return problem._replace(retry_after=retry_after(headers, datetime.now(UTC)))


def _of_status(error: openai.APIStatusError, headers: Mapping[str, str]) -> Problem:
    code = error.code or ""
    body = error.body if isinstance(error.body, dict) else {}
    return Problem(
        kind=kind_of(error.status_code, code),
        status=error.status_code,
        said=one_line(body.get("message") or ""),
        code=code,
        param=error.param or "",
        retry_after=retry_after(headers, datetime.now(UTC)),
    )


def _causes(error: BaseException) -> list[BaseException]:
    """The exception and what it came of, up to the first cause."""
    found = [error]
    while found[-1].__cause__ is not None:
        found.append(found[-1].__cause__)
    return found


def told(server: Endpoint, model: str, problem: Problem) -> str:
    """What a server does, as the beginning of a line; without its key, even if it says that."""
    status = f" ({problem.status})" if problem.status else ""
    said = "" if problem.kind == "key" else problem.said
    if server.key != NO_KEY:
        said = said.replace(server.key, "***")
    return f"{server.url} {_CAUSES[problem.kind]}{status} for {model}{said and ': '}{said}"


def advice(problem: Problem, key_variable: str | None) -> str:
    """What to do about it; "" where there is nothing but to try later."""
    if problem.kind == "key" and key_variable:
        return f"check {key_variable}, in the environment or in a file .env"
    if problem.kind == "key":
        return "name the environment variable that holds its key (api_key_variable)"
    return _ADVICE.get(problem.kind, "")
