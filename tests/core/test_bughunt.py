"""The hunt for a bug: what the worlds are, and the bounds on checks, by counting."""

from collections import Counter
from itertools import combinations, islice, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.datapoint import SPLITS, Split
from nip_fn.keys import key
from nip_fn.worlds.bughunt import (
    DIGITS,
    LETTERS,
    NUM_STEPS,
    World,
    best_accuracy,
    datapoint_of,
    make_dataset,
    neighbours,
    split_of,
    steps_of,
    world_of,
    worlds,
)

NUM = 3  # steps of the programs that are enumerated


def every_world(num_steps: int) -> list[World]:
    """Right programs and buggy ones, each class with the weight of the other, of two steps."""
    found = []
    for specified in product(("a0", "b0"), repeat=num_steps):
        for place in range(num_steps):
            other = "b0" if specified[place] == "a0" else "a0"
            coded = (*specified[:place], other, *specified[place + 1 :])
            found += [World(specified, specified), World(specified, coded)]
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
def test_nothing_but_a_comparison_tells(split: Split) -> None:
    """Step by step, specified and coded ones are uniform, with a bug and without."""
    steps = steps_of(split)
    for other in (neighbours(step) for step in steps):
        assert len(other) == len(neighbours(steps[0])) > 0
        assert set(other) < set(steps)
    reached = Counter(other for step in steps for other in neighbours(step))
    assert set(reached.values()) == {len(neighbours(steps[0]))}


def test_splits_share_no_step_but_every_letter_and_digit() -> None:
    known = [steps_of(split) for split in SPLITS]
    assert sorted(sum(known, ())) == sorted(map("".join, product(LETTERS, DIGITS)))
    for steps in known:
        assert {step[0] for step in steps} == set(LETTERS)
        assert {step[1] for step in steps} == set(DIGITS)
    for step, other in permutations(steps_of("test"), 2):
        differ = (step[0] != other[0]) + (step[1] != other[1])
        assert (other in neighbours(step)) == (differ == 1)


@given(st.integers(0, 2**64), st.sampled_from(SPLITS), st.sampled_from([1, 8, 16]))
def test_a_world_is_read_back_from_its_views(seed: int, split: Split, num_steps: int) -> None:
    for world in islice(worlds(key(seed), split, num_steps=num_steps), 4):
        point = datapoint_of(world)
        assert world_of(point) == world
        assert point.label == (world.bug is None)
        assert point.view("verifier") == point.view("prover")
        assert len(world.specified) == len(world.coded) == num_steps
        pairs = zip(world.specified, world.coded, strict=True)
        assert sum(asked != done for asked, done in pairs) == (world.bug is not None)
        assert {split_of(step) for step in world.specified + world.coded} == {split}


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
