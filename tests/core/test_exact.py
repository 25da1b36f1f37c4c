"""Rewards, ties and thresholds are those of exact arithmetic."""

from fractions import Fraction
from itertools import product
from math import floor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from returns.pipeline import is_successful

from nip_fn.config.codec import from_dict
from nip_fn.game.decision import SPECTRA, SpectrumName
from nip_fn.game.episode import Utterance
from nip_fn.keys import key
from nip_fn.params.base import LARGEST
from nip_fn.params.protocol import CommonProtocolParameters
from nip_fn.protocols.nip import VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.rewards import decision_reward
from nip_fn.select.filters import margin
from nip_fn.select.pairs import (
    Selector,
    about,
    about_mean,
    best_worst,
    candidates,
    chain,
    every,
    interval,
)
from nip_fn.select.rollouts import at_least, sampling_weights, weighted, with_true_labels
from nip_fn.training.schedules import exponential, linear
from nip_fn.trees.node import Node

from .games import make_params
from .trees import flat

PROTOCOL = protocol_of(make_params())  # the verifier's rewards lie in [-1, 1]
SPECTRUM: list[SpectrumName] = ["likert_scale_6", "likert_scale_7", "out_of_10", "out_of_100"]
SHARES = ["0", "0.05", "0.1", "0.2", "0.25", "0.3"]

# --------------------------------------------------------------------------------------- shares

HUNDREDTHS = st.integers(0, 100)


@given(HUNDREDTHS, HUNDREDTHS, st.integers(0, 9), st.integers(1, 99))
@example(70, 10, 2, 22)
def test_the_share_of_verdicts_that_are_replaced_is_exact(
    start: int, rate: int, iteration: int, num: int
) -> None:
    """In floats 0.7 - 2 · 0.1 is below a half, and a half of 22 verdicts would be 10."""
    exact = Fraction(max(start - iteration * rate, 0), 100)
    share = linear(start / 100, rate / 100)(iteration)
    _, replaced = with_true_labels([1.0] * num, at_least(0.0), share, key(0))
    assert len(replaced) == floor(exact * num)
    decayed = Fraction(start, 100) * Fraction(100 - rate, 100) ** iteration
    assert exponential(start / 100, rate / 100)(iteration) == float(decayed)


@given(HUNDREDTHS.filter(bool), st.integers(1, 99))
@example(35, 90)
def test_the_number_of_weighted_draws_is_exact(factor: int, num: int) -> None:
    drawn = weighted(factor / 100)([1.0] * num, key(0))
    assert len(drawn) == round(Fraction(factor * num, 100))


@given(HUNDREDTHS.filter(bool), st.integers(1, 200))
@example(7, 100)
def test_a_scale_of_loras_alpha_is_refused_unless_it_makes_a_whole_number(
    scale: int, rank: int
) -> None:
    """0.07 of rank 100 is 7, and in floats a little more."""
    agent = {"lora_rank": rank, "lora_alpha_scale": scale / 100}
    refused = not is_successful(from_dict({"agents": {"_default": agent}}))
    assert refused == (scale * rank % 100 != 0)


# -------------------------------------------------------------------------------------- rewards

TENTHS = [n / 10 for n in range(-15, 16)]


def common(reward: float, penalty: float) -> CommonProtocolParameters:
    return CommonProtocolParameters(verifier_reward=reward, verifier_incorrect_penalty=penalty)


def test_a_sure_decision_earns_its_reward_to_the_last_bit() -> None:
    """961 pairs of round rewards; by neither + |x| (full - neither), 184 are a bit off."""
    pairs = list(product(TENTHS, TENTHS))
    for reward, penalty in pairs:
        assert decision_reward(common(reward, penalty), 1.0) == reward
        assert decision_reward(common(reward, penalty), -1.0) == penalty
    assert len(pairs) == 961


@given(st.sampled_from(TENTHS), st.sampled_from(TENTHS), st.floats(-1, 1))
def test_a_reward_in_between_is_on_the_line(reward: float, penalty: float, x: float) -> None:
    ends = Fraction(reward), Fraction(penalty)
    exact = (ends[0] + ends[1]) / 2 + Fraction(x) * (ends[0] - ends[1]) / 2
    assert decision_reward(common(reward, penalty), x) == pytest.approx(float(exact), abs=1e-15)


