"""From what a model wrote to what an agent said: a `Result`, never an exception."""

from typing import Literal

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.protocols.protocol import Move
from nip_fn.spectra import SPECTRA, Decision, SpectrumName

FinishReason = Literal["stop", "length", "content_filter", "other"]

ReplyError = Literal[
    "content_filter",  # the provider withheld the text
    "unknown_finish_reason",  # the model stopped for a reason that is neither stop nor length
    "no_content",  # nothing was written
    "invalid_decision",  # a decision line with a word that is not in the spectrum
]

MARKUP = " \t\r\n*_`\"'>#-.!()[]"


class Completion(msgspec.Struct, frozen=True, array_like=True):
    """One completion as a sampler returned it."""

    text: str | None
    finish_reason: FinishReason
    model: str  # the model or adapter that wrote it
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Reply(msgspec.Struct, frozen=True):
    """What an agent said: a decision, or messages to channels."""

    messages: tuple[tuple[int, str], ...]  # (channel, text)
    decision: Decision | None


def find_decision(text: str, spectrum: SpectrumName) -> Result[Decision | None, ReplyError]:
    """The last line of the form `Decision: <text>`, tolerant of case and markup.

    >>> find_decision("The bound is off.\\n**Decision:** Reject.", "accept_reject").unwrap().text
    'reject'
    >>> find_decision("What would make you say Decision: accept?", "accept_reject").unwrap()
    >>> find_decision("Decision: accepted", "accept_reject").failure()
    'invalid_decision'
    """
    for line in reversed(text.splitlines()):
        head, colon, value = line.strip(MARKUP).partition(":")
        if colon and head.strip(MARKUP).lower() == "decision":
            word = " ".join(value.strip(MARKUP).lower().split())
            known = {decision.text: decision for decision in SPECTRA[spectrum]}
            return Success(known[word]) if word in known else Failure("invalid_decision")
    return Success(None)


def parse_reply(
    completion: Completion, *, move: Move, may_decide: bool, spectrum: SpectrumName
) -> Result[Reply, ReplyError]:
    """What the agent whose turn `move` is said with this completion, or why it is unusable.

    Only an agent that `may_decide` in this round is heard to decide; for any other the same words
    are a message.  A reply cut at the token limit is parsed like any other.
    """
    if completion.finish_reason == "content_filter":
        return Failure("content_filter")
    if completion.finish_reason not in ("stop", "length"):
        return Failure("unknown_finish_reason")
    text = completion.text
    if text is None or not text.strip():
        return Failure("no_content")
    message = Reply(messages=tuple((channel, text) for channel in move.channels), decision=None)
    if not may_decide:
        return Success(message)
    return find_decision(text, spectrum).map(
        lambda decision: message if decision is None else Reply(messages=(), decision=decision)
    )
