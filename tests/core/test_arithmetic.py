"""The arithmetic task: its labels are proven, its splits are disjoint, its draws are keyed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_fn.code.builtin.arithmetic import (
    CONSTANTS,
    INPUTS,
    OPERATIONS,
    Example,
    Step,
    datapoint_of,
    evaluate_solution,
    evaluate_specification,
    make_dataset,
    mutate,
    problem_id_of,
    program,
    prove_label,
    specification,
    split_of,
)
from nip_fn.code.builtin.philox import integers
from nip_fn.game.datapoint import SPLITS, Datapoint, Dataset, content_hash, make_datapoint
from nip_fn.keys import key

seeds = st.integers(-(2**63), 2**63)
step_lists = st.lists(
    st.builds(Step, st.sampled_from(OPERATIONS), st.sampled_from(CONSTANTS)), min_size=1, max_size=6
)


def small(seed: int) -> Dataset:
    return make_dataset(key(seed), num_train=40, num_validation=10, num_test=20)


def points(dataset: Dataset) -> list[Datapoint]:
    return [datapoint for name in SPLITS for datapoint in dataset.split(name)]


def execute(solution: str, x: int) -> int:
    """What Python itself makes of a solution."""
    names: dict[str, object] = {}
    exec(solution, {"__builtins__": {}}, names)
    function = names["f"]
    assert callable(function)
    result = function(x)
    assert isinstance(result, int)
    return result


@given(step_lists, st.integers())
def test_three_evaluations_of_the_same_steps_agree(steps: list[Step], x: int) -> None:
    asked = evaluate_specification(specification(steps), x)
    assert asked == evaluate_solution(program(steps), x) == execute(program(steps), x)


@given(step_lists, seeds)
def test_a_mutant_changes_one_step_and_the_behaviour(steps: list[Step], seed: int) -> None:
    mutant = mutate(integers(key(seed)), steps)
    assert sum(old != new for old, new in zip(steps, mutant, strict=True)) == 1
    assert any(execute(program(steps), x) != execute(program(mutant), x) for x in INPUTS)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_labels_are_proven_on_inputs_the_generator_did_not_use(seed: int) -> None:
    for datapoint in points(small(seed)):
        assert prove_label(datapoint, range(-30, 31)) == datapoint.label


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_every_split_is_balanced(seed: int) -> None:
    dataset = small(seed)
    for name in SPLITS:
        labels = [datapoint.label for datapoint in dataset.split(name)]
        assert sum(labels) * 2 == len(labels)


@given(seeds, seeds)
@settings(max_examples=20, deadline=None)
def test_a_problem_held_out_under_one_key_is_held_out_under_every_key(a: int, b: int) -> None:
    for name in SPLITS:
        mine = {datapoint.problem_id for datapoint in small(a).split(name)}
        others = {d.problem_id for other in SPLITS if other != name for d in small(b).split(other)}
        assert not mine & others
        assert all(split_of(datapoint.question) == name for datapoint in small(a).split(name))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_no_problem_and_no_datapoint_occurs_twice(seed: int) -> None:
    drawn = points(small(seed))
    assert len({datapoint.id for datapoint in drawn}) == len(drawn)
    assert len({datapoint.problem_id for datapoint in drawn}) == len(drawn)
    assert all(datapoint.problem_id == problem_id_of(datapoint.question) for datapoint in drawn)


@given(seeds, st.lists(st.integers(1, 2**32 - 1) | st.integers(1, 12), max_size=20))
def test_the_stream_is_that_of_numpy(seed: int, sizes: list[int]) -> None:
    """The NumPy of the day may leave it; then this test goes, and the next one stays."""
    draw, number = integers(key(seed)), int.from_bytes(key(seed), "little")
    generator = np.random.Generator(np.random.Philox(key=number))
    assert [draw(size) for size in sizes] == [int(generator.integers(size)) for size in sizes]


def test_the_built_in_data_never_change() -> None:
    """Their hash is in the first event of every recording."""
    dataset = make_dataset(key(0), num_train=2000, num_validation=500, num_test=1000)
    assert content_hash(points(dataset)) == "4e2cb17d38dc602ec5c0eccb688ff0c1"


def test_the_key_alone_decides() -> None:
    assert small(3) == small(3)
    assert small(3) != small(4)


@pytest.mark.parametrize(("num", "more"), [(1, 2), (10, 25), (25, 200)])
def test_a_larger_split_begins_with_the_smaller_one(num: int, more: int) -> None:
    few = make_dataset(key(5), num_train=num, num_validation=0, num_test=num)
    many = make_dataset(key(5), num_train=more, num_validation=3, num_test=more)
    assert many.train[:num] == few.train
    assert many.test[:num] == few.test
    assert few.validation == ()


@pytest.mark.parametrize(
    ("solution", "at_five"),
    [
        ("def f(x):\n    x = x + 3\n    return x", 8),
        ("def g(n):\n    y = n * 2\n    z = y - 1\n    return z * z", 81),
        ("def f(x):\n    return 7", 7),
    ],
)
def test_solutions_with_a_known_value(solution: str, at_five: int) -> None:
    assert evaluate_solution(solution, 5) == at_five


@pytest.mark.parametrize(
    "solution",
    [
        "x = 1",
        "def f(x):\n    pass",
        "def f(x):\n    x = x + 1",
        "def f(x):\n    return y",
        "def f(x):\n    return x / 2",
        "def f(x):\n    return open(x)",
        "def f(x, y):\n    return x",
        "import os\ndef f(x):\n    return x",
    ],
)
def test_a_solution_outside_the_language_is_refused(solution: str) -> None:
    with pytest.raises(ValueError, match=r"function|return|evaluate|assignment"):
        evaluate_solution(solution, 1)


@pytest.mark.parametrize(
    ("question", "at_two"),
    [
        ("Take x, add 3.", 5),
        ("Take x, subtract 3, then multiply by 4.", -4),
        ("Take x, multiply by 9, then add 9, then subtract 2.", 25),
    ],
)
def test_specifications_with_a_known_value(question: str, at_two: int) -> None:
    assert evaluate_specification(question, 2) == at_two


def test_a_wrong_label_is_found_out() -> None:
    question, solution = "Take x, add 3.", "def f(x):\n    x = x - 3\n    return x"
    datapoint = make_datapoint(problem_id_of(question), question, solution, label=1)
    assert prove_label(datapoint, INPUTS) == 0
    assert prove_label(datapoint, ()) == 1  # no input, no disproof


def test_an_example_knows_its_bug() -> None:
    steps = (Step("add", 3), Step("multiply by", 2))
    wrong = Example(specified=steps, coded=(steps[0], Step("multiply by", 4)))
    assert wrong.bug == 1
    assert datapoint_of(wrong).label == 0
    assert Example(specified=steps, coded=steps).bug is None
