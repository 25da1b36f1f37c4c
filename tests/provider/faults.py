"""Faults of the provider, and the requests that they befall.

Before the request is looked at: a status ("429", "500", "404-model", ...), "timeout" (no answer
ever), "reset", "slow" (the answer comes `seconds` late), "die" (the server's process ends).
In a chat's answer: see `chat.py`.  After the request was carried out: "malformed" (the JSON is
cut), "reset-mid-body", "lost" (reset before the first byte), "timeout-after", "die-after",
"502-after" and "504-after" (a gateway has lost the answer).
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from .settings import Fault, Match
from .shapes import Shape, shaped

BEFORE = frozenset({"timeout", "reset", "slow", "die"})
GATEWAYS = {"502-after": 502, "504-after": 504}
UNANSWERED = frozenset({"reset", "reset-mid-body", "lost", "timeout-after", "die-after"})
AFTER = (UNANSWERED - {"reset"}) | {"malformed"} | GATEWAYS.keys()
IN_CHAT = frozenset(
    {
        "empty-choices", "null-content", "empty-content", "content_filter", "length", "refusal",
        "wrong-n", "wrong-n-more", "reversed", "no-usage", "no-finish-reason", "unknown-finish",
        "error-200", "error-choice", "null-body", "other-model", "parts", "odd-usage",
        "null-usage", "negative-usage",
    }
)  # fmt: skip


class Error(NamedTuple):
    """An error as OpenAI's servers put it."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    metadata: dict[str, object] | None = None  # OpenRouter's

    def body(self, shape: Shape = "openai") -> bytes:
        """Its JSON, or what another provider sends in its place; of a gateway's error, HTML."""
        if self.status in (502, 504):
            return f"<html><body><h1>{self.status} {self.message}</h1></body></html>".encode()
        keys = ("message", "type", "param", "code")
        error = {key: getattr(self, key) for key in keys}
        return shaped(shape, error | ({"metadata": self.metadata} if self.metadata else {}))


BAD, LIMIT, SERVER = "invalid_request_error", "rate_limit_error", "server_error"
ERRORS = {
    "400": Error(400, "Invalid value for 'messages'.", BAD),
    "400-context": Error(
        400,
        "This model's maximum context length is 8192 tokens. Please reduce the messages.",
        BAD,
        "context_length_exceeded",
        "messages",
    ),
    "400-flagged": Error(
        400, "Invalid prompt: it was flagged by our usage policy.", BAD, "invalid_prompt"
    ),
    "400-vllm": Error(
        400,
        "This model's maximum context length is 512 tokens. However, your request has 734 input "
        "tokens. Please reduce the length of the input messages.",
        "BadRequestError",
        "400",
    ),
    "401": Error(401, "Incorrect API key provided.", BAD, "invalid_api_key"),
    "402": Error(402, "Insufficient credits. Add more and try again.", BAD, "402"),
    "403": Error(403, "Your account may not use this model.", BAD, "permission_denied"),
    "403-flagged": Error(
        403,
        'Your chosen model requires moderation and your input was flagged for "violence".',
        BAD,
        metadata={"reasons": ["violence"], "flagged_input": "You are ...", "provider_name": "P"},
    ),
    "404": Error(404, "Not found.", BAD, "not_found"),
    "404-model": Error(404, "The model does not exist.", BAD, "model_not_found", "model"),
    "408": Error(408, "Request timeout.", SERVER, "timeout"),
    "409": Error(409, "Conflict: try again.", SERVER, "conflict"),
    "413": Error(413, "Request entity too large.", BAD, "request_too_large"),
    "422": Error(422, "Unprocessable: field 'n'.", BAD),
    "429": Error(429, "Rate limit reached for requests.", "requests", "rate_limit_exceeded"),
    "429-quota": Error(
        429, "You exceeded your current quota.", "insufficient_quota", "insufficient_quota"
    ),
    "500": Error(500, "The server had an error. Sorry about that!", SERVER),
    "502": Error(502, "Bad Gateway", SERVER),
    "503": Error(503, "The engine is currently overloaded.", SERVER, "overloaded"),
    "504": Error(504, "Gateway Timeout", SERVER),
    "529": Error(529, "Overloaded.", "overloaded_error"),
}
ERRORS["429-retry-after"] = ERRORS["429"]
NAMES = BEFORE | AFTER | IN_CHAT | ERRORS.keys()


class Asked(NamedTuple):
    """The parts of a request that faults are matched against."""

    kind: str
    method: str
    path: str
    body: bytes
    model: str | None = None


class Faults:
    """Faults, and how often each had its chance.  Raises `ValueError` for an unknown name."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._armed = [_Armed(fault) for fault in faults]
        unknown = {armed.fault.fault for armed in self._armed} - NAMES
        if unknown:
            raise ValueError(f"no fault is called {', '.join(sorted(unknown))}: {sorted(NAMES)}")

    def pick(self, asked: Asked) -> Fault | None:
        """The first fault that befalls this request."""
        due = [armed for armed in self._armed if armed.due(asked)]
        return due[0].strike(asked) if due else None


class _Armed:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._seen: Counter[bytes] = Counter()
        self._struck: Counter[bytes] = Counter()

    def due(self, asked: Asked) -> bool:
        match, times = self.fault.match, self.fault.times
        if not _concerns(match, asked):
            return False
        digest = _digest(asked)
        own = digest if match.per_request else b""
        self._seen[own] += 1
        if match.share is not None and not match.per_request:
            self._seen[digest] += 1
        if times is not None and self._struck[own] >= times:
            return False
        return _counts(match, self._seen[own]) and _drawn(match, digest, self._seen[digest])

    def strike(self, asked: Asked) -> Fault:
        self._struck[_digest(asked) if self.fault.match.per_request else b""] += 1
        return self.fault


def _digest(asked: Asked) -> bytes:
    whole = f"{asked.method} {asked.path} ".encode() + asked.body
    return blake2b(whole, digest_size=8).digest()


def _concerns(match: Match, asked: Asked) -> bool:
    return (
        match.kind in (None, asked.kind)
        and match.method in (None, asked.method)
        and match.model in (None, asked.model)
        and (match.path is None or match.path in asked.path)
        and (match.contains is None or match.contains.encode() in asked.body)
    )


def _counts(match: Match, seen: int) -> bool:
    nth = (match.nth,) if isinstance(match.nth, int) else match.nth
    return (
        (nth is None or seen in nth)
        and (match.every is None or seen % match.every == 0)
        and (match.until is None or seen <= match.until)
        and (match.after is None or seen > match.after)
    )


def _drawn(match: Match, digest: bytes, seen: int) -> bool:
    if match.share is None:
        return True
    drawn = blake2b(digest, digest_size=8, salt=seen.to_bytes(8, "little")).digest()
    return int.from_bytes(drawn, "little") < match.share * 2**64
