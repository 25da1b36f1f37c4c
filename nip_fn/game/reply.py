"""Parsing of completions into replies: a `Result`, never an exception."""

import re
from functools import cache
from typing import Literal

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.game.answer import find_answer
from nip_fn.game.decision import Decision, SpectrumName
from nip_fn.game.protocol import Move
from nip_fn.game.tokens import SampledTokens
from nip_fn.game.verdict import find_decision

FinishReason = Literal[
    "stop",
    "length",
    "content_filter",
    "prompt_filtered",  # nothing was written: the provider refused the prompt for its content
    "prompt_too_long",  # nothing was written: the prompt is longer than the model's context
    "other",
]

ReplyError = Literal[
    "content_filter",  # the provider withheld the text
    "prompt_filtered",  # the provider refused the prompt for its content
    "prompt_too_long",  # the provider refused the prompt for its length
    "unknown_finish_reason",  # the model stopped for a reason that is neither stop nor length
    "no_content",  # nothing was written
    "invalid_decision",  # a verdict that is none of the spectrum's, unclear, or stated repeatedly
    "invalid_answer",  # no answer where one is to be stated, an empty one, or several
    "missing_header",  # nothing for one of the channels that it was the agent's turn to speak in
]

# The same prompt would be refused again, so there is no second attempt.
FINAL_ERRORS: frozenset[ReplyError] = frozenset({"prompt_filtered", "prompt_too_long"})

# Replies in a row that spent the whole limit before a word: the limit is too low, and each more
# would cost as much.
MOST_EMPTY = 2

_UNUSABLE: dict[FinishReason, ReplyError] = {
    "content_filter": "content_filter",
    "prompt_filtered": "prompt_filtered",
    "prompt_too_long": "prompt_too_long",
    "other": "unknown_finish_reason",
}

SUBSTANCE = re.compile(r"[^\s*_#>]")  # anything but space and markup


class Completion(msgspec.Struct, frozen=True, array_like=True):
    """One completion as a sampler returned it.

    text: the words; None if the provider gave none.
    finish_reason: "stop" where the model ended it, "length" at the token limit.
    model: the model or adapter that wrote it.
    prompt_tokens: those that were paid for; of a request for several, the first has them all.
    completion_tokens: of the reply.
    cached_tokens: of the prompt's, those that the provider had cached.
    seconds: from asking to having it.
    request_id: the provider's.
    tokens: as they were sampled, where they were asked for and given.
    verdict_probabilities: `[D]` of each decision of the spectrum, at the token that decides the
        verdict (`verdict_probabilities`); () where they are not known.
    """

    text: str | None
    finish_reason: FinishReason
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt's, those that the provider had cached
    seconds: float = 0.0  # from asking to having it
    request_id: str = ""  # the provider's
    tokens: SampledTokens | None = None
    verdict_probabilities: tuple[float, ...] = ()


class Reply(msgspec.Struct, frozen=True):
    """A parsed reply: a decision, or messages to channels, which may state an answer."""

    messages: tuple[tuple[int, str], ...]  # (channel, text)
    decision: Decision | None
    verdict_probabilities: tuple[float, ...] = ()  # [D] with a decision, where they are known
    answer: str | None = None


def is_empty_at_limit(completion: Completion) -> bool:
    """True if nothing was written before the token limit, as when a model reasons out of sight."""
    return completion.finish_reason == "length" and not (completion.text or "").strip()


def parse_reply(
    completion: Completion,
    *,
    move: Move,
    may_decide: bool,
    spectrum: SpectrumName,
    headers: tuple[str, ...] = (),
) -> Result[Reply, ReplyError]:
    """The reply in a completion of the agent whose turn `move` is, or the reason it is unusable.

    A reply that was cut at the token limit is parsed like any other.

    Args:
        completion: The model's completion.
        move: The agent and the channels that it speaks in.
        may_decide: True if a decision counts here; otherwise the same words are a message.
        spectrum: The words in which a verifier decides.
        headers: The beginning of each part of a message to several channels.
    """
    unusable = _UNUSABLE.get(completion.finish_reason)
    if unusable is not None:
        return Failure(unusable)
    # A reply that was cut is parsed all the same and flagged: the *nip* library calls it invalid,
    # so that a long sentence can cost a prover the game.
    text = completion.text
    if text is None or not text.strip():
        return Failure("no_content")
    if move.answers:
        stated: Result[str, ReplyError] = find_answer(text)
        return stated.bind(
            lambda answer: _messages(text, move, headers).map(
                lambda reply: replace(reply, answer=answer)
            )
        )
    if not may_decide:
        return _messages(text, move, headers)
    decided: Result[Decision | None, ReplyError] = find_decision(text, spectrum)
    return decided.bind(
        lambda decision: (
            Success(Reply((), decision, completion.verdict_probabilities))
            if decision is not None
            else _messages(text, move, headers)
        )
    )


def _messages(text: str, move: Move, headers: tuple[str, ...]) -> Result[Reply, ReplyError]:
    if len(move.channels) == 1:
        return Success(Reply(((move.channels[0], text),), None))
    messages = _parts(text, headers)
    return messages.map(lambda texts: Reply(tuple(zip(move.channels, texts, strict=True)), None))


def _parts(text: str, headers: tuple[str, ...]) -> Result[tuple[str, ...], ReplyError]:
    """The part of the text that each header begins, in the order of the headers.

    A header that begins a line goes before one that is only mentioned.
    """
    patterns = [_header_patterns(header) for header in headers]
    # Headers may come in any order, and models do not keep to one.
    matches = [in_line.search(text) or anywhere.search(text) for in_line, anywhere in patterns]
    starts = sorted(match.start(1) for match in matches if match)
    messages = []
    for match in matches:
        if match is None:
            return Failure("missing_header")
        end = next((start for start in starts if start > match.start(1)), len(text))
        if not SUBSTANCE.search(text, match.end(1), end):
            return Failure("missing_header")
        part = text[match.start(1) : end].rstrip()
        messages.append(part if end == len(text) else part.rstrip(" \t\r\n*#>"))
    return Success(tuple(messages))


@cache
def _header_patterns(header: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The header at the start of a line, and anywhere; in any case, bold, with spaces for `_`."""
    words = re.escape(header).replace("_", "[_ ]").replace(":", "[ *_`]*:")
    flags = re.IGNORECASE | re.MULTILINE
    in_line = re.compile(rf"^[ \t>#*_`\"'-]{{0,16}}({words})", flags)
    return in_line, re.compile(rf"(?<![^\W_])({words})", flags)
