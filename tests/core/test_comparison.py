"""Two sides compared on the same problems."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nip_fn.metrics.comparison import DETECTABLE, Change, Pairing, compare
from nip_fn.metrics.evaluation import Verdicts
from nip_fn.metrics.inference import Difference, paired_difference, unpaired_difference

IDS = ("a", "b", "c", "d", "e", "f")


def verdicts(*right: int, ids: tuple[str, ...] = IDS, games: int = 1) -> Verdicts:
    return Verdicts(ids, right, games)


def clipped(difference: Difference) -> Difference:
    return difference._replace(low=max(-1.0, difference.low), high=min(1.0, difference.high))


def test_one_run_a_side_is_paired_by_problem() -> None:
    found = compare([verdicts(0, 0, 1, 1, 0, 1)], [verdicts(1, 1, 1, 0, 1, 1)], "datapoint")
    expected = paired_difference([[1, 1, 1, 0, 1, 1]], [[0, 0, 1, 1, 0, 1]])
    assert expected.high > 1, "beyond what a difference of shares can be"
    assert found.difference == clipped(expected)
    assert found.detectable == (expected.high - expected.value) * DETECTABLE
    assert (found.first.value, found.second.value) == pytest.approx((3 / 6, 5 / 6))
    assert [change.id for change in found.gained] == ["a", "b", "e"]
    assert found.lost == (Change("d", 1.0, 0.0),)


def test_problems_are_matched_by_their_ids_and_the_others_are_left_out() -> None:
    first = verdicts(1, 0, 1, ids=("a", "b", "x"))
    second = verdicts(1, 0, 1, ids=("b", "a", "y"))
    found = compare([first], [second], "datapoint")
    assert (found.datapoints, found.left_out) == (2, 2)
    assert found.changes == (Change("a", 1.0, 0.0), Change("b", 0.0, 1.0))
    with pytest.raises(ValueError, match="share no datapoint"):
        compare([first], [verdicts(1, ids=("z",))], "datapoint")


def test_seeds_are_paired_or_not_as_is_said() -> None:
    first = [verdicts(0, 0, 1, 1, 0, 1), verdicts(0, 1, 1, 1, 1, 1)]
    second = [verdicts(1, 0, 1, 1, 1, 1), verdicts(1, 1, 1, 1, 1, 1)]
    ours, theirs = ([one.accuracies for one in side] for side in (second, first))
    assert compare(first, second, "seed").difference == clipped(paired_difference(ours, theirs))
    unpaired = unpaired_difference(ours, theirs)
    assert compare(first, second, "datapoint").difference == clipped(unpaired)
    with pytest.raises(ValueError, match="cannot be paired by seed"):
        compare(first, second[:1], "seed")


def test_the_larger_differences_come_first() -> None:
    first = [verdicts(4, 0, 2, ids=("a", "b", "c"), games=4)]
    second = [verdicts(3, 4, 2, ids=("a", "b", "c"), games=4)]
    assert compare(first, second, "datapoint").changes == (
        Change("b", 0.0, 1.0),
        Change("a", 1.0, 0.75),
    )


def test_the_detectable_difference_falls_with_the_number_of_runs() -> None:
    rng = np.random.default_rng(0)

    def side(seeds: int) -> list[Verdicts]:
        shares = rng.normal(0.7, 0.05, size=seeds).clip(0, 1)
        ids = tuple(map(str, range(200)))
        return [
            Verdicts(ids, tuple((rng.random(200) < share).astype(int).tolist()), 1)
            for share in shares
        ]

    few, many = (compare(side(seeds), side(seeds), "datapoint") for seeds in (3, 12))
    assert 0 < many.detectable < few.detectable


@given(st.integers(1, 8), st.data())
def test_a_difference_lies_in_its_interval_and_this_between_all_wrong_and_all_right(
    games: int, data: st.DataObject
) -> None:
    rights = st.tuples(*[st.integers(0, games)] * len(IDS))
    first, second = (verdicts(*data.draw(rights), games=games) for _ in range(2))
    value, low, high, *_ = compare([first], [second], "datapoint").difference
    assert -1 <= low <= value + 1e-12
    assert value - 1e-12 <= high <= 1
    assert compare([first], [first], "datapoint").difference[3:] == (1.0, 1.0)


def test_problems_are_paired() -> None:
    ids = IDS[:4]
    apart, together = (
        compare([verdicts(*one, ids=ids)], [verdicts(*other, ids=ids)], "datapoint").difference
        for one, other in (((0, 0, 1, 1), (1, 1, 0, 0)), ((1, 1, 0, 0), (1, 1, 1, 0)))
    )
    assert (apart.value, together.value) == (0.0, 0.25)
    assert apart.p > together.p


@pytest.mark.parametrize("pair", ["seed", "datapoint"])
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_p_over_trainings_is_small_by_chance_in_no_more_cases_than_it_says(
    seeds: int, pair: Pairing
) -> None:
    """Two sides of one configuration, whose seeds differ by 3.5 points, on 400 problems."""
    rng = np.random.default_rng(seeds)
    ids = tuple(map(str, range(400)))

    def side(ease_P: NDArray[np.float64]) -> list[Verdicts]:
        shares = rng.normal(0.8, 0.035, size=seeds)
        right_SP = rng.random((seeds, 400)) < shares[:, None] + ease_P
        return [Verdicts(ids, tuple(right_P.astype(int).tolist()), 1) for right_P in right_SP]

    found = [
        compare(side(ease_P), side(ease_P), pair) for ease_P in rng.normal(0, 0.15, (200, 400))
    ]
    # 5 %, and two standard errors of a share of 200.
    assert sum(one.p < 0.05 for one in found if one.p is not None) / 200 < 0.05 + 0.03


@pytest.mark.parametrize("seeds", [(1, 1), (1, 5), (2, 2)])
def test_a_difference_of_too_few_trainings_has_no_p_over_trainings(seeds: tuple[int, int]) -> None:
    """Or it would be below 0.05 by chance in 30, 22 and 8 of 100 such cases."""
    sides = ([verdicts(0, 0, 1, 1, 0, 1)] * number for number in seeds)
    found = compare(*sides, "datapoint")
    assert (found.p, found.is_of_two_models) == (None, seeds == (1, 1))
