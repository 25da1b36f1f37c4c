"""Translation of requests into the JSON of OpenAI's API, and of its answers into completions.

No provider keeps to the specification in full; what they do instead is told apart here and in
`refusals`, and what a refusal teaches about a server is kept in its `Capabilities`.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import exp
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from nip_fn.errors import one_line
from nip_fn.game.chat import Message
from nip_fn.game.reply import Completion, FinishReason, is_empty_at_limit
from nip_fn.game.tokens import SampledTokens
from nip_fn.game.verdict_probability import verdict_probabilities
from nip_fn.keys import Key, fold_in, seed_of
from nip_fn.params.agent import fields_in
from nip_fn.params.base import LARGEST
from nip_fn.run.request import Request
from nip_fn_adapters.decoding import UNREADABLE, decode_body
from nip_fn_adapters.providers.api.capabilities import Capabilities
from nip_fn_adapters.providers.api.refusals import error_in
from nip_fn_adapters.providers.api.retries import FailureKind, RequestFailure
from nip_fn_adapters.providers.api.rows import message_of

SEED_BITS = 31  # positive in any provider's integers

# Of an answer, for each token that is requested: a character of four bytes may be written as twelve
# (\ud83d\ude00), and some tokens are long.
BYTES_PER_TOKEN = 64
BYTES_PER_SCORE = 512  # of a token's log-probability: with its text, once more as a list of bytes
TOP_LOGPROBS = 20  # the most that OpenAI and vLLM give of a token, unless vLLM is told otherwise
BYTES_PER_ID = 8  # of a character of the prompt, whose token ids vLLM adds to those of the reply
SHORT_ANSWER = 1 << 20  # bytes that any answer may have

# The values at which settings of a request leave the odds of two verdicts as the temperature does.
NEUTRAL = {
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}

_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
# The prompts that are refused for what they are, and how that is recorded.
_WITHHELD: dict[FailureKind, FinishReason] = {
    "filtered": "prompt_filtered",
    "too_large": "prompt_too_long",
}


class Answered(NamedTuple):
    """The replies in an answer, perhaps fewer than were requested."""

    completions: tuple[Completion, ...]
    num_choices: int  # in the answer, usable or not
    reasoning_tokens: int = 0  # written before all of them, where the provider counts these


_NULL = msgspec.Raw(b"null")
_TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]


# Every field below may be absent or null, and numbers may be text.  A stricter type would turn the
# usable reply of an odd server into a failure, after it was paid for.
class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None

    @property
    def text(self) -> str | None:
        """The content; its parts, where a server sends it so, joined."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content


class _Choice(msgspec.Struct):
    index: int | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    # Read apart: servers have these in forms of their own, with which a reply is as usable.
    logprobs: msgspec.Raw = _NULL
    token_ids: msgspec.Raw = _NULL  # vLLM's, with `return_token_ids`


class _Score(msgspec.Struct):
    # Rounding may lift a probability of 1 a little.
    logprob: Annotated[float, Meta(ge=-LARGEST, le=1.0)]
    id: _TokenId | None = None  # llama.cpp's


class _Scores(msgspec.Struct):
    content: list[_Score] | None = None


class _Alternative(msgspec.Struct):
    token: str
    logprob: float


class _Choices(_Alternative):
    top_logprobs: list[_Alternative] = []


class _Alternatives(msgspec.Struct):
    content: list[_Choices]


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Body, strict=False)
_SCORES = msgspec.json.Decoder(_Scores | None, strict=False)
_ALTERNATIVES = msgspec.json.Decoder(_Alternatives, strict=False)
_IDS = msgspec.json.Decoder(list[_TokenId] | None, strict=False)


def body_of(
    request: Request, keys: Sequence[Key], capabilities: Capabilities, is_openai: bool
) -> bytes:
    """The JSON that requests a reply for each key; it holds only what is set.

    Args:
        request: its chat, model and sampling parameters.
        keys: one for each reply, from which the seed is derived.
        capabilities: of the model at the server.
        is_openai: whether the server is OpenAI's own.  It alone takes the name of the prompt's
            prefix (`prompt_cache_key`), by which it routes requests with the same prefix to the
            same cache; and it gives no token ids.
    """
    added = _added(request, is_openai) - capabilities.left_out
    # Without the log-probability of the token itself, those of others are refused.
    top = "logprobs" in added and "top_logprobs" in added
    fields: dict[str, Any] = {
        "model": request.adapter or request.model,
        "messages": [_message(message, capabilities) for message in request.chat],
        # A server that does not know n may refuse n = 1, too.
        "n": len(keys) if len(keys) > 1 else None,
        "max_completion_tokens" if capabilities.new_limit else "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "repetition_penalty": request.repetition_penalty,
        # From all keys: a later request for the missing siblings must not draw the same replies.
        "seed": seed_of(fold_in(keys[0], *(key.hex() for key in keys[1:]), "seed"), SEED_BITS),
        "prompt_cache_key": prefix_of(request) if "prompt_cache_key" in added else None,
        "logprobs": True if "logprobs" in added else None,
        "top_logprobs": TOP_LOGPROBS if top else None,
        "return_token_ids": True if "return_token_ids" in added else None,
    }
    kept = {
        name: value
        for name, value in fields.items()
        if value is not None and name not in capabilities.left_out
    }
    return msgspec.json.encode({**kept, **fields_in(request.extra_fields)})


