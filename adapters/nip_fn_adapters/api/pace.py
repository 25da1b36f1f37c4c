"""How many requests one endpoint is sent at a time: found by itself, from how they are answered.

The limit doubles from one round of answers to the next until the server refuses a request for being
too many (429).  From then on it is cut to 4/5 at such a refusal, at most once in 15 s, and grows by
one, or by 1/20, in each 15 s without.  Where the server tells what is left of its quotas, no more
is sent than they allow.  Times are in seconds on any clock that never goes back; the caller reads
it.
"""

import re
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

CUT, GROWTH = 0.8, 0.05
WINDOW = 15.0  # seconds
MANY_LOST, LONGEST_REST = 3, 15.0  # requests, seconds

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

# A number without a unit that is larger is no duration but a date.
LONGEST_DURATION = 7 * 86400.0


class Bounds(NamedTuple):
    """Of the number of requests in flight."""

    first: int = 64
    lowest: int = 1
    highest: int = 1024


class Spent(NamedTuple):
    """What has been sent since the beginning."""

    requests: float = 0.0
    tokens: float = 0.0


class Quota(NamedTuple):
    """What a server allows of requests or tokens: a bucket that fills at a constant rate."""

    limit: float
    remaining: float
    reset: float  # seconds until it is full again
    at: float  # when the server said so
    spent: float  # in all, when the request was sent that it answered so

    def wait(self, cost: float, spent: float, now: float) -> float:
        """Seconds until there is room for `cost`, when `spent` was sent in all.

        Never longer than until the bucket is full again: what it says is forgotten then.
        """
        short = cost - (self.remaining - (spent - self.spent))
        full = self.at + self.reset - now
        if short <= 0 or full <= 0:
            return 0.0
        gained = self.limit - self.remaining
        filled = self.at + self.reset * short / gained - now if gained > 0 else inf
        return max(0.0, min(filled, full))


class Quotas(NamedTuple):
    """What a server says is left; None where it says nothing."""

    requests: Quota | None = None
    tokens: Quota | None = None


UNTOLD = Quotas()


class Pace(NamedTuple):
    """How fast one endpoint is asked."""

    bounds: Bounds
    limit: float  # of requests in flight
    doubling: bool = True
    answers: int = 0  # in this round, which ends with as many as the limit
    peak: int = 0  # most in flight in this round, or in this window
    changed_at: float = -inf  # the limit, or when it would have been but for a refusal
    cut_at: float = -inf
    lost: int = 0  # requests in a row that found nobody there
    not_before: float = -inf  # nothing is sent until then
    spent: Spent = Spent()
    quotas: Quotas = UNTOLD


def make_pace(bounds: Bounds) -> Pace:
    """The pace of an endpoint that has not been asked yet."""
    return Pace(bounds, float(max(bounds.lowest, min(bounds.first, bounds.highest))))


def sent(pace: Pace, in_flight: int, tokens: float) -> Pace:
    """After a request of about so many tokens was sent, which makes `in_flight` of them."""
    spent = Spent(pace.spent.requests + 1, pace.spent.tokens + tokens)
    return pace._replace(spent=spent, peak=max(pace.peak, in_flight))


def answered(pace: Pace, in_flight: int, now: float, told: Quotas = UNTOLD) -> Pace:
    """After an answer that was no refusal, which leaves `in_flight` requests.

    The limit only grows where it is made use of: a quarter of it while it doubles, all of it later.
    """
    pace = pace._replace(quotas=_newer(told, pace.quotas), answers=pace.answers + 1, lost=0)
    highest = float(pace.bounds.highest)
    if pace.doubling:
        limit = min(pace.limit + (pace.peak * 4 >= pace.limit), highest)
        if pace.answers < pace.limit:
            return pace._replace(limit=limit)
        return pace._replace(limit=limit, answers=0, peak=in_flight)
    if now - pace.changed_at < WINDOW:
        return pace
    growth = max(1.0, GROWTH * pace.limit) if pace.peak >= int(pace.limit) else 0.0
    limit = min(pace.limit + growth, highest)
    return pace._replace(limit=limit, changed_at=now, peak=in_flight)


def refused(
    pace: Pace, in_flight: int, now: float, retry_after: float = 0.0, told: Quotas = UNTOLD
) -> Pace:
    """After a 429, which leaves `in_flight` requests.

    `retry_after` is the seconds for which the server asks to be left alone.
    """
    quiet = max(pace.not_before, now + retry_after)
    pace = pace._replace(
        quotas=_newer(told, pace.quotas), not_before=quiet, doubling=False, changed_at=now, lost=0
    )
    if now - pace.cut_at < WINDOW:
        return pace
    limit = max(float(pace.bounds.lowest), CUT * min(pace.limit, pace.peak))
    return pace._replace(limit=limit, cut_at=now, peak=in_flight)


def unreachable(pace: Pace, now: float) -> Pace:
    """After a request that found nobody there.

    From the third in a row, the server is looked for by one request at a time, ever more seldom.
    """
    lost = pace.lost + 1
    if lost < MANY_LOST:
        return pace._replace(lost=lost)
    rest = min(LONGEST_REST, 0.25 * 2.0 ** min(lost - MANY_LOST, 30))
    return pace._replace(lost=lost, not_before=max(pace.not_before, now + rest))


def wait(pace: Pace, in_flight: int, tokens: float, now: float) -> float:
    """Seconds until a request of so many tokens may be sent; inf: not before one is answered."""
    if in_flight >= (int(pace.limit) if pace.lost < MANY_LOST else 1):
        return inf
    quiet = max(0.0, pace.not_before - now)
    requests, per_token = pace.quotas
    if requests is not None:
        quiet = max(quiet, requests.wait(1.0, pace.spent.requests, now))
    if per_token is not None:
        quiet = max(quiet, per_token.wait(tokens, pace.spent.tokens, now))
    return quiet


def read_quotas(headers: Mapping[str, str], at: float, spent: Spent) -> Quotas:
    """What the headers of an answer that came `at` say, to a request after which `spent` was sent.

    >>> headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59",
    ...     "x-ratelimit-reset-requests": "1s"}
    >>> read_quotas(headers, 5.0, Spent(1.0, 300.0)).requests
    Quota(limit=60.0, remaining=59.0, reset=1.0, at=5.0, spent=1.0)
    """
    return Quotas(
        _quota(headers, "requests", at, spent.requests), _quota(headers, "tokens", at, spent.tokens)
    )


def _newer(told: Quotas, known: Quotas) -> Quotas:
    """Of what was said about each, that which answered the later request."""
    pairs = zip(told, known, strict=True)
    return Quotas(
        *(new if old is None or (new and new.spent >= old.spent) else old for new, old in pairs)
    )


def _quota(headers: Mapping[str, str], what: str, at: float, spent: float) -> Quota | None:
    said = headers.get(f"x-ratelimit-remaining-{what}")
    if said is None:
        return None
    remaining, limit = _number(said), _number(headers.get(f"x-ratelimit-limit-{what}", ""))
    reset = seconds(headers.get(f"x-ratelimit-reset-{what}", ""))
    if remaining is None or reset is None:
        return None
    return Quota(max(remaining, limit or 0.0), remaining, reset, at, spent)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def seconds(text: str) -> float | None:
    """The seconds of a duration as servers write them; None where it is none.

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
