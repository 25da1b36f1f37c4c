"""When to ask again: laws of a pure function of the attempts so far."""

from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.keys import Key, fold_in, key
from nip_fn_adapters.providers.api.refusals import kind_of_failure
from nip_fn_adapters.providers.api.retries import (
    TRANSIENT,
    Attempt,
    FailureKind,
    GiveUp,
    Outage,
    RetryPolicy,
    Wait,
    decide,
    own_outage,
)

POLICY, HERE = RetryPolicy(), key(0)
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
FATAL = sorted(set(KINDS) - TRANSIENT)

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 20),
    max_seconds=st.floats(1, 1e4),
    max_outage=st.floats(1, 1e4),
    max_unreached=st.floats(1, 1e4),
    first_wait=st.floats(0.01, 5),
    longest_wait=st.floats(5, 100),
    longest_retry_after=st.floats(0, 1000),
)
attempts = st.builds(
    Attempt,
    kind=st.sampled_from(KINDS),
    status=st.none(),
    retry_after=st.none() | st.floats(0, 2000),
    seconds=st.floats(0, 700),
    waited=st.floats(0, 700),
)
histories = st.lists(attempts, min_size=1, max_size=30).map(tuple)
keys = st.integers(0, 2**32).map(key)


@dataclass
class Ordeal:
    """A request whose every attempt fails in the same way, as far as the policy lets it go."""

    waits: list[float]
    reason: str

    @property
    def seconds(self) -> float:
        return sum(self.waits)


def suffer(attempt: Attempt, policy: RetryPolicy = POLICY, place: Key = HERE) -> Ordeal:
    history: tuple[Attempt, ...] = ()
    waits: list[float] = []
    while len(history) < 100_000:
        history += (attempt._replace(waited=waits[-1] if waits else 0.0),)
        match decide(history, policy, place):
            case Wait(seconds):
                waits.append(seconds)
            case GiveUp(reason):
                return Ordeal(waits, reason)
    raise AssertionError("it never ends")


@given(histories, policies, keys)
def test_the_same_history_and_key_get_the_same_answer(
    history: tuple[Attempt, ...], policy: RetryPolicy, place: Key
) -> None:
    assert decide(history, policy, place) == decide(history, policy, place)


@given(histories, policies, keys)
def test_what_cannot_be_mended_is_never_tried_again(
    history: tuple[Attempt, ...], policy: RetryPolicy, place: Key
) -> None:
    if history[-1].kind in FATAL:
        assert decide(history, policy, place) == GiveUp("")


@given(histories, policies, keys)
def test_a_wait_is_never_shorter_than_the_server_asks_for_and_fits_the_limits(
    history: tuple[Attempt, ...], policy: RetryPolicy, place: Key
) -> None:
    decision = decide(history, policy, place)
    if isinstance(decision, GiveUp):
        return
    asked = history[-1].retry_after or 0.0
    assert asked <= decision.seconds <= max(1.1 * asked, policy.longest_wait)
    assert asked <= policy.longest_retry_after
    spent = sum(one.seconds + one.waited for one in history if not one.in_outage)
    assert spent + decision.seconds <= policy.max_seconds


@given(st.sampled_from(sorted(TRANSIENT)), policies, keys, st.floats(0, 100))
def test_every_ordeal_ends_within_its_time_and_says_how_long_it_took(
    kind: FailureKind, policy: RetryPolicy, place: Key, seconds: float
) -> None:
    ordeal = suffer(Attempt(kind, seconds=seconds), policy, place)
    tries = len(ordeal.waits) + 1
    assert ordeal.seconds + (tries - 1) * seconds <= policy.max_seconds
    assert ordeal.reason.startswith(f"given up after {tries} attempt")


@pytest.mark.parametrize("kind", sorted(TRANSIENT - {"rate_limit"}))
def test_failures_are_counted(kind: FailureKind) -> None:
    assert len(suffer(Attempt(kind)).waits) == POLICY.max_attempts - 1