def optional_fields(
    request: Request, keys: Sequence[Key], capabilities: Capabilities, is_openai: bool
) -> frozenset[str]:
    """The fields of `body_of` that nip-fn adds by itself and that a request can do without."""
    several = {"n"} if len(keys) > 1 else set[str]()
    return (_added(request, is_openai) | several) - capabilities.left_out


def _added(request: Request, is_openai: bool) -> frozenset[str]:
    """The fields besides n that nip-fn adds by itself, unless they are refused."""
    added = {
        "seed": True,
        "prompt_cache_key": is_openai,
        "logprobs": request.record_tokens,
        "top_logprobs": _may_decide(request),
        "return_token_ids": request.record_tokens and not is_openai,
        "name": any(message.name for message in request.chat),
    }
    return frozenset(name for name, is_sent in added.items() if is_sent)


def _may_decide(request: Request) -> bool:
    """True if the reply may state a verdict, whose probability is to be recorded."""
    return request.record_tokens and bool(request.decisions)


def _message(message: Message, capabilities: Capabilities) -> dict[str, Any]:
    named = "name" not in capabilities.left_out
    return message_of(message if named else msgspec.structs.replace(message, name=None))


def prefix_of(request: Request) -> str:
    """The name of a chat's prefix: that of an agent's first message, which a tree's chats share."""
    digest = blake2b(request.chat[0].content.encode(), digest_size=8).hexdigest()
    return f"{request.agent}-{digest}"


def most_bytes(request: Request, num_replies: int) -> int:
    """The most bytes that so many replies to the request may take, without what is around them."""
    if not request.record_tokens:
        return BYTES_PER_TOKEN * request.max_tokens * num_replies
    prompt = sum(len(message.content) for message in request.chat)
    scores = BYTES_PER_SCORE * (1 + TOP_LOGPROBS * _may_decide(request))
    reply = (BYTES_PER_TOKEN + scores) * request.max_tokens
    return reply * num_replies + BYTES_PER_ID * prompt


def read_answer(
    content: bytes, headers: Mapping[str, str], request: Request, most: int, status: int = 200
) -> Answered | RequestFailure:
    """The replies in the body of an answer that is no error, in the order of their indices.

    A choice whose finish reason is "error" (OpenRouter: the model failed midway) is no reply.

    Args:
        content: the body.
        headers: by name, in lower case; they hold the id of the request.
        request: what was requested, for the model's name where the answer has none.
        most: replies to keep; some servers make more than were requested.
        status: of the answer, below 300.

    Returns:
        The replies with `seconds` left at 0, or why there is none.
    """
    if not content.strip():
        return RequestFailure("empty", status)
    try:
        body = decode_body(content, _DECODER)
    except UNREADABLE as error:
        # Told apart by msgspec's own words: it has one exception for both.
        failure_kind: FailureKind = "truncated" if "truncated" in str(error) else "malformed"
        return RequestFailure(failure_kind, status, one_line(error))
    if not body.choices:
        # Gateways answer 200 and put the model's own error into the body.
        return RequestFailure("empty", status) if body.error is None else error_in(body.error)
    # Servers list choices in any order, some of them without an index.
    choices = sorted(body.choices, key=lambda choice: choice.index or 0)
    whole = [choice for choice in choices if choice.finish_reason != "error"]
    if not whole:
        return RequestFailure("truncated", status, "it failed while it wrote the reply")
    details = (body.usage or _Usage()).completion_tokens_details or _Details()
    completions = _completions(body, whole[:most], headers, request)
    return Answered(completions, len(choices), _count(details.reasoning_tokens))


