"""Adaptive concurrency for one endpoint: how many requests may be in flight, and when to send.

Slow start, then additive increase and multiplicative decrease (Chiu & Jain 1989), as TCP does it.
The limit doubles from one round of answers to the next until the server answers 429 (too many
requests).  From then on each 429 cuts it to 4/5, at most once in 15 s, and each 15 s without one
raises it by max(1, 5 %).  Where the server reports its quotas (`x-ratelimit-*`), no more is sent
than they allow.

All functions are pure.  Times are in seconds on any monotonic clock; the caller reads it.
"""

import re
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

# A burst of 429s answers requests that were sent under the same limit, so it is one signal: within
# the window it cuts the limit once.
CUT, GROWTH = 0.8, 0.05
WINDOW = 15.0  # seconds
MANY_LOST, LONGEST_REST = 3, 15.0  # requests in a row, seconds

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

# A larger number without a unit is a date in s since 1970, as OpenRouter sends it, not a duration.
LONGEST_DURATION = 7 * 86400.0


class Bounds(NamedTuple):
    """Bounds of the number of requests in flight."""

    # A low first limit makes wide stages wait for the doubling; a high one meets a small server
    # with a burst of 429s before anything is known of it.
    first: int = 64
    lowest: int = 1
    highest: int = 1024


class Consumed(NamedTuple):
    """Requests and tokens sent to an endpoint since the beginning."""

    requests: float = 0.0
    tokens: float = 0.0


class Quota(NamedTuple):
    """A server's allowance of requests or tokens: a bucket that fills at a constant rate."""

    limit: float
    remaining: float
    reset: float  # seconds until it is full again
    at: float  # when the server reported it
    consumed: float  # in total, when the request was sent whose answer reported it

    def wait(self, cost: float, consumed: float, now: float) -> float:
        """Seconds until there is room for `cost`, after `consumed` was sent in total.

        Never longer than until the bucket is full again: the report is out of date by then.
        """
        # The report is older than the requests that were sent since, so their tokens count as used.
        short = cost - (self.remaining - (consumed - self.consumed))
        full = self.at + self.reset - now
        if short <= 0 or full <= 0:
            return 0.0
        # What is missing now is back after `reset` seconds: so the rate is known, though no server
        # reports it.
        gained = self.limit - self.remaining
        filled = self.at + self.reset * short / gained - now if gained > 0 else inf
        return max(0.0, min(filled, full))


class Quotas(NamedTuple):
    """The reported quotas of a server; None if it does not report one."""

    requests: Quota | None = None
    tokens: Quota | None = None


NO_QUOTAS = Quotas()


class Pace(NamedTuple):
    """The state of the controller of one endpoint."""

    bounds: Bounds
    limit: float  # of requests in flight
    doubling: bool = True
    answers: int = 0  # in this round, which ends with as many as the limit
    peak: int = 0  # highest number in flight in this round, or in this window
    changed_at: float = -inf  # last change of the limit, or last 429
    cut_at: float = -inf
    lost: int = 0  # requests in a row that could not reach the server
    not_before: float = -inf  # nothing is sent until then
    consumed: Consumed = Consumed()
    quotas: Quotas = NO_QUOTAS


def make_pace(bounds: Bounds) -> Pace:
    """The pace of an endpoint to which nothing has been sent yet."""
    return Pace(bounds, float(max(bounds.lowest, min(bounds.first, bounds.highest))))


def sent(pace: Pace, in_flight: int, tokens: float) -> Pace:
    """The pace after sending a request of about `tokens` tokens; now `in_flight` are open."""
    consumed = Consumed(pace.consumed.requests + 1, pace.consumed.tokens + tokens)
    return pace._replace(consumed=consumed, peak=max(pace.peak, in_flight))


def answered(pace: Pace, in_flight: int, now: float, quotas: Quotas = NO_QUOTAS) -> Pace:
    """The pace after an answer other than a 429, which leaves `in_flight` requests.

    The limit grows only if it is used: a quarter of it while it doubles, all of it later.  A limit
    that grew while nothing pressed against it would say nothing about the server.
    """
    pace = pace._replace(quotas=_newer(quotas, pace.quotas), answers=pace.answers + 1, lost=0)
    highest = float(pace.bounds.highest)
    if pace.doubling:
        # One more for each answer doubles the limit after as many answers as it allows at once,
        # without a jump at the end.
        limit = min(pace.limit + (pace.peak * 4 >= pace.limit), highest)
        if pace.answers < pace.limit:
            return pace._replace(limit=limit)
        return pace._replace(limit=limit, answers=0, peak=in_flight)
    if now - pace.changed_at < WINDOW:
        return pace
    # At least by one: 5 % of a small limit would take minutes to add up to one more request.
    growth = max(1.0, GROWTH * pace.limit) if pace.peak >= int(pace.limit) else 0.0
    limit = min(pace.limit + growth, highest)
    return pace._replace(limit=limit, changed_at=now, peak=in_flight)


