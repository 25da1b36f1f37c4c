"""Whether to ask again, and when: a pure function of how the attempts so far went.

Retries live here and nowhere else: no library below makes one of its own accord.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nip_fn.keys import Key, fold_in, seed_of

FailureKind = Literal[
    "rate_limit",  # too many requests
    "server",  # it failed, is overloaded, or a gateway before it is
    "connection",  # it could not be reached, or hung up
    "timeout",  # it did not answer in time
    "conflict",  # it was busy with something that excludes the request
    "malformed",  # it answered with what is no answer
    "empty",  # it answered without a reply
    "key",  # it does not know the key, or the key may not do this
    "quota",  # nothing is left to pay with
    "model",  # it has no such model, or no such address
    "too_large",  # the request is too long for it
    "refused",  # it refuses the request for what is in it
]

TRANSIENT: frozenset[FailureKind] = frozenset(
    {"rate_limit", "server", "connection", "timeout", "conflict", "malformed", "empty"}
)

_CODES: dict[str, FailureKind] = {
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "context_length_exceeded": "too_large",
}

_KINDS: dict[int, FailureKind] = {
    401: "key",
    402: "quota",
    403: "key",
    404: "model",
    405: "model",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    425: "conflict",
    429: "rate_limit",
    501: "model",
}


class Attempt(NamedTuple):
    """One attempt that failed."""

    kind: FailureKind
    status: int | None = None  # None: there was no answer
    retry_after: float | None = None  # seconds, where the server says so
    seconds: float = 0.0  # that it took
    waited: float = 0.0  # seconds before it


class RetryPolicy(NamedTuple):
    """How patient to be.  Times are in seconds."""

    max_attempts: int = 12  # not counting those at a rate limit or without a connection
    max_seconds: float = 1800.0  # in all
    max_away: float = 7200.0  # in all, while the server cannot be reached
    first_wait: float = 0.5
    longest_wait: float = 30.0
    longest_retry_after: float = 600.0  # that is waited for where the server says how long


class Wait(NamedTuple):
    """Ask again after so many seconds."""

    seconds: float


class GiveUp(NamedTuple):
    """Do not ask again."""

    reason: str  # "" where asking again could not help


def kind_of(status: int, code: str = "") -> FailureKind:
    """The kind of failure that an HTTP status from 400 stands for, and the error's own code.

    >>> kind_of(503), kind_of(429), kind_of(429, "insufficient_quota"), kind_of(422)
    ('server', 'rate_limit', 'quota', 'refused')
    """
    return _CODES.get(code) or _KINDS.get(status, "server" if status >= 500 else "refused")


def decide(history: Sequence[Attempt], policy: RetryPolicy, key: Key) -> Wait | GiveUp:
    """Whether to go on after these failures, the last of which has just happened.

    The pause doubles from one failure to the next and is drawn from its upper half, so that those
    who failed together do not come back together; it is never shorter than what the server asks
    for.  The same history and key always get the same answer.

    >>> from nip_fn.keys import key
    >>> decide((Attempt("rate_limit", 429, retry_after=300),), RetryPolicy(), key(0)).seconds > 300
    True
    >>> decide((Attempt("key", 401),), RetryPolicy(), key(0))
    GiveUp(reason='')
    """
    last = history[-1]
    if last.kind not in TRANSIENT:
        return GiveUp("")
    asked = last.retry_after or 0.0
    if asked > policy.longest_retry_after:
        return GiveUp(
            f"it asks to wait for {asked:,.0f} s, longer than the {policy.longest_retry_after:,.0f}"
            " s that are allowed"
        )
    counted = sum(attempt.kind not in ("rate_limit", "connection") for attempt in history)
    spent = sum(attempt.seconds + attempt.waited for attempt in history)
    if counted >= policy.max_attempts:
        return GiveUp(f"{len(history)} attempts in {spent:,.0f} s")
    pause = _pause(len(history), asked, policy, key)
    limit = policy.max_away if last.kind == "connection" else policy.max_seconds
    if spent + pause > limit:
        return GiveUp(f"{len(history)} attempts in {spent:,.0f} s")
    return Wait(pause)


def _pause(failures: int, asked: float, policy: RetryPolicy, key: Key) -> float:
    """Seconds to wait after so many failures, the last of which asks for `asked`."""
    share = seed_of(fold_in(key, "retry", failures), bits=32) / 2**32
    doubled = min(policy.first_wait * 2.0 ** min(failures - 1, 60), policy.longest_wait)
    return max(asked * (1 + share / 10), doubled * (1 + share) / 2)
