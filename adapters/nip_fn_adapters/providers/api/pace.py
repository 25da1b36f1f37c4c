"""Adaptive concurrency for one endpoint: how many requests may be in flight, and when to send.

A server that limits concurrency says what it bears: when it answers 429 (too many requests), it is
working on the others in flight.  So a refusal sets the limit to their number.  Where the next
requests are refused as well, the server bears far less than before, or limits the rate: from the
third refusal in a row on, each halves the limit.  Requests that were sent before a cut belong to
the burst that caused it and never halve the limit, so it is halved at most once in a round trip.  A
single refusal among many acceptances, at a limit that was borne, changes nothing.

After a hundred answers, or half a minute, without a refusal the limit is probed: by one more, and
if that is borne by two more, four more and so on, each a round trip later, until the next refusal.
So a capacity that grows tenfold is found in six round trips, and one that stays is tried with one
request in a hundred.  Before any refusal the limit grows by two for each answer (slow start).
Where the server reports its quotas (`x-ratelimit-*`), no more is sent than they allow.

A server that answers nobody is out: it fails (5xx), cannot be reached, or refuses a request while
no other is in flight.  It is then probed by one request at a time, with growing pauses.

All functions are pure.  Times are in seconds on any monotonic clock; the caller reads it.
"""

import re
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

CUT = 0.5
GROWTH = 2  # for each answer, before any refusal
# At 100, at most one request in a hundred is refused by a server whose capacity stays the same.
CALM_ANSWERS, CALM_SECONDS = 100, 30.0  # without a refusal, after either of which more is tried
# A refusal is the next in a row if fewer requests than this were accepted since the last.
FEW = 2
MANY_LOST, FIRST_REST, LONGEST_REST = 3, 0.25, 15.0  # failures in a row, seconds

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

# A larger number without a unit is a date in s since 1970, as OpenRouter sends it, not a duration.
LONGEST_DURATION = 7 * 86400.0


class Bounds(NamedTuple):
    """Bounds of the number of requests in flight."""

    # As many as there may be at all: a wide stage would wait a whole reply's time for the growth
    # from a lower first limit (1,000 games of 3 rounds: 1.4 times as long from 512, 2.4 from 64).
    # A small server is met by one burst, and each request that it refuses says how much it bears.
    first: int = 1024
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
    limit: int  # of requests in flight
    growing: bool = True  # until the next refusal
    step: int = 1  # by which it is raised next, if it has been refused before
    changed: float = 0.0  # requests sent until the limit was last cut, or raised after a calm
    answers: int = 0  # since the last refusal
    row: int = 0  # refusals in a row
    refused_at: float = -inf
    seen: bool = False  # it has answered, if only with an error
    lost: int = 0  # failures in a row, of which each was sent after the one before it
    lost_until: float = 0.0  # requests sent until the last of them
    out_since: float = -inf  # the first of them
    not_before: float = -inf  # nothing is sent until then
    consumed: Consumed = Consumed()
    quotas: Quotas = NO_QUOTAS

    @property
    def is_out(self) -> bool:
        """True if the server has answered nobody for some time."""
        return self.lost >= MANY_LOST


def make_pace(bounds: Bounds) -> Pace:
    """The pace of an endpoint to which nothing has been sent yet."""
    return Pace(bounds, max(bounds.lowest, min(bounds.first, bounds.highest)))


def sent(pace: Pace, tokens: float) -> Pace:
    """The pace after sending a request of about `tokens` tokens."""
    consumed = Consumed(pace.consumed.requests + 1, pace.consumed.tokens + tokens)
    return pace._replace(consumed=consumed)


def answered(
    pace: Pace, in_flight: int, number: float, now: float, quotas: Quotas = NO_QUOTAS
) -> Pace:
    """The pace after an answer, which leaves `in_flight` requests.

    Args:
        pace: the pace before it.
        in_flight: the other requests.
        number: of the request: 1 for the first that was sent, and so on.
        now: the time, in seconds.
        quotas: the quotas that the answer reports.
    """
    pace = present(pace)._replace(quotas=_newer(quotas, pace.quotas), answers=pace.answers + 1)
    # An answer to what was sent under another limit says nothing about this one, and neither does
    # one while nothing presses against the limit.
    used = in_flight + 1
    if number <= pace.changed:
        return pace
    if pace.refused_at == -inf:
        # A quarter is enough: trees that all advance at once are waves, each twice the last, and
        # the limit must double while one of them drains.
        more = GROWTH if 4 * used >= pace.limit else 0
        return pace._replace(limit=min(pace.limit + more, pace.bounds.highest))
    calm = pace.answers >= CALM_ANSWERS or now - pace.refused_at >= CALM_SECONDS
    if used < pace.limit or not (pace.growing or calm):
        return pace
    limit = min(pace.limit + pace.step, pace.bounds.highest)
    return _changed(pace, limit)._replace(growing=True, step=2 * pace.step, row=0)