def refused(
    pace: Pace, in_flight: int, now: float, retry_after: float = 0.0, quotas: Quotas = NO_QUOTAS
) -> Pace:
    """The pace after a 429, which leaves `in_flight` requests.

    Args:
        pace: the pace before it.
        in_flight: requests that are still open.
        now: the time, in seconds.
        retry_after: seconds for which the server asks to be left alone.
        quotas: the quotas that the answer reports.
    """
    quiet = max(pace.not_before, now + retry_after)
    pace = pace._replace(
        quotas=_newer(quotas, pace.quotas), not_before=quiet, doubling=False, changed_at=now, lost=0
    )
    if now - pace.cut_at < WINDOW:
        return pace
    # From what was really in flight: a limit that was never reached is not what the server refused.
    limit = max(float(pace.bounds.lowest), CUT * min(pace.limit, pace.peak))
    return pace._replace(limit=limit, cut_at=now, peak=in_flight)


def unreachable(pace: Pace, now: float) -> Pace:
    """The pace after a request that could not reach the server.

    From the third in a row the server is probed by one request at a time, with growing pauses: a
    thousand requests that all retry would only fill the log while it restarts.
    """
    lost = pace.lost + 1
    if lost < MANY_LOST:
        return pace._replace(lost=lost)
    rest = min(LONGEST_REST, 0.25 * 2.0 ** min(lost - MANY_LOST, 30))
    return pace._replace(lost=lost, not_before=max(pace.not_before, now + rest))


def wait(pace: Pace, in_flight: int, tokens: float, now: float) -> float:
    """Seconds until a request of `tokens` tokens may be sent; inf: not before one is answered."""
    if in_flight >= (int(pace.limit) if pace.lost < MANY_LOST else 1):
        return inf
    quiet = max(0.0, pace.not_before - now)
    requests, per_token = pace.quotas
    if requests is not None:
        quiet = max(quiet, requests.wait(1.0, pace.consumed.requests, now))
    if per_token is not None:
        quiet = max(quiet, per_token.wait(tokens, pace.consumed.tokens, now))
    return quiet


def read_quotas(headers: Mapping[str, str], at: float, consumed: Consumed) -> Quotas:
    """The quotas in the headers of an answer.

    Args:
        headers: by name, in lower case.
        at: when the answer arrived, in seconds.
        consumed: sent in total, up to and including the request that was answered.

    >>> headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59",
    ...     "x-ratelimit-reset-requests": "1s"}
    >>> read_quotas(headers, 5.0, Consumed(1.0, 300.0)).requests
    Quota(limit=60.0, remaining=59.0, reset=1.0, at=5.0, consumed=1.0)
    """
    return Quotas(
        _quota(headers, "requests", at, consumed.requests),
        _quota(headers, "tokens", at, consumed.tokens),
    )


def _newer(reported: Quotas, known: Quotas) -> Quotas:
    """For each quota the report that answers the later request: answers overtake each other."""
    return Quotas(*(_later(*pair) for pair in zip(reported, known, strict=True)))


def _later(new: Quota | None, old: Quota | None) -> Quota | None:
    return new if old is None or (new and new.consumed >= old.consumed) else old


def _quota(headers: Mapping[str, str], what: str, at: float, consumed: float) -> Quota | None:
    remaining = _number(headers.get(f"x-ratelimit-remaining-{what}", ""))
    limit = _number(headers.get(f"x-ratelimit-limit-{what}", ""))
    reset = seconds(headers.get(f"x-ratelimit-reset-{what}", ""))
    # Without a time of reset the rate is unknown, and a quota of 0 would hold the run for ever.
    if remaining is None or reset is None:
        return None
    return Quota(max(remaining, limit or 0.0), remaining, reset, at, consumed)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def seconds(text: str) -> float | None:
    """The seconds of a duration as servers write it; None if the text is not a duration.

    >>> seconds("6m0s"), seconds("20ms"), seconds("1.5"), seconds("soon"), seconds("1767225600")
    (360.0, 0.02, 1.5, None, None)
    """
    text = text.strip().lower()
    plain = _number(text)
    if plain is not None:
        return plain if plain <= LONGEST_DURATION else None
    if not text or _DURATION.sub("", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