def test_a_right_decision_reaches_the_threshold_that_equals_its_reward() -> None:
    """With a reward of 0.9 the default threshold of 0.9 selected nothing."""
    amounts = common(0.9, -1.0)
    assert at_least(0.9)([decision_reward(amounts, 1.0)], key(0)) == (0,)


def test_a_sum_of_rewards_reaches_the_threshold_that_it_equals() -> None:
    """0.1 + 0.1 + 0.1 - 0.3 is 2.8e-17 in floats, and so is what falls short of 0."""
    almost = 0.3 - (0.1 + 0.1 + 0.1)
    assert almost < 0
    assert at_least(0.0)([almost, -0.1], key(0)) == (0,)
    assert sampling_weights([0.7, 0.7 + 1e-16, 0.7], minimum=None, epsilon=0.0) == (1 / 3,) * 3
    assert sampling_weights([almost, 1.0], minimum=0.0, epsilon=0.0) == (0.0, 1.0)


# ------------------------------------------------------------------------------------- pairs

Family = list[list[int]]  # for each reply, the ranks of the decisions that it led to


def ranked(rule: Selector, spectrum: SpectrumName, family: Family) -> set[tuple[int, int]]:
    """The (chosen, rejected) replies among those whose value is the mean of such decisions."""
    amounts = CommonProtocolParameters()
    replies = tuple(
        Node(
            utterances=(Utterance(VERIFIER, str(place)),),
            reward=(0.0, 0.0),
            children=tuple(
                Node(
                    reward=(
                        0.0,
                        decision_reward(amounts, SPECTRA[spectrum][rank].continuous),
                    )
                )
                for rank in ranks
            ),
        )
        for place, ranks in enumerate(family)
    )
    among = candidates([flat(Node(reward=(0.0, 0.0), children=replies))], PROTOCOL)
    return {(pair.chosen - 1, pair.rejected - 1) for pair in rule(among, key(0))}


def exact_values(spectrum: SpectrumName, family: Family) -> list[Fraction]:
    most = 100 if spectrum == "out_of_100" else 10 if spectrum == "out_of_10" else 6
    # Without its middle the scale of six keeps the distances of the one of seven.
    steps = [n for n in range(most + 1) if spectrum != "likert_scale_6" or 2 * n != most]
    return [
        sum((Fraction(2 * steps[rank] - most, most) for rank in ranks), Fraction(0)) / len(ranks)
        for ranks in family
    ]


@st.composite
def families(draw: st.DrawFn) -> tuple[SpectrumName, Family]:
    spectrum = draw(st.sampled_from(SPECTRUM))
    num = draw(st.integers(2, 4))
    rank = st.integers(0, len(SPECTRA[spectrum]) - 1)
    ranks = st.lists(rank, min_size=num, max_size=num)
    return spectrum, draw(st.lists(ranks, min_size=2, max_size=num))


@given(families(), st.sampled_from(SHARES), st.sampled_from(SHARES))
def test_rules_and_thresholds_decide_as_fractions_do(
    case: tuple[SpectrumName, Family], share: str, least: str
) -> None:
    spectrum, family = case
    values = exact_values(spectrum, family)
    pairs = [(i, j) for i, j in product(range(len(values)), repeat=2) if values[i] > values[j]]
    wide = Fraction(share) * 2
    centre = sum(values, Fraction(0)) / len(values)
    expected: list[tuple[Selector, set[tuple[int, int]]]] = [
        (every(), set(pairs)),
        (interval(float(share)), {(i, j) for i, j in pairs if values[i] - values[j] > wide}),
        (about(), {(i, j) for i, j in pairs if values[i] >= 0 > values[j]}),
        (about_mean(), {(i, j) for i, j in pairs if values[i] >= centre > values[j]}),
        (
            best_worst(),
            {(i, j) for i, j in pairs if (values[i], values[j]) == (max(values), min(values))},
        ),
        (
            chain(every(), margin(float(least))),
            {(i, j) for i, j in pairs if values[i] - values[j] >= Fraction(least)},
        ),
    ]
    for rule, eligible in expected:
        assert ranked(rule, spectrum, family) == eligible


def test_sums_of_thirds_that_are_equal_tie() -> None:
    """-1, -1, 1/3 and -1/3, -1/3, -1 on the scale of seven: both have the mean -5/9."""
    family = [[0, 0, 4], [2, 2, 0]]
    assert exact_values("likert_scale_7", family) == [Fraction(-5, 9)] * 2
    for rule in (every(), interval(0.0), best_worst(), about_mean()):
        assert ranked(rule, "likert_scale_7", family) == set()