def _completions(
    body: _Body, choices: Sequence[_Choice], headers: Mapping[str, str], request: Request
) -> tuple[Completion, ...]:
    usage = body.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    texts = [choice.message.text if choice.message else None for choice in choices]
    # The provider counts once for all replies.  The prompt is charged to the first of them, and the
    # completion tokens are divided in proportion to the lengths, so that sums equal the bill.
    tokens = shares(_count(usage.completion_tokens), [len(text or "") for text in texts])
    return tuple(
        Completion(
            text=text,
            finish_reason=_reason(choice, text),
            model=body.model or request.adapter or request.model,
            prompt_tokens=0 if index else _count(usage.prompt_tokens),
            completion_tokens=tokens[index],
            cached_tokens=0 if index else _count(details.cached_tokens),
            request_id=headers.get("x-request-id") or body.id or "",
            tokens=_sampled_tokens(choice) if request.record_tokens else None,
            verdict_probabilities=_verdict_probabilities(choice, request),
        )
        for index, (choice, text) in enumerate(zip(choices, texts, strict=True))
    )


def _sampled_tokens(choice: _Choice) -> SampledTokens | None:
    """The tokens of a reply, as far as they are given in a form that can be understood."""
    try:
        scores, ids = _SCORES.decode(choice.logprobs), _IDS.decode(choice.token_ids)
    except UNREADABLE:
        return None
    content = (scores.content if scores else None) or []
    named = ids or [score.id for score in content if score.id is not None]
    # Numbers of tokens that are not those of the reply are worse than none.
    if not (content or named) or (content and named and len(content) != len(named)):
        return None
    return SampledTokens.of(named, [score.logprob for score in content])


def _verdict_probabilities(choice: _Choice, request: Request) -> tuple[float, ...]:
    """As the verdict was drawn; () where that is not known.

    A server's log-probabilities are those of temperature 1, p, and at temperature T two verdicts
    are drawn in the ratio of their p^(1/T), whatever all other tokens have.  What top_p or a
    penalty makes of them does not follow.  What is not set is taken to be without effect.
    """
    settings = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "repetition_penalty": request.repetition_penalty,
        **fields_in(request.extra_fields),
    }
    changed = any(settings.get(name) not in (None, value) for name, value in NEUTRAL.items())
    if changed or not _may_decide(request):
        return ()
    try:
        drawn = _ALTERNATIVES.decode(choice.logprobs).content
    except UNREADABLE:
        return ()
    temperature = 1.0 if settings["temperature"] is None else settings["temperature"]

    def weights(index: int) -> list[tuple[str, float]]:
        token = drawn[index]
        scores = {each.token: each.logprob for each in (*token.top_logprobs, token)}
        likeliest = max(scores.values())
        if temperature == 0:
            return [(text, float(score == likeliest)) for text, score in scores.items()]
        return [(text, exp((score - likeliest) / temperature)) for text, score in scores.items()]

    if not any(token.top_logprobs for token in drawn):
        return ()
    return verdict_probabilities([token.token for token in drawn], weights, request.decisions)


def _reason(choice: _Choice, text: str | None) -> FinishReason:
    # A refusal may come with the finish reason "stop", as if it were a reply.
    if choice.message is not None and choice.message.refusal:
        return "content_filter"
    # Some servers give no reason, or words of their own such as "eos".  What was written is a reply
    # all the same: to ask for another would pay twice.
    return _REASONS.get(choice.finish_reason, "stop" if text else "other")


def _count(tokens: int | None) -> int:
    return max(0, tokens or 0)


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """The total divided in proportion to the weights, in whole numbers (largest remainders).

    >>> shares(10, [1, 1, 1]), shares(7, [0, 0]), shares(9, [2, 1])
    ([4, 3, 3], [4, 3], [6, 3])
    """
    weights = weights if any(weights) else [1] * len(weights)
    whole = sum(weights)
    floors = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for index in by_rest[: total - sum(floors)]:
        floors[index] += 1
    return floors


def withheld(
    failure: RequestFailure, request: Request, keys: Sequence[Key]
) -> tuple[Completion, ...]:
    """Completions without text, if the provider refuses the prompt itself; else ().

    A prompt that is filtered for its content, or longer than the model's context, is a fact about
    the game, to be recorded, not a fault of the run.
    """
    reason = _WITHHELD.get(failure.kind)
    if reason is None:
        return ()
    model = request.adapter or request.model
    return tuple(Completion(text=None, finish_reason=reason, model=model) for _ in keys)


def report_of_empty(answered: Answered, request: Request) -> str:
    """The words for replies that are empty since they ended at their limit; "" if there are none.

    Hidden reasoning counts towards the limit, and is paid for.
    """
    empty = sum(map(is_empty_at_limit, answered.completions))
    if not empty:
        return ""
    number = f"{empty:,} of {len(answered.completions):,} replies" if empty > 1 else "a reply"
    verb = "are" if empty > 1 else "is"
    reasoning = answered.reasoning_tokens
    spent = f", after {reasoning:,} tokens of hidden reasoning" if reasoning else ""
    return f"{number} {verb} empty at the limit of {request.max_tokens:,} tokens{spent}"
