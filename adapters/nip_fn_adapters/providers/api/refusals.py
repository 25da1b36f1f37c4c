"""Reading of refusals: answers with an error status, in any of the shapes that servers give them.

OpenAI's `{"error": {"message", "code", "param"}}` is one of many: Gemini sends a list of those, xAI
and TGI `{"error": "text"}`, Mistral `{"message": {"detail": [...]}}`, FastAPI `{"detail": ...}`,
Cohere and older versions of vLLM `{"message": "text"}`, OpenRouter its provider's own JSON as text,
and gateways plain text or HTML.  So no shape is required: whatever holds words is read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from nip_fn.errors import one_line
from nip_fn_adapters.decoding import UNREADABLE, decode_body
from nip_fn_adapters.providers.api.retries import FailureKind, RequestFailure

LONGEST_READ = 4000  # characters that are searched
DEEPEST = 8  # tables in tables that are read
MOST_ITEMS = 16  # of a list

# Where words stand, in the order in which they are shown.  "raw" is OpenRouter's, in "metadata".
_TEXTS = ("message", "msg", "error", "errors", "detail", "title", "metadata", "raw")

# Providers send these with a status that would otherwise be retried (429) or not understood (400).
_CODES: dict[str, FailureKind] = {
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "context_length_exceeded": "too_large",
    "exceed_context_size_error": "too_large",
    "string_above_max_length": "too_large",
    "request_too_large": "too_large",
    "content_filter": "filtered",
    "content_policy_violation": "filtered",
    "invalid_prompt": "filtered",
    "data_inspection_failed": "filtered",
    "model_not_found": "model",
    "invalid_model": "model",
}

# Most servers give no code of their own to a prompt that is too long; their real texts are a table
# of the tests.  "max_tokens is too large" is none of them: that is not about the prompt.
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|\b(prompt|input)s? (is |are )?too (long|large)|"
    r"reduce the length|too many tokens|must have less than \d+ tokens|"
    r"`inputs` tokens \+ `max_new_tokens`|maximum (prompt|input|model|sequence) length|"
    r"(input|prompt) (length|tokens?|token count)( \([^)]*\))? exceeds?\b|"
    r"max_tokens must be at least 1, got -|n_keep \(\d+\) >= n_ctx",
    re.IGNORECASE,
)

_FILTERED = re.compile(
    r"\b(input|prompt|content|messages?|request)\b[^.]{0,40}\b(flagged|violat\w+)|"
    r"requires moderation|content management policy",
    re.IGNORECASE,
)

_NO_MODEL = re.compile(
    r"\bmodel\b.{0,120}\bnot (exist|found|available)|\b(invalid|unknown|valid) model\b|"
    r"no endpoints found",
    re.IGNORECASE,
)

_KINDS: dict[int, FailureKind] = {
    401: "key",
    402: "quota",
    403: "forbidden",
    404: "address",
    405: "address",
    407: "proxy",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    425: "conflict",
    429: "rate_limit",
    501: "address",
}

# The texts that tell more than the status, with the statuses that they come with.  llama.cpp gives
# 500 to some prompts that are too long.
_TOLD_BY_TEXT: tuple[tuple[FailureKind, frozenset[int], re.Pattern[str]], ...] = (
    ("too_large", frozenset({400, 422, 500}), _TOO_LONG),
    ("filtered", frozenset({400, 403, 422}), _FILTERED),
    ("model", frozenset({400, 404, 422}), _NO_MODEL),
)


_DECODER = msgspec.json.Decoder()


def kind_of_failure(status: int, code: str = "", message: str = "") -> FailureKind:
    """The kind of failure for an HTTP status of 400 or more, and the error's code and message.

    >>> kind_of_failure(503), kind_of_failure(429), kind_of_failure(429, "insufficient_quota")
    ('server', 'rate_limit', 'quota')
    >>> kind_of_failure(422), kind_of_failure(404, message="No such model found")
    ('refused', 'address')
    >>> kind_of_failure(400, message="The prompt is too long.")
    'too_large'
    """
    if code in _CODES:
        return _CODES[code]
    for failure_kind, statuses, words in _TOLD_BY_TEXT:
        if status in statuses and words.search(message):
            return failure_kind
    return _KINDS.get(status, "server" if status >= 500 else "refused")


def read_refusal(content: bytes, status: int) -> RequestFailure:
    """The failure that the body of an answer with an error status describes."""
    text = content[: 4 * LONGEST_READ].decode(errors="replace")
    try:
        body = decode_body(content, _DECODER)
    except UNREADABLE:
        return _failure(_Words([_without_tags(text)], [], [], []), status)
    words = _words_of(body)
    if not words.texts and body:
        words.texts.append(text)
    return _failure(words, status)


def error_in(error: object) -> RequestFailure:
    """The failure that an error in the body of an answer with status 200 describes.

    Gateways put the model's own status there as its code.  A text alone is an answer that is not in
    the form of the API.
    """
    words = _words_of(error)
    code = next(iter(words.codes), "")
    failure = _failure(words, int(code) if re.fullmatch("[45][0-9][0-9]", code) else 500)
    if isinstance(error, str) and failure.kind == "server":
        return failure._replace(kind="malformed", status=200)
    return failure


class _Words(NamedTuple):
    """The informative fields of an error, the outermost first."""

    texts: list[str]
    codes: list[str]
    types: list[str]  # codes by another name
    params: list[str]  # the names of the fields at fault
    flagged: bool = False  # the input was moderated away (OpenRouter)


def _words_of(error: object) -> _Words:
    words = _Words([], [], [], [])
    tables = list(_tables(error, words.texts, 0))
    for table in tables:
        words.codes.extend(_plain(table, "code"))
        words.types.extend(_plain(table, "type", "error_type"))
        words.params.extend(_plain(table, "param"))
        if isinstance(location := table.get("loc"), list) and location:
            words.params.append(str(location[-1]))
    return words._replace(flagged=any(map(_is_flagged, tables)))


def _tables(value: object, texts: list[str], depth: int) -> Iterable[Mapping[str, Any]]:
    """The tables in an error; their texts are added to `texts`."""
    if depth > DEEPEST:
        return
    match value:
        case str() if (inner := _json_in(value)) is not None:
            yield from _tables(inner, texts, depth + 1)
        case str() if value.strip():
            texts.append(value)
        case list():
            for item in value[:MOST_ITEMS]:
                yield from _tables(item, texts, depth + 1)
        case dict() as table:
            yield table
            if isinstance(location := table.get("loc"), list):  # pydantic's
                texts.append(f"{'.'.join(map(str, location))}: {table.get('msg')}")
                return
            for name in _TEXTS:
                yield from _tables(table.get(name), texts, depth + 1)


def _json_in(text: str) -> object:
    """The table or list that a text is the JSON of; None for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return _DECODER.decode(text)
    except UNREADABLE:
        return None


def _plain(table: Mapping[str, Any], *names: str) -> list[str]:
    values = (table.get(name) for name in names)
    return [str(value) for value in values if isinstance(value, str | int) and value != ""]


def _is_flagged(table: Mapping[str, Any]) -> bool:
    return bool(table.get("flagged_input") or table.get("reasons"))


def _failure(words: _Words, status: int) -> RequestFailure:
    codes = [*words.codes, *words.types]
    code = next((code for code in codes if code in _CODES), next(iter(words.codes), ""))
    # Gemini says all of it twice.
    message = one_line("; ".join(dict.fromkeys(words.texts)), LONGEST_READ)
    failure_kind = kind_of_failure(status, code, message)
    if words.flagged and status in (400, 403):
        failure_kind = "filtered"
    return RequestFailure(failure_kind, status, message, code, next(iter(words.params), ""))


def _without_tags(page: str) -> str:
    """The words of a page of HTML; any other text as it is."""
    return re.sub(r"(?is)<(style|script)\b.*?</\1>|<[!/a-z][^>]*>", " ", page)