def test_one_step_of_ten_is_the_threshold_of_a_tenth_wherever_it_is_taken() -> None:
    """A tenth of [-1, 1] is 0.2, which is one step; the interval must be wider."""
    steps = [[[upper], [upper - 1]] for upper in range(1, 11)]
    assert all(ranked(interval(0.1), "out_of_10", one) == set() for one in steps)
    assert all(ranked(chain(every(), margin(0.2)), "out_of_10", one) for one in steps)
    twice = [[[upper], [upper - 2]] for upper in range(2, 11)]
    assert all(ranked(interval(0.1), "out_of_10", two) == {(0, 1)} for two in twice)


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=5), st.floats(0.1, LARGEST / 4))
def test_ties_do_not_depend_on_the_scale_of_rewards(values: list[int], scale: float) -> None:
    """Rewards that are many times as large have errors that are as many times as large."""
    noisy = [scale * value + scale * 1e-15 * (-1) ** place for place, value in enumerate(values)]
    params = make_params(
        {"protocol_common": {"verifier_reward": 4 * scale, "verifier_incorrect_penalty": -scale}}
    )
    replies = tuple(Node((Utterance(VERIFIER, str(i)),), (0.0, 0.0)) for i in range(len(values)))
    tree = flat(Node(reward=(0.0, 0.0), children=replies))
    rows = np.array([(0.0, 0.0), *((0.0, value) for value in noisy)])
    among = candidates([tree], protocol_of(params), lambda _: rows)
    found = {(pair.chosen - 1, pair.rejected - 1) for pair in every()(among, key(0))}
    places = range(len(values))
    assert found == {(i, j) for i, j in product(places, places) if values[i] > values[j]}


def test_the_last_bit_of_a_sum_is_no_preference() -> None:
    """-5/9 comes out one bit apart by two ways of adding thirds up."""
    replies = tuple(Node((Utterance(VERIFIER, text),), (0.0, 0.0)) for text in "ab")
    tree = flat(Node(reward=(0.0, 0.0), children=replies))
    rows = np.array([(0.0, 0.0), (0.0, -0.5555555555555555), (0.0, -0.5555555555555556)])
    among = candidates([tree], PROTOCOL, lambda _: rows)
    for rule in (every(), best_worst(), interval(0.0)):
        assert chain(rule, margin(0.0))(among, key(0)) == ()


# --------------------------------------------------------------------- the mean of the siblings


@given(families())
def test_there_is_a_pair_about_the_mean_wherever_values_differ(
    case: tuple[SpectrumName, Family],
) -> None:
    spectrum, family = case
    assert bool(ranked(about_mean(), spectrum, family)) == bool(ranked(every(), spectrum, family))


@given(families(), st.sampled_from([-3.0, -30.0, 5.0]))
def test_no_penalty_moves_the_mean(case: tuple[SpectrumName, Family], penalty: float) -> None:
    """Of the mid-point between the bounds the same does not hold."""
    spectrum, family = case
    values = [float(value) for value in exact_values(spectrum, family)]
    replies = tuple(Node((Utterance(VERIFIER, str(i)),), (0.0, 0.0)) for i in range(len(values)))
    tree = flat(Node(reward=(0.0, 0.0), children=replies))
    rows = np.array([(0.0, 0.0), *((0.0, value) for value in values)])
    moved = protocol_of(make_params({"protocol_common": {"verifier_terminated_penalty": penalty}}))
    one, other = (
        about_mean()(candidates([tree], protocol, lambda _: rows), key(0))
        for protocol in (PROTOCOL, moved)
    )
    assert one == other


def test_a_penalty_moves_the_mid_point_past_every_decision() -> None:
    """Bounds [-3, 1]: the mid-point -1 is what a wrong decision is worth, which so is positive."""
    params = make_params({"protocol_common": {"verifier_terminated_penalty": -3.0}})
    replies = tuple(Node((Utterance(VERIFIER, text),), (0.0, 0.0)) for text in "ab")
    tree = flat(Node(reward=(0.0, 0.0), children=replies))
    rows = np.array([(0.0, 0.0), (0.0, 1.0), (0.0, -1.0)])
    among = candidates([tree], protocol_of(params), lambda _: rows)
    assert about()(among, key(0)) == ()
    assert len(about_mean()(among, key(0))) == 1
