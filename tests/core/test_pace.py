"""How many requests an endpoint is sent at a time: laws, and a server to run against."""

import heapq
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn_adapters.api.pace import (
    CUT,
    WINDOW,
    Bounds,
    Consumed,
    Pace,
    Quota,
    Quotas,
    answered,
    make_pace,
    read_quotas,
    refused,
    seconds,
    sent,
    unreachable,
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
    now, in_flight, after = 0.0, 0, []
    for what, passed, asked in steps:
        now += passed
        if what == "send" and wait(pace, in_flight, 1.0, now) == 0:
            in_flight += 1
            pace = sent(pace, in_flight, 1.0)
        elif what == "answer" and in_flight:
            in_flight -= 1
            pace = answered(pace, in_flight, now)
        elif what == "refuse" and in_flight:
            in_flight -= 1
            pace = refused(pace, in_flight, now, asked)
        after.append((now, pace, in_flight))
    return after


@given(bounds, steps)
def test_the_limit_stays_within_its_bounds(
    bounds: Bounds, steps: list[tuple[str, float, float]]
) -> None:
    for _, pace, in_flight in run_through(make_pace(bounds), steps):
        assert bounds.lowest <= pace.limit <= bounds.highest
        assert in_flight <= bounds.highest


@given(bounds, steps)
def test_the_limit_is_cut_at_most_once_in_15_s(
    bounds: Bounds, steps: list[tuple[str, float, float]]
) -> None:
    limit, cuts = make_pace(bounds).limit, []
    for now, pace, _ in run_through(make_pace(bounds), steps):
        if pace.limit < limit:
            assert pace.limit <= max(bounds.lowest, CUT * limit)
            cuts.append(now)
        limit = pace.limit
    assert all(b - a >= WINDOW for a, b in pairwise(cuts))


@given(bounds, steps)
def test_a_server_that_asks_for_silence_has_it(
    bounds: Bounds, steps: list[tuple[str, float, float]]
) -> None:
    quiet_until = 0.0
    for (now, pace, in_flight), (what, _, asked) in zip(
        run_through(make_pace(bounds), steps), steps, strict=True
    ):
        quiet_until = max(quiet_until, pace.not_before if what == "refuse" else 0.0)
        assert wait(pace, in_flight, 1.0, now) >= quiet_until - now
        assert asked <= 60 >= quiet_until - now


def fill(pace: Pace, now: float = 0.0) -> tuple[Pace, int]:
    """As many in flight as may be."""
    in_flight = 0
    while wait(pace, in_flight, 1.0, now) == 0:
        in_flight += 1
        pace = sent(pace, in_flight, 1.0)
    return pace, in_flight


def round_of_answers(pace: Pace, now: float = 0.0) -> Pace:
    pace, in_flight = fill(pace, now)
    for left in reversed(range(in_flight)):
        pace = answered(pace, left, now)
    return pace


def test_the_limit_doubles_each_round_up_to_the_highest() -> None:
    pace, limits = make_pace(BOUNDS), []
    for _ in range(6):
        pace = round_of_answers(pace)
        limits.append(pace.limit)
    assert limits == [16, 32, 64, 100, 100, 100]


def test_after_a_refusal_it_grows_by_one_in_15_s() -> None:
    pace, in_flight = fill(make_pace(BOUNDS))
    pace = refused(pace, in_flight - 1, now=0.0)
    limits = [pace.limit]
    for tenth in range(1, 460):
        pace = round_of_answers(pace, now=tenth / 10)
        limits.append(pace.limit)
    assert sorted(set(limits)) == pytest.approx([6.4, 7.4, 8.4, 9.4])
    assert limits.index(max(limits)) == 450


def test_a_large_limit_grows_by_a_twentieth_in_15_s() -> None:
    pace, in_flight = fill(make_pace(Bounds(100, 1, 1000)))
    pace = refused(pace, in_flight - 1, now=0.0)
    assert round_of_answers(pace, now=15.0).limit == pytest.approx(80 * 1.05)


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    pace = make_pace(BOUNDS)
    for _ in range(100):
        pace = answered(sent(pace, 1, 1.0), 0, 0.0)
    assert pace.limit == 8


def test_a_wave_that_doubles_is_never_held_up() -> None:
    """Trees of k = 2 that all advance at once: each wave is twice the last."""
    pace, wave = make_pace(Bounds(64, 1, 1024)), 64
    while wave <= 1024:
        for in_flight in range(wave):
            assert wait(pace, in_flight, 1.0, 0.0) == 0, f"wave of {wave}"
            pace = sent(pace, in_flight + 1, 1.0)
        for left in reversed(range(wave)):
            pace = answered(pace, left, 0.0)
        wave *= 2


def test_siblings_that_are_refused_together_count_once() -> None:
    pace, in_flight = fill(make_pace(BOUNDS))
    for left in reversed(range(in_flight)):
        pace = refused(pace, left, now=1.0)
    assert pace.limit == pytest.approx(CUT * 8)


def test_a_server_that_is_gone_is_looked_for_by_one_request_at_a_time() -> None:
    pace, now = make_pace(BOUNDS), 0.0
    pace = unreachable(unreachable(pace, now), now)
    assert wait(pace, 7, 1.0, now) == 0, "two connections may break by chance"
    rests = []
    for _ in range(12):
        pace = unreachable(pace, now)
        rests.append(wait(pace, 0, 1.0, now))
        now += rests[-1]
        assert wait(pace, 0, 1.0, now) == 0
        assert wait(pace, 1, 1.0, now) == inf
    assert rests == pytest.approx([0.25, 0.5, 1, 2, 4, 8, *[15] * 6])
    assert wait(answered(pace, 0, now), 7, 1.0, now) == 0, "it is back"


def served(capacity: int, seconds: float, latency: float = 1.0) -> tuple[float, float]:
    """Answers per second, and the share of refusals, in the second half of so many seconds with a
    server that refuses whatever comes when it has `capacity` requests in hand.
    """
    pace, in_flight, now = make_pace(Bounds(8, 1, 500)), 0, 0.0
    due: list[tuple[float, bool]] = []
    done = no = 0
    while now < seconds:
        while wait(pace, in_flight, 1.0, now) == 0:
            fits = sum(accepted for _, accepted in due) < capacity
            in_flight += 1
            pace = sent(pace, in_flight, 1.0)
            heapq.heappush(due, (now + (latency if fits else latency / 10), fits))
        now, accepted = heapq.heappop(due)
        in_flight -= 1
        late = now > seconds / 2
        if accepted:
            pace, done = answered(pace, in_flight, now), done + late
        else:
            pace, no = refused(pace, in_flight, now), no + late
    return done / (seconds / 2), no / max(1, done + no)


@pytest.mark.parametrize("capacity", [5, 20, 60])
def test_it_finds_the_capacity_of_a_server(capacity: int) -> None:
    rate, refusals = served(capacity, 600.0)
    assert rate >= 0.75 * capacity
    assert refusals < 0.5


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
    pace = answered(answered(make_pace(BOUNDS), 1, 0.0, later), 0, 0.0, earlier)
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
