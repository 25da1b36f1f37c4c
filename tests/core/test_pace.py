"""How many requests an endpoint is sent at a time: laws, and a server to run against."""

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from math import inf
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn_adapters.providers.api.pace import (
    CALM_ANSWERS,
    CALM_SECONDS,
    MANY_LOST,
    Bounds,
    Consumed,
    Pace,
    Quota,
    Quotas,
    answered,
    failed,
    make_pace,
    read_quotas,
    refused,
    seconds,
    sent,
    wait,
)

BOUNDS = Bounds(first=8, lowest=1, highest=100)

bounds = st.builds(
    Bounds, first=st.integers(1, 50), lowest=st.integers(1, 5), highest=st.integers(5, 200)
)
steps = st.lists(
    st.tuples(st.sampled_from(["send", "answer", "refuse"]), st.floats(0, 20), st.floats(0, 60)),
    max_size=200,
)


def run_through(pace: Pace, steps: list[tuple[str, float, float]]) -> list[tuple[float, Pace, int]]:
    """The paces after each step that is possible, with the time and what is in flight."""
    now, open_requests, after = 0.0, deque[float](), []
    for what, passed, asked in steps:
        now += passed
        if what == "send" and wait(pace, len(open_requests), 1.0, now) == 0:
            pace = sent(pace, 1.0)
            open_requests.append(pace.consumed.requests)
        elif what == "answer" and open_requests:
            number = open_requests.popleft()
            pace = answered(pace, len(open_requests), number, now)
        elif what == "refuse" and open_requests:
            number = open_requests.pop()
            pace = refused(pace, len(open_requests), number, now, asked)
        after.append((now, pace, len(open_requests)))
    return after


@given(bounds, steps)
def test_the_limit_stays_within_its_bounds(
    bounds: Bounds, steps: list[tuple[str, float, float]]
) -> None:
    for _, pace, in_flight in run_through(make_pace(bounds), steps):
        assert bounds.lowest <= pace.limit <= bounds.highest
        assert in_flight <= bounds.highest


@given(bounds, steps)
def test_a_server_that_refuses_a_lone_request_has_the_silence_that_it_asks_for(
    bounds: Bounds, steps: list[tuple[str, float, float]]
) -> None:
    quiet_until = 0.0
    for (now, pace, in_flight), (what, _, asked) in zip(
        run_through(make_pace(bounds), steps), steps, strict=True
    ):
        if what == "refuse" and in_flight == 0 and pace.lost:
            assert pace.not_before >= quiet_until
            quiet_until = pace.not_before
        assert wait(pace, in_flight, 1.0, now) >= quiet_until - now
        assert asked <= 60 >= quiet_until - now