def test_rate_limits_are_not_counted_but_timed() -> None:
    ordeal = suffer(Attempt("rate_limit", 429, retry_after=60.0))
    assert len(ordeal.waits) > POLICY.max_attempts
    assert POLICY.max_seconds - 70 < ordeal.seconds <= POLICY.max_seconds


@given(histories, policies, keys, st.floats(0, 1e4), st.floats(1, 1e4))
def test_an_outage_is_borne_by_time_alone(
    history: tuple[Attempt, ...], policy: RetryPolicy, place: Key, seconds: float, limit: float
) -> None:
    last = history[-1]._replace(kind="server", retry_after=None)
    decision = decide((*history, last), policy, place, Outage(seconds, limit))
    assert isinstance(decision, Wait) == (seconds < limit)
    if isinstance(decision, Wait):
        assert decision.seconds <= min(policy.longest_wait, limit - seconds)
    else:
        assert decision == GiveUp(f"given up after {seconds:,.0f} s")


def test_what_failed_during_an_outage_is_not_held_against_a_request() -> None:
    history = (Attempt("server", 503, waited=60.0, in_outage=True),) * 100
    assert isinstance(decide((*history, Attempt("malformed", 200)), POLICY, HERE), Wait)


@pytest.mark.parametrize("attempt", [Attempt("connection"), Attempt("server", 503)])
def test_a_task_bears_the_outage_of_its_server_for_hours(attempt: Attempt) -> None:
    history = (attempt._replace(waited=30.0),) * 239
    outage = own_outage(history, POLICY)
    assert outage == Outage(239 * 30.0, POLICY.max_outage)
    assert isinstance(decide(history, POLICY, HERE, outage), Wait)
    assert own_outage((*history, Attempt("server", 500)), POLICY) is None
    assert own_outage((*history, Attempt("timeout")), POLICY) is None


def test_a_rate_limit_does_not_use_up_the_attempts_of_other_failures() -> None:
    history = (Attempt("rate_limit", 429),) * 50 + (Attempt("server", 500),) * 11
    assert isinstance(decide(history, POLICY, key(0)), Wait)
    assert isinstance(decide((*history, Attempt("server", 500)), POLICY, key(0)), GiveUp)


def test_pauses_double_and_are_drawn_from_their_upper_half() -> None:
    for failures in range(1, 11):
        whole = min(POLICY.first_wait * 2 ** (failures - 1), POLICY.longest_wait)
        history = (Attempt("rate_limit", 429),) * failures
        drawn = [decide(history, POLICY, fold_in(key(1), i)) for i in range(200)]
        shares = [wait.seconds / whole for wait in drawn if isinstance(wait, Wait)]
        assert len(shares) == 200
        assert min(shares) >= 0.5
        assert max(shares) <= 1.0
        assert len(set(shares)) == 200
        assert sum(shares) / 200 == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(
    ("asked", "waits"), [(0.0, True), (121.0, True), (300, True), (601, False)]
)
def test_retry_after_is_honoured_up_to_the_longest_that_is_allowed(
    asked: float, waits: bool
) -> None:
    decision = decide((Attempt("rate_limit", 429, asked),), POLICY, key(0))
    assert isinstance(decision, Wait) == waits
    if isinstance(decision, GiveUp):
        assert decision.reason == "it asks for a pause of 601 s, and 600 s are allowed"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "", "refused"),
        (400, "context_length_exceeded", "too_large"),
        (401, "", "key"),
        (402, "", "quota"),
        (403, "", "forbidden"),
        (404, "", "address"),
        (405, "", "address"),
        (408, "", "timeout"),
        (409, "", "conflict"),
        (413, "", "too_large"),
        (422, "", "refused"),
        (429, "", "rate_limit"),
        (429, "insufficient_quota", "quota"),
        (500, "", "server"),
        (501, "", "address"),
        (502, "", "server"),
        (503, "", "server"),
        (504, "", "server"),
        (529, "", "server"),
    ],
)
def test_what_a_status_stands_for(status: int, code: str, kind: FailureKind) -> None:
    assert kind_of_failure(status, code) == kind
