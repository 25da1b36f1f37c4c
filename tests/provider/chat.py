"""Chat completions."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from .faults import BAD, Error
from .replies import (
    END,
    Message,
    alternatives,
    count_tokens,
    digest_of,
    log_probability,
    prompt_tokens,
    reply_text,
    token_id,
    tokens,
)
from .settings import Settings

MOST_PREFIXES = 1 << 18


class ChatRequest(msgspec.Struct, frozen=True):
    """The fields of a chat's body that make a difference."""

    model: str
    messages: list[Message]
    n: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None


class Usage(NamedTuple):
    """Tokens."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0  # of the completion


class Choice(NamedTuple):
    """One reply."""

    text: str | None
    finish_reason: str | None
    refusal: str | None = None


class Prefixes:
    """The beginnings of prompts that were seen before, as a provider's cache keeps them."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def cached(self, model: str, messages: Sequence[Message]) -> int:
        """Tokens of the longest run of messages that another prompt began with; remembers this."""
        place, tokens, cached = hash(model), 0, 0
        for message in messages:
            place = hash((place, message.role, message.text))
            tokens += prompt_tokens(message)
            if place in self._seen:
                cached = tokens
            else:
                self._seen[place] = None
        while len(self._seen) > MOST_PREFIXES:
            del self._seen[next(iter(self._seen))]
        return cached


def refusal_of(request: ChatRequest, body: dict[str, Any], settings: Settings) -> Error | None:
    """The error of a chat that is not answered."""
    for field in settings.refuses:
        named = field == "name" and any("name" in message for message in body.get("messages", ()))
        if field in body or named:
            place = "messages.1.name" if named else field
            message = settings.refusal.format(field)
            return Error(400, message, BAD, "unsupported_parameter", place)
    if request.logprobs and settings.logprobs == "forbidden":
        return Error(403, "You are not allowed to request logprobs from this model", BAD)
    if request.top_logprobs and not request.logprobs:
        return Error(400, "logprobs must be true", BAD, "invalid_value", "top_logprobs")
    if request.stream:
        return Error(400, "Streaming is not supported.", BAD, "unsupported_value", "stream")
    if not request.messages:
        return Error(400, "Invalid 'messages': empty array.", BAD, "empty_array", "messages")
    if request.n is not None and not 1 <= request.n <= 128:
        return Error(400, "Invalid 'n': not from 1 to 128.", BAD, "invalid_value", "n")
    if (request.n or 1) > 1 and settings.supports_n == "refused":
        return Error(400, "Only n = 1 is supported.", BAD, "unsupported_value", "n")
    return None


def complete(
    request: ChatRequest, settings: Settings, prefixes: Prefixes, fault: str | None, request_id: str
) -> tuple[bytes, Usage]:
    """The answer's JSON, and what it cost; `fault` is what is wrong with it."""
    digest = digest_of(request.model, request.messages, request.seed, settings.salt)
    n = (request.n or 1) if settings.supports_n is True else 1
    texts = (reply_text(settings, request.messages, digest, index) for index in range(n))
    most = request.max_completion_tokens or request.max_tokens
    reasoning = min(settings.reasoning_tokens, most or settings.reasoning_tokens)
    left = None if most is None else most - reasoning
    choices = _spoilt([_cut(text, left) for text in texts], fault)
    usage = Usage(
        prompt=3 + sum(map(prompt_tokens, request.messages)),
        cached=prefixes.cached(request.model, request.messages) if settings.caching else 0,
        completion=sum(reasoning + count_tokens(choice.text or "") for choice in choices),
        reasoning=reasoning * len(choices),
    )
    if fault == "null-body":
        return b"null", usage
    if fault == "error-200":
        message = "The upstream provider had an error."
        return msgspec.json.encode({"error": {"code": 502, "message": message}}), usage
    served = settings.serves_as.get(request.model, request.model)
    answer = {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "another-model" if fault == "other-model" else served,
        "choices": _choices(choices, request, settings, fault),
        "usage": None if fault == "no-usage" else _usage(usage, fault),
        "service_tier": "default",
        "system_fingerprint": "fp_fake000001",
    }
    if settings.token_ids and request.return_token_ids:
        texts = "".join(message.text for message in request.messages)
        answer |= {"prompt_logprobs": None, "prompt_token_ids": list(map(token_id, tokens(texts)))}
    return msgspec.json.encode(answer), usage


