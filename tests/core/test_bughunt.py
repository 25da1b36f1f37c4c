"""The hunt for a bug: what the worlds are, and the bounds on checks, by counting."""

from collections import Counter
from itertools import combinations, islice, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.datapoint import SPLITS, Split
from nip_fn.keys import key
from nip_fn.worlds import IMPROVEMENTS
from nip_fn.worlds.bughunt import (
    LETTERS,
    NUM_STEPS,
    HuntWorld,
    best_accuracy,
    bugs,
    datapoint_of,
    make_dataset,
    split_of,
    world_of,
    worlds,
)

NUM = 3  # steps of the programs that are enumerated


def every_world(num_steps: int) -> list[HuntWorld]:
    """Right programs and buggy ones, each class with the weight of the other, of two steps."""
    found = []
    for specified in product(("a", "b"), repeat=num_steps):
        for place in range(num_steps):
            other = "b" if specified[place] == "a" else "a"
            coded = (*specified[:place], other, *specified[place + 1 :])
            found += [HuntWorld(specified, specified), HuntWorld(specified, coded)]
    return found


@pytest.mark.parametrize("num_checks", range(NUM + 1))
def test_no_choice_of_checks_does_better_than_the_bound(num_checks: int) -> None:
    """Every set of steps to check, and every verdict on what the checks can show."""
    right = Counter[float]()
    for checked in combinations(range(NUM), num_checks):
        seen: Counter[tuple[object, bool]] = Counter()
        for world in every_world(NUM):
            shown = tuple((world.specified[i], world.coded[i]) for i in checked)
            seen[shown, world.bug is None] += 1
        best = sum(max(seen[shown, True], seen[shown, False]) for shown in {s for s, _ in seen})
        right[best / len(every_world(NUM))] += 1
    assert max(right) == pytest.approx(best_accuracy(NUM, num_checks))


def test_with_a_critic_one_check_is_enough() -> None:
    """Whatever a critic says of right code, the check of the step that it names accepts it."""
    for world in every_world(NUM):
        named = [world.bug] if world.bug is not None else range(NUM)
        for place in named:
            accepted = world.specified[place] == world.coded[place]
            assert accepted == (world.bug is None)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("place", [0, 3, 15])
def test_nothing_but_a_comparison_tells(split: Split, place: int) -> None:
    """In the place of a uniform letter the others are uniform: each has, and is of, as many."""
    sizes = {len(bugs(place, letter, split)) for letter in LETTERS}
    reached = Counter(done for asked in LETTERS for done in bugs(place, asked, split))
    assert sizes == set(reached.values()) == {len(bugs(0, "a", split))} != {0}
    assert set(reached) == set(LETTERS)


def test_splits_share_no_bug_but_every_two_letters() -> None:
    places, pairs = range(NUM_STEPS), list(permutations(LETTERS, 2))
    for asked, done in pairs:
        assert {split_of(place, asked, done) for place in places} == set(SPLITS)
    for place, (asked, done) in product(places, pairs):
        own = [split for split in SPLITS if done in bugs(place, asked, split)]
        assert own == [split_of(place, asked, done)]


@given(st.integers(0, 2**64), st.sampled_from(SPLITS), st.sampled_from([1, 8, 16]))
def test_a_world_is_read_back_from_its_views(seed: int, split: Split, num_steps: int) -> None:
    for world in islice(worlds(key(seed), split, num_steps=num_steps), 4):
        point = datapoint_of(world)
        assert world_of(point) == world
        assert point.label == (world.bug is None)
        assert point.view("verifier") == point.view("prover")
        assert len(world.specified) == len(world.coded) == num_steps
        pairs = list(zip(world.specified, world.coded, strict=True))
        assert sum(asked != done for asked, done in pairs) == (world.bug is not None)
        assert {split_of(i, *pair) for i, pair in enumerate(pairs) if len(set(pair)) == 2} <= {
            split
        }


def test_half_of_each_split_has_a_bug_which_may_be_anywhere() -> None:
    data = make_dataset(key(0), num_train=400, num_validation=60, num_test=100)
    assert data.name == "bug-hunt"
    for split in SPLITS:
        part = data.split(split)
        assert 2 * sum(point.label for point in part) == len(part)
        assert len({point.id for point in part}) == len(part)
    bugs = Counter(world_of(point).bug for point in data.train if not point.label)
    assert set(bugs) == set(range(NUM_STEPS))
    assert min(bugs.values()) > 10  # of 25 expected


def test_the_table_sets_two_tests_beside_the_theory() -> None:
    after = {"accuracy": 0.75, "accuracy_0": 0.5, "no_decision_rate": 0.25, "hunt.true": 0.9}
    for dataset, alone in (("builtin:bug-hunt", "56.2%"), ("builtin:bug-hunt-16", "53.1%")):
        rows = {row.name: row for row in IMPROVEMENTS[dataset]({"hunt.true": 0.1}, after)}
        accuracy = rows[f"accuracy ({alone} at best with a check of its own)"]
        assert (accuracy.before, accuracy.after, accuracy.optimum) == (None, 0.75, 1.0)
        undecided = rows["games that end undecided"]
        assert (undecided.after, undecided.optimum) == (0.25, 0.0)
        assert rows["buggy programs that are rejected"].after == 0.5
        assert rows["... which is true"][1:4] == (0.1, 0.9, 1.0)
