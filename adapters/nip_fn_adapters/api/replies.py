"""From a request to the JSON that is sent, and from the JSON that comes back to completions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from nip_fn.game.reply import Completion, FinishReason
from nip_fn.keys import Key, fold_in, seed_of
from nip_fn.prompts.chat import Message
from nip_fn.run.request import Request
from nip_fn_adapters.api.pace import seconds
from nip_fn_adapters.api.retries import FailureKind, kind_of
from nip_fn_adapters.api.rows import message_of

SEED_BITS = 31  # a positive number in any provider's integers

MAX_SAID = 300  # characters of a server's own words

_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation"})
_LEFT_OUT = ("seed", "prompt_cache_key", "name")  # fields that a request can do without


class Capabilities(NamedTuple):
    """What was found out about a model at a server."""

    together: bool = True  # it takes n
    new_limit: bool = False  # it takes max_completion_tokens in place of max_tokens
    left_out: frozenset[str] = frozenset()  # fields that it refuses


class Problem(NamedTuple):
    """Why an attempt gave no replies."""

    kind: FailureKind
    status: int | None = None
    said: str = ""  # one line, in the server's words or those of the connection
    code: str = ""
    param: str = ""
    retry_after: float | None = None  # seconds


class Answered(NamedTuple):
    """What came back: replies, perhaps fewer than were asked for."""

    completions: tuple[Completion, ...]
    num_choices: int  # that the server made


class _Text(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    message: _Text | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str | None = None
    code: int | str | None = None
    param: str | None = None


class _Body(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_Body)


def body_of(request: Request, keys: Sequence[Key], quirks: Capabilities, caches: bool) -> bytes:
    """The JSON that asks for a reply for each key; only what is set is in it.

    `caches`: name the prompt's beginning, so that requests with the same find the same cache.
    """
    fields: dict[str, Any] = {
        "model": request.adapter or request.model,
        "messages": [_message(message, quirks) for message in request.chat],
        "n": len(keys) if len(keys) > 1 else None,
        "max_completion_tokens" if quirks.new_limit else "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "repetition_penalty": request.repetition_penalty,
        "seed": seed_of(fold_in(keys[0], *(key.hex() for key in keys[1:]), "seed"), SEED_BITS),
        "prompt_cache_key": _cache_key(request) if caches else None,
    }
    return msgspec.json.encode(
        {
            name: value
            for name, value in fields.items()
            if value is not None and name not in quirks.left_out
        }
    )


def _message(message: Message, quirks: Capabilities) -> dict[str, Any]:
    named = "name" not in quirks.left_out
    return message_of(message if named else msgspec.structs.replace(message, name=None))


def _cache_key(request: Request) -> str:
    """The same for all chats of an agent that begin alike."""
    digest = blake2b(request.chat[0].content.encode(), digest_size=8).hexdigest()
    return f"{request.agent}-{digest}"


def learn(quirks: Capabilities, problem: Problem) -> Capabilities | None:
    """What a refusal teaches about the server's ways; None: nothing, it is about the request.

    >>> learn(Quirks(), Problem("refused", 400, "Only n = 1 is supported.", param="n")).together
    False
    >>> learn(Quirks(), Problem("refused", 400, "Use 'max_completion_tokens'.")).new_limit
    True
    >>> learn(Quirks(), Problem("refused", 400, "temperature must be 1", param="temperature"))
    """
    if problem.kind != "refused" or problem.status not in (400, 422):
        return None
    fields = ("n", "max_tokens", *_LEFT_OUT)
    named = [field for field in fields if problem.param.rpartition(".")[2] == field]
    for field in named or [field for field in fields if _names(problem.said, field)]:
        if field == "n" and quirks.together:
            return quirks._replace(together=False)
        if field in _LEFT_OUT and field not in quirks.left_out:
            return quirks._replace(left_out=quirks.left_out | {field})
    unsupported = problem.code == "unsupported_parameter" and "max_tokens" in named
    if not quirks.new_limit and (unsupported or "max_completion_tokens" in problem.said):
        return quirks._replace(new_limit=True)
    return None


def _names(text: str, field: str) -> bool:
    marks = r"['\"`.]" if field == "name" else r"\b"
    return re.search(rf"{marks}{field}\b", text) is not None


def both(one: Capabilities, other: Capabilities) -> Capabilities:
    """What is known where one request has taught this and another that."""
    return Capabilities(
        one.together and other.together,
        one.new_limit or other.new_limit,
        one.left_out | other.left_out,
    )


def differences(before: Capabilities, after: Capabilities) -> Iterator[str]:
    """A line for each thing that was learnt, for people."""
    if after.together < before.together:
        yield "makes one reply at a time, so replies are asked for one by one"
    if after.new_limit > before.new_limit:
        yield "takes max_completion_tokens in place of max_tokens"
    for field in sorted(after.left_out - before.left_out):
        yield f"takes no {field}, so it is left out"


def read_answer(
    content: bytes, headers: Mapping[str, str], asked: Request, most: int
) -> Answered | Problem:
    """The replies in the body of an answer that says 200, in their order, at most so many.

    Those that the server says it failed at are left out.  The seconds are left at 0.
    """
    try:
        body = _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Problem("malformed", 200, one_line(error))
    if not body.choices:
        return _no_choices(body)
    choices = sorted(body.choices, key=lambda choice: choice.index or 0)
    whole = [choice for choice in choices if choice.finish_reason != "error"]
    if not whole:
        return Problem("server", 200, "it failed while it wrote the reply")
    return Answered(_completions(body, whole[:most], headers, asked), len(choices))


def _no_choices(body: _Body) -> Problem:
    if body.error is None:
        return Problem("empty", 200)
    code = body.error.code
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return _of_error(body.error, status)


def read_refusal(content: bytes, status: int) -> Problem:
    """Why a request was refused, from the body of the answer that says so."""
    try:
        error = _DECODER.decode(content).error or _Error()
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = _Error()
    return _of_error(error, status)


def _of_error(error: _Error, status: int) -> Problem:
    code, said = str(error.code or ""), one_line(error.message or "")
    return Problem(kind_of(status, code), status, said, code, error.param or "")


def _completions(
    body: _Body, choices: Sequence[_Choice], headers: Mapping[str, str], asked: Request
) -> tuple[Completion, ...]:
    usage = body.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    texts = [choice.message.content if choice.message else None for choice in choices]
    tokens = shares(usage.completion_tokens or 0, [len(text or "") for text in texts])
    return tuple(
        Completion(
            text=text,
            finish_reason=_reason(choice),
            model=body.model or asked.adapter or asked.model,
            prompt_tokens=0 if place else usage.prompt_tokens or 0,
            completion_tokens=tokens[place],
            cached_tokens=0 if place else details.cached_tokens or 0,
            request_id=headers.get("x-request-id") or body.id or "",
        )
        for place, (choice, text) in enumerate(zip(choices, texts, strict=True))
    )


def _reason(choice: _Choice) -> FinishReason:
    if choice.message is not None and choice.message.refusal:
        return "content_filter"
    return _REASONS.get(choice.finish_reason, "other")


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """The total divided among the weights, as nearly in proportion as whole numbers can be.

    >>> shares(10, [1, 1, 1]), shares(7, [0, 0]), shares(9, [2, 1])
    ([4, 3, 3], [4, 3], [6, 3])
    """
    weights = weights if any(weights) else [1] * len(weights)
    whole = sum(weights)
    floors = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for place in by_rest[: total - sum(floors)]:
        floors[place] += 1
    return floors


def withheld(problem: Problem, asked: Request, keys: Sequence[Key]) -> tuple[Completion, ...]:
    """The replies where the provider refuses a prompt for its content; () where it is not that."""
    if problem.kind != "refused" or problem.code not in _FILTER_CODES:
        return ()
    model = asked.adapter or asked.model
    return tuple(Completion(text=None, finish_reason="content_filter", model=model) for _ in keys)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The seconds that an answer asks to wait: given as such, in milliseconds, or as a date."""
    text = headers.get("retry-after", "").strip()
    exact = seconds(f"{headers.get('retry-after-ms', '')}ms")
    plain = exact if exact is not None else seconds(text)
    if plain is not None or not text:
        return plain
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError):
        return None


def one_line(text: object) -> str:
    """A text as one line that is not too long."""
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_SAID else f"{line[: MAX_SAID - 3]}..."
