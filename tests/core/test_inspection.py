from collections.abc import Sequence

import pytest

from nip_fn.code.programs import Tally, Tests
from nip_fn.code.solutions import LabelledSolution, PlacedSolution
from nip_fn.code.statistics import Lengths, label_problem, leaks, statistics
from nip_fn.game.datapoint import Split


def laid(split: Split, name: str, **fields: object) -> PlacedSolution:
    given = {"question": f"question {name}", "solution": f"print({name!r})", "problem_id": name}
    return PlacedSolution(split, name, LabelledSolution(**{**given, "label": 1, **fields}))  # type: ignore[arg-type]


def test_statistics_of_each_split_that_holds_anything() -> None:
    solutions = [
        laid("train", "a", question="qqq", solution="s", difficulty="easy"),
        laid("test", "b", label=0),
        laid("train", "a", question="q", solution="sss", label=0, tests=Tests(inputs=("1",))),
        laid("train", "c", question="qqqqq", solution="ss"),
    ]
    train, test = statistics(solutions, len)
    assert (train.split, test.split) == ("train", "test")
    assert (train.datapoints, train.problems, train.right, train.buggy) == (3, 2, 2, 1)
    assert train.with_tests == 1
    assert train.difficulties == (("easy", 1), ("unknown", 2))
    assert train.question == Lengths(median=3.0, most=pytest.approx(4.8), longest=5)
    assert train.solution == Lengths(median=2.0, most=pytest.approx(2.9), longest=3)
    assert (test.datapoints, test.right, test.buggy) == (1, 0, 1)
    assert statistics([], len) == ()


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"problem_id": "a"}, "problem"),
        ({"question": " question \n a"}, "question (and views)"),
        ({"solution": "print( 'a' )  # the same"}, "solution, but for names and layout,"),
    ],
)
def test_what_two_splits_share_is_told_once_for_each_row(
    fields: dict[str, object], what: str
) -> None:
    apart: Sequence[PlacedSolution] = (
        laid("train", "a"),
        laid("validation", "b"),
        laid("test", "c"),
    )
    assert list(leaks(apart)) == []
    assert list(leaks([*apart, laid("train", "d", **fields)])) == []
    (line,) = leaks([*apart, laid("test", "d", **fields)])
    assert line == f"d (test): a (train) has the same {what}"


@pytest.mark.parametrize(
    ("label", "tally", "problem"),
    [
        (1, Tally(passed=3), None),
        (0, Tally(passed=2, wrong=1), None),
        (0, Tally(crashed=1), None),
        (0, Tally(stopped=1), None),
        (0, Tally(passed=3), "labelled as having a bug, but all 3 tests pass"),
        (1, Tally(passed=2, wrong=1), "labelled right, but 1 of 3 tests fail "
                                      "(1 with another output)"),
        (1, Tally(crashed=1, stopped=2), "labelled right, but 3 of 3 tests fail "
                                         "(1 crashed, 2 out of time)"),
    ],
)  # fmt: skip
def test_labels_that_tests_do_not_bear_out(label: int, tally: Tally, problem: str | None) -> None:
    assert label_problem(laid("train", "a", label=label).solution, tally) == problem
