"""Retry policy: a pure function from the failed attempts so far to a pause, or to giving up.

Retries are decided here and nowhere else: the clients below are told never to retry by themselves,
since two layers that retry multiply their attempts.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nip_fn.keys import Key, fold_in, seed_of

FailureKind = Literal[
    "rate_limit",  # too many requests
    "server",  # it failed, is overloaded, or a gateway before it is
    "connection",  # it could not be reached, or closed the connection
    "proxy",  # the proxy before it could not be reached, or did not let the request through
    "timeout",  # it did not answer in time
    "conflict",  # it was busy with something that excludes the request
    "malformed",  # its answer is not what the API specifies
    "truncated",  # its answer broke off
    "empty",  # it answered without a reply
    "key",  # it does not know the key
    "forbidden",  # the key may not do this
    "quota",  # the account has no credit left
    "model",  # it has no such model
    "address",  # it has nothing at this address
    "moved",  # it leads to another server
    "too_large",  # the prompt is longer than the model's context, or than the server takes
    "file_too_large",  # it takes no file of that size
    "filtered",  # it refuses the prompt for its content
    "refused",  # it refuses the request for any other part of it
]

# Malformed and empty answers are among them, because a gateway in trouble sends a page of HTML, or
# no choices, with status 200.
TRANSIENT: frozenset[FailureKind] = frozenset(
    {
        "rate_limit",
        "server",
        "connection",
        "proxy",
        "timeout",
        "conflict",
        "malformed",
        "truncated",
        "empty",
    }
)

# With these statuses a gateway says that the server behind it is not there.
GATEWAY = frozenset({502, 503, 504, 529})


class RequestFailure(NamedTuple):
    """The reason why a request got no usable answer."""

    kind: FailureKind
    status: int | None = None  # None: there was no answer
    message: str = ""  # one line, perhaps long, in the words of the server or of the connection
    code: str = ""
    param: str = ""
    moved_to: str = ""  # the base address to which it leads; "" if it has none
    retry_after: float | None = None  # seconds
    reached: bool = True  # False: it surely never reached a model
    dropped: bool = False  # the connection broke after the request was sent, before any answer


# Their senders waited for a model, which may have answered after all, or found nobody there.
_GATEWAY_STATUSES = (502, 504, 524)

# Sooner than this share of the shortest time in which a model has answered, none has.
TOO_SOON = 0.5
UNKNOWN_SECONDS = 2.0  # taken for that time until there is an answer


def may_be_billed(
    failure: RequestFailure, seconds: float, shortest: float = UNKNOWN_SECONDS
) -> bool:
    """True if the provider may bill the request all the same: only its answer was lost.

    A gateway whose server is away says so at once, again and again while an outage lasts: those
    are not billed.  One that says so after as long as an answer takes may have lost an answer.

    Args:
        failure: of the request.
        seconds: from the request to the failure.
        shortest: seconds of the fastest answer of the model so far.

    >>> [may_be_billed(RequestFailure("server", status), 9.0) for status in (200, 503, 504, None)]
    [True, False, True, True]
    >>> [may_be_billed(RequestFailure("server", status), 0.9) for status in (200, 503, 504, None)]
    [True, False, False, True]
    """
    if failure.status is None:
        return failure.reached
    if failure.status in _GATEWAY_STATUSES:
        return seconds >= TOO_SOON * shortest
    return failure.status < 300


class Attempt(NamedTuple):
    """A failed attempt."""

    kind: FailureKind
    status: int | None = None  # None: there was no answer
    retry_after: float | None = None  # seconds, if the server gives them
    seconds: float = 0.0  # its duration
    waited: float = 0.0  # pause before it, in seconds
    in_outage: bool = False  # the server answered nobody: that says nothing about the request


class Outage(NamedTuple):
    """A period in which a server answers no request."""

    seconds: float  # since it began
    limit: float  # seconds for which it is borne

    @property
    def left(self) -> float:
        """Seconds until the outage has lasted too long."""
        return max(0.0, self.limit - self.seconds)


class RetryPolicy(NamedTuple):
    """Limits of retrying.  Times are in seconds."""

    max_attempts: int = 12  # not counting rate limits, and those during an outage
    max_seconds: float = 1800.0  # in total, outages left out
    max_outage: float = 7200.0  # of a server that has answered before
    max_unreached: float = 60.0  # of a server that never has
    first_wait: float = 0.5
    longest_wait: float = 30.0
    longest_retry_after: float = 600.0  # longest pause that a server may ask for


ONCE = RetryPolicy(max_attempts=1, max_outage=0.0, max_unreached=0.0)


class Wait(NamedTuple):
    """Retry after a pause."""

    seconds: float


class GiveUp(NamedTuple):
    """Do not retry."""

    reason: str  # "" if a retry could not help


def decide(
    history: Sequence[Attempt], policy: RetryPolicy, key: Key, outage: Outage | None = None
) -> Wait | GiveUp:
    """A pause, or the reason to give up, after these failures; the last has just happened.

    Exponential back-off: the pause doubles from one failure to the next and is drawn from its upper
    half, so that requests that failed together do not come back together.  It is never shorter than
    the server asks for.  The same history and key always give the same decision.

    Args:
        history: the failed attempts.
        policy: the limits.
        key: from which the pause is drawn.
        outage: if the server answers nobody, which alone then decides how long it is borne.

    >>> from nip_fn.keys import key
    >>> decide((Attempt("rate_limit", 429, retry_after=300),), RetryPolicy(), key(0)).seconds > 300
    True
    >>> decide((Attempt("key", 401),), RetryPolicy(), key(0))
    GiveUp(reason='')
    """
    last = history[-1]
    if last.kind not in TRANSIENT:
        return GiveUp("")
    requested_pause = last.retry_after or 0.0
    if requested_pause > policy.longest_retry_after:
        # A run that ends with a reason can be resumed; one that sleeps for hours only seems to
        # hang.
        most = policy.longest_retry_after
        return GiveUp(
            f"it asks for a pause of {requested_pause:,.0f} s, and {most:,.0f} s are allowed"
        )
    pause = _pause(len(history), requested_pause, policy, key)
    if outage is not None and not outage.left:
        return GiveUp(f"given up after {outage.seconds:,.0f} s")
    if outage is not None:
        return Wait(max(requested_pause, min(pause, outage.left)))  # with a last attempt at the end
    own_failures = [attempt for attempt in history if not attempt.in_outage]
    # A rate limit says nothing about the request: only time bounds those.
    counted = sum(attempt.kind != "rate_limit" for attempt in own_failures)
    spent = sum(attempt.seconds + attempt.waited for attempt in own_failures)
    if counted >= policy.max_attempts or spent + pause > policy.max_seconds:
        attempts = "1 attempt" if len(own_failures) == 1 else f"{len(own_failures)} attempts"
        return GiveUp(f"given up after {attempts} in {spent:,.0f} s")
    return Wait(pause)


def own_outage(history: Sequence[Attempt], policy: RetryPolicy) -> Outage | None:
    """The outage that a single task sees in its failures; None if the last is no sign of one.

    Any status but a gateway's may be the server's word about this very request.
    """
    last = history[-1]
    if last.kind not in ("connection", "proxy") and last.status not in GATEWAY:
        return None
    return Outage(sum(attempt.seconds + attempt.waited for attempt in history), policy.max_outage)


def _pause(failures: int, requested: float, policy: RetryPolicy, key: Key) -> float:
    """Seconds to wait after that many failures, of which the last asks for `requested`."""
    # Drawn from the key rather than from a global generator, so that a failure can be reproduced.
    share = seed_of(fold_in(key, "retry", failures), bits=32) / 2**32
    doubled = min(policy.first_wait * 2.0 ** min(failures - 1, 60), policy.longest_wait)
    # The server's own pause is stretched as well: all requests of a burst are told the same.
    return max(requested * (1 + share / 10), doubled * (1 + share) / 2)
