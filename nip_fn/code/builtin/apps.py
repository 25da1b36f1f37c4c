"""Rows of the data sets codeparrot/apps and lrhammond/buggy-apps.

The first is APPS (Hendrycks et al. 2021, "Measuring coding challenge competence with APPS"): only
right solutions, with tests.  The second gives right solutions and buggy ones made from them.
"""

from collections.abc import Mapping
from typing import Any

from returns.result import Failure, Result, Success

from nip_fn.code.programs import Tests
from nip_fn.code.solutions import BugOrigin, LabelledSolution, read_json, read_tests, read_text
from nip_fn.errors import Problem, collect
from nip_fn.game.datapoint import text_hash
from nip_fn.params.data import CodeValidationParameters

# A row is from the data set whose columns it has.
APPS_COLUMNS = ("question", "solutions", "input_output", "difficulty")
BUGGY_COLUMNS = ("question", "solutions", "buggy_solutions", "difficulty")


Read = Result[tuple[LabelledSolution, ...], Problem]


def apps_row(row: Mapping[str, Any], split: str, choice: CodeValidationParameters) -> Read:
    """The chosen solution of a row of APPS; none where it has too few, or is of another difficulty.

    A problem is found at the name of its column.
    """
    if not _chosen(row, choice):
        return Success(())
    number = choice.apps_solution_number
    return _json_list(row, "solutions").bind(
        lambda solutions: (
            _solution(row, split, "problem_id", "solutions", solutions[number], 1).map(_alone)
            if number < len(solutions)
            else Success(())
        )
    )


def buggy_apps_row(row: Mapping[str, Any], split: str, choice: CodeValidationParameters) -> Read:
    """All solutions of a row of buggy-apps, first the right ones.

    The two lists may differ in length, and either may be empty.  A problem is found at the name of
    its column.
    """
    # The flags are those of a moderation service; buggy-apps keeps the rows all the same.
    if not _chosen(row, choice) or (choice.apps_exclude_flagged and row.get("flags")):
        return Success(())
    return Result.do(
        (*right, *buggy)
        for right in _all_of(row, split, "solutions", 1)
        for buggy in _all_of(row, split, "buggy_solutions", 0)
    )


def _all_of(row: Mapping[str, Any], split: str, column: str, label: int) -> Read:
    """The solutions of one label in a row of buggy-apps."""

    def read(entries: list[Any]) -> Read:
        source = row, split, "apps_problem_id", column
        return collect(_solution(*source, entry, label) for entry in entries)

    return _json_list(row, column).bind(read)


def _solution(
    row: Mapping[str, Any], split: str, id_column: str, column: str, entry: Any, label: int
) -> Result[LabelledSolution, Problem]:
    """One solution of a row.

    Args:
        row: as the data set has it.
        split: the name of the table that it is from.
        id_column: the column with the number of the problem.
        column: the column with the solution.
        entry: the solution, as the column has it.
        label: 1 right, 0 with a bug.
    """
    code = entry.get("solution") if isinstance(entry, Mapping) else entry
    return Result.do(
        LabelledSolution(question, solution, label, problem, difficulty, tests, origin=origin)
        for question in _text("question", row.get("question"))
        for solution in _text(column, code)
        for problem in _problem_id(row, split, id_column)
        for difficulty in _difficulty(row)
        for tests in _tests(row)
        for origin in (Success(None) if label else _origin(entry))
    )


def _alone(solution: LabelledSolution) -> tuple[LabelledSolution, ...]:
    return (solution,)


def _chosen(row: Mapping[str, Any], choice: CodeValidationParameters) -> bool:
    return choice.apps_difficulty in ("all", row.get("difficulty"))


def _difficulty(row: Mapping[str, Any]) -> Result[str | None, Problem]:
    value = row.get("difficulty")
    return _text("difficulty", value) if value else Success(None)


def _problem_id(row: Mapping[str, Any], split: str, column: str) -> Result[str, Problem]:
    """The name of a problem: APPS numbers those of each of its splits from 0."""
    number = row.get(column)
    if number is None:
        return _text("question", row.get("question")).map(text_hash)
    return Success("/".join(filter(None, (str(row.get("apps_split") or split), str(number)))))


def _origin(entry: object) -> Result[BugOrigin | None, Problem]:
    """The origin of a bug, as far as buggy-apps tells it."""
    if not isinstance(entry, Mapping):
        return Success(None)
    checks, distance = entry.get("checks") or {}, entry.get("levenshtein_distance") or {}
    try:
        passed, *failures = (int(checks.get(name) or 0) for name in ("pass", "fail", "error"))
        raw = int(distance.get("raw") or 0)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        return Failure(Problem(f"checks, levenshtein_distance: {error}", "buggy_solutions"))
    return Success(
        BugOrigin(made_by="model", passed=passed, tests=passed + sum(failures), distance=raw)
    )


def _tests(row: Mapping[str, Any]) -> Result[Tests | None, Problem]:
    """The tests, where there are any: APPS has problems without."""
    return _json(row, "input_output").bind(_tests_of)


def _tests_of(value: Any) -> Result[Tests | None, Problem]:
    if value is None or value == {}:
        return Success(None)
    if isinstance(value, Mapping) and value.get("inputs") == value.get("outputs") == []:
        return Success(None)
    return read_tests(value).alt(lambda problem: problem.at("input_output"))


def _json_list(row: Mapping[str, Any], column: str) -> Result[list[Any], Problem]:
    """A list, or the JSON of one; "" and null stand for an empty one.

    Also a table of lists, which is what a `Sequence` of the `datasets` library makes of a list of
    tables.
    """
    return _json(row, column).bind(lambda value: _list(value, column))


def _list(value: Any, column: str) -> Result[list[Any], Problem]:
    if value is None:
        return Success([])
    if isinstance(value, Mapping) and all(isinstance(items, list) for items in value.values()):
        if len(set(map(len, value.values()))) > 1:
            return Failure(Problem("a table of lists of unequal lengths", column))
        entries = zip(*value.values(), strict=True)
        return Success([dict(zip(value, entry, strict=True)) for entry in entries])
    if not isinstance(value, list):
        return Failure(Problem(f"a {type(value).__name__}, not a list", column))
    return Success(value)


def _json(row: Mapping[str, Any], column: str) -> Result[Any, Problem]:
    """A value, also one that is written as JSON; None for "" and null."""
    value = row.get(column)
    if not isinstance(value, str):
        return Success(value)
    if not value.strip():
        return Success(None)
    return read_json(value).alt(lambda problem: problem.at(column))


def _text(column: str, value: object) -> Result[str, Problem]:
    return read_text(value).alt(lambda problem: problem.at(column))
