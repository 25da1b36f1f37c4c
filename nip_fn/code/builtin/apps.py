"""Rows of the data sets codeparrot/apps and lrhammond/buggy-apps.

The first is APPS (Hendrycks et al. 2021, "Measuring coding challenge competence with APPS"): only
right solutions, with tests.  The second gives right solutions and buggy ones made from them.
"""

from collections.abc import Mapping
from typing import Any

from returns.result import Failure, Result, Success

from nip_fn.code.programs import Tests
from nip_fn.code.questions import Claim, Question, read_column, read_json_column, read_list
from nip_fn.code.solutions import BugOrigin, read_tests, read_text
from nip_fn.errors import Problem, collect
from nip_fn.game.datapoint import text_hash
from nip_fn.params.data import CodeValidationParameters


def read_apps(
    row: Mapping[str, Any], split: str, choice: CodeValidationParameters
) -> Result[tuple[Question, ...], Problem]:
    """The problem of a row of either data set; () if it is not chosen.

    Its claims are one right solution of APPS, if it has as many; or all of buggy-apps, first the
    right ones, of which either list may be empty.  A problem is found at the name of its column.

    Args:
        row: As the data set has it.
        split: The name of the table that it is from.
        choice: The difficulty, the solution of APPS, and if flagged problems are left out.
    """
    is_buggy = "buggy_solutions" in row
    # The flags are those of a moderation service; buggy-apps keeps the rows all the same.
    is_flagged = is_buggy and choice.apps_exclude_flagged and row.get("flags")
    if choice.apps_difficulty not in ("all", row.get("difficulty")) or is_flagged:
        return Success(())
    number = choice.apps_solution_number
    chosen = slice(None) if is_buggy else slice(number, number + 1)
    id_column = "apps_problem_id" if is_buggy else "problem_id"
    return Result.do(
        (Question(text, "", (*right, *buggy), problem, difficulty, tests),)
        for text in read_column(row, "question")
        for right in _claims(row, "solutions", 1, chosen)
        for buggy in _claims(row, "buggy_solutions", 0)
        for problem in _problem_id(row, split, id_column)
        for difficulty in _difficulty(row)
        for tests in _tests(row)
    )


def _claims(
    row: Mapping[str, Any], column: str, label: int, chosen: slice = slice(None)
) -> Result[tuple[Claim, ...], Problem]:
    """The chosen solutions of a column, of which all have one label."""

    def read(entry: Any) -> Result[Claim, Problem]:
        code = entry.get("solution") if isinstance(entry, Mapping) else entry
        return Result.do(
            Claim(solution, label, origin)
            for solution in read_text(code).alt(lambda problem: problem.at(column))
            for origin in (Success(None) if label else _origin(entry))
        )

    return read_list(row, column).bind(lambda entries: collect(map(read, entries[chosen])))


def _difficulty(row: Mapping[str, Any]) -> Result[str | None, Problem]:
    value = row.get("difficulty")
    return read_column(row, "difficulty") if value else Success(None)


def _problem_id(row: Mapping[str, Any], split: str, column: str) -> Result[str, Problem]:
    """The name of a problem: APPS numbers those of each of its splits from 0."""
    number = row.get(column)
    if number is None:
        return read_column(row, "question").map(text_hash)
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
    return read_json_column(row, "input_output").bind(_tests_of)


def _tests_of(value: Any) -> Result[Tests | None, Problem]:
    if value is None or value == {}:
        return Success(None)
    if isinstance(value, Mapping) and value.get("inputs") == value.get("outputs") == []:
        return Success(None)
    return read_tests(value).alt(lambda problem: problem.at("input_output"))