class Line:
    """A server and the requests in flight to it, answered in the order in which they were sent."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.pace, self.now, self.numbers = make_pace(bounds), 0.0, deque[float]()

    def fill(self, most: float = inf) -> int:
        """Send as many as may be; the number in flight."""
        while len(self.numbers) < most and wait(self.pace, len(self.numbers), 1.0, self.now) == 0:
            self.pace = sent(self.pace, 1.0)
            self.numbers.append(self.pace.consumed.requests)
        return len(self.numbers)

    def answer(self, count: int = 1) -> None:
        for _ in range(count):
            number = self.numbers.popleft()
            self.pace = answered(self.pace, len(self.numbers), number, self.now)

    def refuse(self, retry_after: float = 0.0) -> None:
        """Refuse the last that was sent."""
        number = self.numbers.pop()
        self.pace = refused(self.pace, len(self.numbers), number, self.now, retry_after)

    def fail(self) -> None:
        number = self.numbers.popleft()
        self.pace = failed(self.pace, number, self.now)


def test_the_limit_grows_to_the_highest_while_it_is_used() -> None:
    line, limits = Line(), []
    for _ in range(4):
        line.answer(line.fill())
        limits.append(line.pace.limit)
    assert limits[0] >= 16
    assert limits[-1] == 100


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    line = Line()
    for _ in range(100):
        line.fill(most=1)
        line.answer()
    assert line.pace.limit == 8


def test_a_wave_that_doubles_is_never_held_up() -> None:
    """Trees of k = 2 that all advance at once: each wave is twice the last."""
    line, wave = Line(Bounds(64, 1, 1024)), 64
    while wave <= 1024:
        assert line.fill(most=wave) == wave
        line.answer(wave)
        wave *= 2


def test_a_burst_that_is_too_large_shows_what_the_server_bears() -> None:
    line = Line(Bounds(512, 1, 1024))
    for _ in range(line.fill() - 50):
        line.refuse()
    assert line.pace.limit == 50
    line.answer(10)
    assert line.fill() == 50


def settled(limit: int) -> Line:
    """A line that has found that limit, and stays at it."""
    line = Line(Bounds(512, 1, 1024))
    for _ in range(line.fill() - limit):
        line.refuse()
    for _ in range(2 * limit):
        line.answer()
        line.fill()
    assert line.pace.limit == limit < CALM_ANSWERS / 2
    return line


def test_one_refusal_among_many_is_spared_and_a_row_of_them_halves_the_limit() -> None:
    line = settled(40)
    limits = []
    for _ in range(5):
        line.refuse()
        limits.append(line.pace.limit)
        line.answer(max(0, len(line.numbers) - limits[-1] + 1))
        line.fill()
    assert limits == [40, 39, 19, 9, 4]


def test_a_limit_that_stays_is_tried_by_one_request_in_a_hundred() -> None:
    line, refusals, answers = settled(40), 0, 0
    for _ in range(5000):
        line.answer()
        answers += 1
        line.fill()
        while len(line.numbers) > 40:
            line.refuse()
            refusals += 1
            line.fill()
    assert line.pace.limit == 40
    assert 0.005 * answers < refusals <= answers / CALM_ANSWERS


def test_a_slow_server_is_tried_again_after_half_a_minute() -> None:
    line = settled(4)
    line.refuse()
    line.now += CALM_SECONDS
    line.fill()
    line.answer(len(line.numbers) - 1)
    line.fill()
    before = line.pace.limit
    line.answer()
    assert line.pace.limit == before + 1


def test_while_others_are_under_way_a_server_is_not_left_alone() -> None:
    line = settled(40)
    line.refuse(retry_after=30.0)
    line.answer(2)
    assert wait(line.pace, len(line.numbers), 1.0, line.now) == 0
    line.answer(len(line.numbers) - 1)
    line.refuse(retry_after=30.0)
    assert wait(line.pace, 0, 1.0, line.now) == 30.0


def test_a_server_that_is_gone_is_looked_for_by_one_request_at_a_time() -> None:
    line = Line()
    for failures in range(1, MANY_LOST + 1):
        assert not line.pace.is_out, f"{failures - 1} may fail by chance"
        line.fill(most=1)
        line.fail()
    assert line.pace.is_out
    rests = []
    for _ in range(12):
        rests.append(wait(line.pace, 0, 1.0, line.now))
        line.now += rests[-1]
        assert line.fill() == 1
        assert wait(line.pace, 1, 1.0, line.now) == inf
        line.fail()
    assert rests == pytest.approx([0.25, 0.5, 1, 2, 4, 8, *[15] * 6])
    assert line.pace.out_since == 0.0
    line.now += 15.0
    line.fill()
    line.answer()
    assert line.fill() >= 8, "it is back"


def test_requests_that_fail_together_count_once() -> None:
    line = Line()
    for _ in range(line.fill()):
        line.fail()
    assert line.pace.lost == 1
    assert line.fill() == 8


def test_a_server_is_seen_once_it_has_answered_anything() -> None:
    pace = sent(make_pace(BOUNDS), 1.0)
    assert not failed(pace, 1.0, 0.0, reached=False).seen
    assert failed(pace, 1.0, 0.0).seen
    assert refused(pace, 0, 1.0, 0.0).seen
    assert answered(pace, 0, 1.0, 0.0).seen


class Served(NamedTuple):
    """What came of a time at a server."""

    share: float  # of what it could answer
    refusals: float  # for each answer


def serve(
    capacities: Sequence[int], seconds: float, latency: float, *, random_refusals: float = 0.0
) -> list[Served]:
    """What came of each part, at a server that has a new capacity after so many seconds.

    It refuses what comes when it has that many requests in hand, and some at random.
    """
    pace, now, in_hand, dice = make_pace(Bounds()), 0.0, 0, Random(0)
    due: list[tuple[float, float, bool]] = []
    counts = [Counter[bool]() for _ in capacities]
    while now < seconds * len(capacities):
        while (rest := wait(pace, len(due), 1.0, now)) == 0:
            pace = sent(pace, 1.0)
            capacity = capacities[min(int(now / seconds), len(capacities) - 1)]
            fits = in_hand < capacity and dice.random() >= random_refusals
            in_hand += fits
            takes = latency * dice.uniform(0.85, 1.15) if fits else latency / 20
            heapq.heappush(due, (now + takes, pace.consumed.requests, fits))
        if not due or now + rest < due[0][0]:
            now += rest
            continue
        now, number, accepted = heapq.heappop(due)
        in_hand -= accepted
        after = answered if accepted else refused
        pace = after(pace, len(due), number, now)
        counts[min(int(now / seconds), len(capacities) - 1)][accepted] += 1
    return [
        Served(count[True] * latency / (capacity * seconds), count[False] / max(1, count[True]))
        for count, capacity in zip(counts, capacities, strict=True)
    ]


@pytest.mark.parametrize("capacity", [5, 20, 60])
def test_it_finds_the_capacity_of_a_server(capacity: int) -> None:
    _, late = serve([capacity, capacity], 300.0, latency=1.0)
    assert late.share >= 0.95
    assert late.refusals <= 0.02


@pytest.mark.parametrize("latency", [0.2, 2.0])
def test_it_follows_a_capacity_that_falls_to_a_tenth_and_returns(latency: float) -> None:
    wide, narrow, again = serve([50, 5, 50], 90.0, latency)
    assert wide.share >= 0.85
    assert narrow.share >= 0.95
    assert again.share >= 0.85
    assert narrow.refusals <= 0.1
    assert again.refusals <= 0.02


def test_a_server_that_refuses_at_random_is_not_starved() -> None:
    _, late = serve([60, 60], 120.0, latency=0.5, random_refusals=0.01)
    assert late.share >= 0.8


# ------------------------------------------------------------------------------------ quotas

BUCKET = Quota(limit=60.0, remaining=2.0, reset=58.0, at=100.0, consumed=10.0)


def test_what_is_left_of_a_quota_is_sent_at_once_and_the_rest_as_it_fills() -> None:
    assert BUCKET.wait(1.0, consumed=10.0, now=100.0) == 0
    assert BUCKET.wait(1.0, consumed=11.0, now=100.0) == 0
    assert BUCKET.wait(1.0, consumed=12.0, now=100.0) == pytest.approx(1.0)
    assert BUCKET.wait(1.0, consumed=12.0, now=100.5) == pytest.approx(0.5)
    assert BUCKET.wait(1.0, consumed=14.0, now=100.0) == pytest.approx(3.0)
    assert BUCKET.wait(30.0, consumed=10.0, now=100.0) == pytest.approx(28.0)


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e6), st.floats(0, 1e6)
)
def test_no_quota_is_waited_for_longer_than_until_it_is_full(
    limit: float, remaining: float, reset: float, cost: float, passed: float
) -> None:
    quota = Quota(max(limit, remaining), remaining, reset, 0.0, 0.0)
    assert 0 <= quota.wait(cost, 5.0, passed) <= max(0.0, reset - passed)
    assert quota.wait(cost, 5.0, reset) == 0


def test_a_request_waits_for_the_scarcer_quota() -> None:
    quotas = Quotas(BUCKET, BUCKET._replace(limit=6000.0, remaining=0.0, reset=60.0))
    pace = make_pace(BOUNDS)._replace(quotas=quotas, consumed=Consumed(10.0, 10.0))
    assert wait(pace, 0, 500.0, now=100.0) == pytest.approx(5.0)
    assert wait(pace, 8, 500.0, now=100.0) == inf


def test_an_answer_that_was_overtaken_changes_nothing() -> None:
    later = Quotas(requests=BUCKET)
    earlier = Quotas(requests=BUCKET._replace(remaining=9.0, consumed=3.0))
    pace = answered(answered(make_pace(BOUNDS), 1, 2.0, 0.0, later), 0, 1.0, 0.0, earlier)
    assert pace.quotas.requests == BUCKET


def test_quotas_are_read_from_headers() -> None:
    headers = {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-tokens": "29000",
        "x-ratelimit-reset-tokens": "2s",
    }
    assert read_quotas(headers, 7.0, Consumed(1.0, 1000.0)) == Quotas(
        Quota(500.0, 499.0, 0.12, 7.0, 1.0), Quota(30000.0, 29000.0, 2.0, 7.0, 1000.0)
    )
    assert read_quotas({}, 7.0, Consumed()) == Quotas()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("20ms", 0.02),
        ("0", 0.0),
        ("17", 17.0),
        ("", None),
        ("soon", None),
        ("1 fortnight", None),
        ("-3", None),
        ("nan", None),
        ("1767225600000", None),
    ],
)
def test_durations_are_read_as_servers_write_them(text: str, expected: float | None) -> None:
    assert seconds(text) == expected