def refused(
    pace: Pace,
    in_flight: int,
    number: float,
    now: float,
    retry_after: float = 0.0,
    quotas: Quotas = NO_QUOTAS,
) -> Pace:
    """The pace after a 429, which leaves `in_flight` requests.

    Args:
        pace: the pace before it.
        in_flight: the other requests, which the server is working on.
        number: as for `answered`.
        now: the time, in seconds.
        retry_after: seconds for which the server asks to be left alone.
        quotas: the quotas that the answer reports.
    """
    pace = pace._replace(quotas=_newer(quotas, pace.quotas), seen=True, answers=0, refused_at=now)
    # While others are under way they show that it bears some: then it is not left alone, even if it
    # asks for that, and the refused request alone waits.
    if in_flight:
        pace = present(pace)
    else:
        pace = failed(pace, number, now)
        pace = _rested(pace, now, retry_after or _rest(pace.lost))
    limit = min(pace.limit, in_flight)
    if number > pace.changed:
        # One in many, at a limit that was borne, is spared: some servers refuse at random.
        accepted = number - 1 - pace.changed
        row = 1 if accepted >= FEW else pace.row + 1
        if row == 1 and not pace.growing:
            limit = pace.limit
        elif row > 2:
            limit = int(CUT * limit)
        pace = _changed(pace, pace.limit)._replace(growing=False, step=1, row=row)
    return pace._replace(limit=max(pace.bounds.lowest, limit))


def _changed(pace: Pace, limit: int) -> Pace:
    return pace._replace(limit=limit, changed=pace.consumed.requests)


def failed(pace: Pace, number: float, now: float, *, reached: bool = True) -> Pace:
    """The pace after a request that met an error of the server (5xx), or could not reach it.

    Requests that were under way together fail together, and count once.  From the third time in a
    row the server is probed by one request at a time, with growing pauses: a thousand requests that
    all retry would only fill the log while it restarts.
    """
    pace = pace._replace(seen=pace.seen or reached)
    if number <= pace.lost_until:
        return pace
    out_since = pace.out_since if pace.lost else now
    sent = pace.consumed.requests
    pace = pace._replace(lost=pace.lost + 1, lost_until=sent, out_since=out_since)
    return _rested(pace, now, _rest(pace.lost - MANY_LOST)) if pace.is_out else pace


def present(pace: Pace) -> Pace:
    """The pace after any other answer: it shows that the server is there."""
    return pace if pace.seen and not pace.lost else pace._replace(seen=True, lost=0)


def _rest(doublings: int) -> float:
    return min(LONGEST_REST, FIRST_REST * 2.0 ** min(doublings, 30))


def _rested(pace: Pace, now: float, seconds: float) -> Pace:
    return pace._replace(not_before=max(pace.not_before, now + seconds))


def wait(pace: Pace, in_flight: int, tokens: float, now: float) -> float:
    """Seconds until a request of `tokens` tokens may be sent; inf: not before one is answered."""
    if in_flight >= (1 if pace.is_out else pace.limit):
        return inf
    quiet = max(0.0, pace.not_before - now)
    requests, per_token = pace.quotas
    if requests is not None:
        quiet = max(quiet, requests.wait(1.0, pace.consumed.requests, now))
    if per_token is not None:
        quiet = max(quiet, per_token.wait(tokens, pace.consumed.tokens, now))
    return quiet


def read_quotas(headers: Mapping[str, str], arrival: float, consumed: Consumed) -> Quotas:
    """The quotas in the headers of an answer.

    Args:
        headers: by name, in lower case.
        arrival: when the answer arrived, in seconds.
        consumed: sent in total, up to and including the request that was answered.

    >>> headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59",
    ...     "x-ratelimit-reset-requests": "1s"}
    >>> read_quotas(headers, 5.0, Consumed(1.0, 300.0)).requests
    Quota(limit=60.0, remaining=59.0, reset=1.0, at=5.0, consumed=1.0)
    """
    return Quotas(
        _quota(headers, "requests", arrival, consumed.requests),
        _quota(headers, "tokens", arrival, consumed.tokens),
    )


def _newer(reported: Quotas, noted: Quotas) -> Quotas:
    """For each quota the report that answers the later request: answers overtake each other."""
    return Quotas(*(_later(*pair) for pair in zip(reported, noted, strict=True)))


def _later(new: Quota | None, old: Quota | None) -> Quota | None:
    return new if old is None or (new and new.consumed >= old.consumed) else old


def _quota(headers: Mapping[str, str], unit: str, arrival: float, consumed: float) -> Quota | None:
    remaining = _number(headers.get(f"x-ratelimit-remaining-{unit}", ""))
    if remaining is None:
        return None
    limit = _number(headers.get(f"x-ratelimit-limit-{unit}", ""))
    reset = seconds(headers.get(f"x-ratelimit-reset-{unit}", ""))
    # Without a time of reset the rate is unknown, and a quota of 0 would hold the run for ever.
    if reset is None:
        return None
    return Quota(max(remaining, limit or 0.0), remaining, reset, arrival, consumed)


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
