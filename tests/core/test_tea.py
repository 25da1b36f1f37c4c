"""The lady tasting tea: what the worlds are, and Fisher's bound on guessing, by counting."""

from itertools import combinations, islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.keys import fold_in, key
from nip_fn.worlds.tea import (
    MILK,
    NUM_CUPS,
    NUM_EACH,
    TEA,
    best_accuracy,
    blind_guess,
    datapoint_of,
    make_dataset,
    pourings,
    split_of,
    world_of,
    worlds,
)


@pytest.mark.parametrize("num", range(1, NUM_CUPS + 1))
def test_no_blind_guess_does_better_than_fishers_p_value(num: int) -> None:
    """Every question about `num` cups, every answer, over the twenty ways to pour."""
    best = max(
        sum(
            all(poured[cup] == kind for cup, kind in zip(asked, told, strict=True))
            for poured in pourings()
        )
        for asked in combinations(range(NUM_CUPS), num)
        for told in product((TEA, MILK), repeat=num)
    )
    assert blind_guess(num) == best / len(pourings())


def test_the_best_accuracies_are_those_of_the_design() -> None:
    found = [round(best_accuracy(num), 3) for num in range(1, NUM_CUPS + 1)]
    assert found == [0.75, 0.85, 0.925, 0.95, 0.975, 0.975]
    assert best_accuracy(0) == 0.5


@given(st.integers(0, 2**64), st.booleans(), st.sampled_from(["train", "validation", "test"]))
def test_a_world_is_read_back_from_its_views(seed: int, public: bool, split: str) -> None:
    for world in islice(worlds(key(seed), split, public=public), 4):  # type: ignore[arg-type]
        point = datapoint_of(world)
        assert world_of(point) == world
        assert split_of(world.cups) == split
        assert sorted(world.poured) == sorted(world.saucers) == [MILK] * NUM_EACH + [TEA] * NUM_EACH
        assert point.label == (len(set(world.tastes)) == 2)
        assert (world.saucers == world.poured) >= public


def test_each_side_is_shown_its_own_view() -> None:
    world = next(worlds(key(1), "train"))
    point = datapoint_of(world)
    assert point.view("verifier") not in point.view("prover")
    assert "Saucers" not in point.view("verifier")
    assert point.view("somebody", "prover") == point.view("prover")
    assert point.view("somebody") == ""


def test_splits_share_no_cups_and_hold_both_classes() -> None:
    data = make_dataset(key(0), num_train=200, num_validation=60, num_test=100)
    cups = [
        {point.problem_id for point in part} for part in (data.train, data.validation, data.test)
    ]
    assert sum(map(len, cups)) == len(set.union(*cups))
    for part in (data.train, data.validation, data.test):
        assert 2 * sum(point.label for point in part) == len(part)
        assert len({point.id for point in part}) == len(part)


def test_the_variants_differ_in_the_saucers_alone() -> None:
    own = fold_in(key(3), "pair")
    for private, public in zip(
        islice(worlds(own, "test"), 20), islice(worlds(own, "test", public=True), 20), strict=True
    ):
        assert private._replace(saucers=public.saucers) == public


def test_views_change_a_datapoints_name() -> None:
    one, other = (datapoint_of(world) for world in islice(worlds(key(1), "train"), 2))
    assert one.question == other.question
    assert one.solution == other.solution == ""
    assert one.id != other.id