def _cut(text: str, most: int | None) -> Choice:
    if most is None or count_tokens(text) <= most:
        return Choice(text, "stop")
    return Choice(text[: 4 * most], "length")


def _spoilt(choices: list[Choice], fault: str | None) -> list[Choice]:
    match fault:
        case "empty-choices" | "null-body" | "error-200":
            return []
        case "null-content":
            return [Choice(None, "stop") for _ in choices]
        case "empty-content":
            return [Choice("", "stop") for _ in choices]
        case "content_filter":
            return [Choice(None, "content_filter") for _ in choices]
        case "length":
            return [Choice((c.text or "")[: len(c.text or "") // 2], "length") for c in choices]
        case "refusal":
            return [Choice(None, "stop", "I'm sorry, I cannot assist with that.") for _ in choices]
        case "no-finish-reason":
            return [Choice(c.text, None) for c in choices]
        case "unknown-finish":
            return [Choice(c.text, "eos_surprise") for c in choices]
        case "error-choice":
            return [Choice("", "error") for _ in choices]
        case "wrong-n":
            return choices[:-1] if len(choices) > 1 else choices * 2
        case "wrong-n-more":
            return [*choices, choices[-1]]
        case _:
            return choices


def _choices(
    choices: Sequence[Choice], request: ChatRequest, settings: Settings, fault: str | None
) -> list[dict[str, Any]]:
    written = [
        {
            "index": index,
            "message": {"role": "assistant", "content": _content(c, fault), "refusal": c.refusal},
            "finish_reason": c.finish_reason,
            **_token_fields(c, request, settings),
        }
        for index, c in enumerate(choices)
    ]
    return written[::-1] if fault == "reversed" else written


def _token_fields(choice: Choice, request: ChatRequest, settings: Settings) -> dict[str, Any]:
    """The fields of a choice about its tokens, as OpenAI or vLLM has them.

    vLLM counts the end token, and lists the ids beside the log-probabilities.
    """
    ends = [END] if settings.token_ids and choice.finish_reason == "stop" else []
    drawn = [*tokens(choice.text or ""), *ends]
    content = [
        {
            "token": token,
            "logprob": log_probability(token),
            "bytes": list(token.encode()),
            "top_logprobs": [
                {"token": each, "logprob": log_probability(each), "bytes": list(each.encode())}
                for each in alternatives(token, request.top_logprobs or 0)
            ],
        }
        for token in drawn
    ]
    gives = bool(request.logprobs) and settings.logprobs == "given"
    fields: dict[str, Any] = {"logprobs": {"content": content, "refusal": None} if gives else None}
    if settings.token_ids:
        ids = list(map(token_id, drawn)) if request.return_token_ids else None
        fields |= {"token_ids": ids, "stop_reason": None}
    return fields


def _content(choice: Choice, fault: str | None) -> Any:
    if fault != "parts":
        return choice.text
    text = choice.text or ""
    return [{"type": "text", "text": part} for part in (text[:3], text[3:])]


def _usage(usage: Usage, fault: str | None) -> dict[str, Any]:
    written: dict[str | None, Callable[[int], Any]] = {
        "odd-usage": lambda count: str(count) if count % 2 else float(count),
        "null-usage": lambda count: None,
        "negative-usage": lambda count: -count,
    }
    write = written.get(fault, lambda count: count)
    return {
        "prompt_tokens": write(usage.prompt),
        "completion_tokens": write(usage.completion),
        "total_tokens": write(usage.prompt + usage.completion),
        "prompt_tokens_details": {"cached_tokens": write(usage.cached), "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }
