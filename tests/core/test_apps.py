"""Rows of APPS and buggy-apps, in the schemas of the hub."""

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.code.builtin.apps import read_apps
from nip_fn.code.programs import Tests
from nip_fn.code.questions import labelled
from nip_fn.code.solutions import BugOrigin, LabelledSolution
from nip_fn.game.datapoint import text_hash
from nip_fn.params.data import CodeValidationParameters

ALL = CodeValidationParameters(apps_difficulty="all")
APPS: Mapping[str, Any] = {
    "problem_id": 7,
    "question": "Größe?\r\nWie groß?\r\n",
    "solutions": json.dumps(["print('ä\\n')\r\n", "print('b\\\\n')", "print('日本')"]),
    "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]}),
    "difficulty": "interview",
    "url": "https://example.org/7",
    "starter_code": "",
}
BUG: Mapping[str, Any] = {
    "apps_solution_number": 0,
    "solution": "print('á')\r\n",
    "levenshtein_distance": {"normalised": 0.1, "raw": 1},
    "checks": {"pass": 3, "fail": 2, "error": 1},
    "generation_attempts": 4,
}
BUGGY: Mapping[str, Any] = {
    "apps_split": "train",
    "apps_problem_id": 7,
    "difficulty": "interview",
    "question": "Größe?",
    "solutions": [
        {"apps_solution_number": 0, "solution": "print('ä')\r\n"},
        {"apps_solution_number": 1, "solution": "print('b')"},
    ],
    "buggy_solutions": [BUG],
    "flags": None,
}


def solutions_of(
    row: Mapping[str, Any], split: str, choice: CodeValidationParameters = ALL
) -> list[LabelledSolution]:
    return list(chain(*map(labelled, read_apps(row, split, choice).unwrap())))


def of_apps(choice: CodeValidationParameters = ALL, **fields: object) -> list[LabelledSolution]:
    return solutions_of({**APPS, **fields}, "train", choice)


def of_buggy(choice: CodeValidationParameters = ALL, **fields: object) -> list[LabelledSolution]:
    return solutions_of({**BUGGY, **fields}, "test", choice)


def labels(solutions: list[LabelledSolution]) -> list[int]:
    return [one.label for one in solutions]


def test_a_row_of_apps_is_its_first_solution() -> None:
    assert of_apps() == [
        LabelledSolution(
            question="Größe?\nWie groß?\n",
            solution="print('ä\\n')\n",
            label=1,
            problem_id="train/7",
            difficulty="interview",
            tests=Tests(inputs=("1\n",), outputs=("2\n",)),
        )
    ]


@pytest.mark.parametrize(("number", "code"), list(enumerate(json.loads(APPS["solutions"]))))
def test_another_solution_of_apps_can_be_chosen_and_no_escape_is_touched(
    number: int, code: str
) -> None:
    (one,) = of_apps(replace(ALL, apps_solution_number=number))
    assert one.solution == code.replace("\r\n", "\n")


@pytest.mark.parametrize("solutions", ["", "[]", None, " ", [], '["print(1)"]'])
def test_a_row_with_too_few_solutions_has_none(solutions: object) -> None:
    assert of_apps(replace(ALL, apps_solution_number=1), solutions=solutions) == []


def test_the_two_parts_of_apps_number_their_problems_apart() -> None:
    (train,), (test,), (neither,) = (solutions_of(APPS, split) for split in ("train", "test", ""))
    assert {train.problem_id, test.problem_id, neither.problem_id} == {"train/7", "test/7", "7"}


def test_without_a_number_a_problem_is_named_by_its_question() -> None:
    assert of_apps(problem_id=None)[0].problem_id == text_hash("Größe?\nWie groß?\n")


@pytest.mark.parametrize("wanted", ["introductory", "interview", "competition", "all"])
def test_the_difficulty_is_exactly_the_one_chosen(wanted: str) -> None:
    choice = replace(ALL, apps_difficulty=wanted)
    for rows in (of_apps, of_buggy):
        found = [rows(choice, difficulty=name) for name in ("introductory", "interview", None)]
        kept = [bool(solutions) for solutions in found]
        assert kept == [wanted in ("all", name) for name in ("introductory", "interview", None)]


@pytest.mark.parametrize(
    "nothing",
    ["", None, "{}", "{ }", '{"inputs": [], "outputs": []}', '{"inputs":[],"outputs":[]}',
     {"inputs": [], "outputs": []}],
)  # fmt: skip
def test_a_problem_may_be_without_tests(nothing: object) -> None:
    assert [one.tests for one in of_apps(input_output=nothing)] == [None]
    assert {one.tests for one in of_buggy(input_output=nothing)} == {None}


def test_functions_are_tested_by_what_they_return() -> None:
    table = {"fn_name": "f", "inputs": [["a", 1]], "outputs": [[True]]}
    (one,) = of_apps(input_output=json.dumps(table))
    assert one.tests == Tests(function="f", inputs=("['a', 1]",), outputs=("True",), wrapped=True)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("question", None),
        ("question", " "),
        ("question", 5),
        ("question", "\ud800"),
        ("solutions", "[print(1)]"),
        ("solutions", '{"a": 1}'),
        ("solutions", "[" * 100_000),
        ("solutions", 5),
        ("solutions", [None]),
        ("solutions", [""]),
        ("solutions", '["\\u0000", 1'),
        ("solutions", {"solution": ["a", "b"], "number": [1]}),
        ("input_output", "{"),
        ("input_output", "5"),
        ("input_output", "[" * 100_000),
        ("input_output", '{"inputs": ["1"], "outputs": []}'),
        ("input_output", '{"inputs": ["1"]}'),
        ("input_output", '{"fn_name": "f", "inputs": [1], "outputs": [1]}'),
        ("difficulty", 5),
        ("difficulty", ["interview"]),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("row", [APPS, BUGGY])
def test_what_cannot_be_read_is_named_by_its_column(
    row: Mapping[str, Any], column: str, value: object
) -> None:
    problem = read_apps({**row, column: value}, "train", ALL).failure()
    assert problem.address.split(":")[0] == column
    assert "\n" not in str(problem)
    assert len(str(problem)) < 400


def test_a_row_of_buggy_apps_is_all_of_its_solutions_the_right_ones_first() -> None:
    found = of_buggy()
    assert [one.solution for one in found] == ["print('ä')\n", "print('b')", "print('á')\n"]
    assert labels(found) == [1, 1, 0]
    assert {one.problem_id for one in found} == {"train/7"}  # whatever its table is called
    assert {one.question for one in found} == {"Größe?"}
    assert [one.origin for one in found] == [
        None,
        None,
        BugOrigin(made_by="model", passed=3, tests=6, distance=1),
    ]


@pytest.mark.parametrize("right", range(4))
@pytest.mark.parametrize("buggy", range(4))
def test_the_two_lists_may_differ_in_length(right: int, buggy: int) -> None:
    found = of_buggy(
        solutions=[{"solution": f"print({n})"} for n in range(right)],
        buggy_solutions=[{**BUG, "solution": f"print(-{n})"} for n in range(buggy)],
    )
    assert labels(found) == [1] * right + [0] * buggy


@pytest.mark.parametrize(
    ("right", "buggy"),
    [
        (None, None),
        ("", ""),
        ("[]", "[]"),
    ],
)
def test_lists_may_be_missing(right: object, buggy: object) -> None:
    assert of_buggy(solutions=right, buggy_solutions=buggy) == []
    assert labels(of_buggy(solutions=right)) == [0]
    assert labels(of_buggy(buggy_solutions=buggy)) == [1, 1]


@pytest.mark.parametrize(
    "entries",
    [
        ["print(1)", "print(2)"],
        [{"solution": "print(1)"}, {"solution": "print(2)"}],
        '["print(1)", "print(2)"]',
        '[{"solution": "print(1)"}, {"solution": "print(2)"}]',
        {"apps_solution_number": [0, 1], "solution": ["print(1)", "print(2)"]},
    ],
)
def test_solutions_are_read_in_every_form(entries: object) -> None:
    found = of_buggy(solutions=entries, buggy_solutions=entries)
    assert [one.solution for one in found] == ["print(1)", "print(2)"] * 2
    assert labels(found) == [1, 1, 0, 0]


def test_flagged_problems_are_left_out_unless_wanted() -> None:
    flags = ["sexual"]
    assert of_buggy(flags=flags) == []
    assert len(of_buggy(replace(ALL, apps_exclude_flagged=False), flags=flags)) == 3
    for nothing in ([], None):
        assert len(of_buggy(flags=nothing)) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"checks": None, "levenshtein_distance": None},
        {"checks": {}, "levenshtein_distance": {}},
        {"checks": {"pass": None}, "levenshtein_distance": {"raw": None}},
    ],
)
def test_how_a_bug_was_made_may_be_unknown(fields: dict[str, object]) -> None:
    assert of_buggy(buggy_solutions=[{**BUG, **fields}])[-1].origin == BugOrigin(made_by="model")


@pytest.mark.parametrize(
    "fields",
    [
        {"checks": 5},
        {"checks": {"pass": "many"}},
        {"checks": {"pass": [1]}},
        {"levenshtein_distance": "near"},
        {"levenshtein_distance": {"raw": float("nan")}},
        {"levenshtein_distance": {"raw": float("inf")}},
    ],
)
def test_counts_that_are_none_are_named(fields: dict[str, object]) -> None:
    row = {**BUGGY, "buggy_solutions": [{**BUG, **fields}]}
    assert read_apps(row, "test", ALL).failure().address == "buggy_solutions"
