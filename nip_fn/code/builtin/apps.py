"""Rows of the data sets codeparrot/apps and lrhammond/buggy-apps.

The first is APPS (Hendrycks et al. 2021, "Measuring coding challenge competence with APPS"): only
right solutions, with tests.  The second gives right solutions and buggy ones made from them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from nip_fn.code.programs import Tests
from nip_fn.code.solutions import LabelledSolution, Origin, read_tests, read_text
from nip_fn.game.datapoint import text_hash
from nip_fn.params.data import CodeValidationParameters

# The columns that tell which of the two a row is from.
APPS_COLUMNS = ("question", "solutions", "input_output", "difficulty")
BUGGY_COLUMNS = ("question", "solutions", "buggy_solutions", "difficulty")


class BadColumn(ValueError):
    """A column of a row cannot be read: its name, and why."""


def apps_row(
    row: Mapping[str, Any], split: str, choice: CodeValidationParameters
) -> Iterator[LabelledSolution]:
    """The chosen solution of a row of APPS; none where it has too few, or is of another difficulty.

    Raises BadColumn.
    """
    if not _chosen(row, choice):
        return
    solutions = _json_list(row, "solutions")
    if len(solutions) <= choice.apps_solution_number:
        return
    yield LabelledSolution(
        question=_read("question", row.get("question")),
        solution=_code("solutions", solutions[choice.apps_solution_number]),
        label=1,
        problem_id=_problem(row, split, "problem_id"),
        difficulty=_difficulty(row),
        tests=_tests(row),
    )


def buggy_apps_row(
    row: Mapping[str, Any], split: str, choice: CodeValidationParameters
) -> Iterator[LabelledSolution]:
    """All solutions of a row of buggy-apps, first the right ones; the two lists may differ in
    length, and either may be empty.  Raises BadColumn.
    """
    if not _chosen(row, choice) or (choice.apps_exclude_flagged and row.get("flags")):
        return
    question, tests = _read("question", row.get("question")), _tests(row)
    for column, label in (("solutions", 1), ("buggy_solutions", 0)):
        for entry in _json_list(row, column):
            yield LabelledSolution(
                question=question,
                solution=_code(column, entry),
                label=label,
                problem_id=_problem(row, split, "apps_problem_id"),
                difficulty=_difficulty(row),
                tests=tests,
                origin=None if label else _origin(entry),
            )


def _chosen(row: Mapping[str, Any], choice: CodeValidationParameters) -> bool:
    return choice.apps_difficulty in ("all", row.get("difficulty"))


def _difficulty(row: Mapping[str, Any]) -> str | None:
    value = row.get("difficulty")
    return _read("difficulty", value) if value else None


def _problem(row: Mapping[str, Any], split: str, column: str) -> str:
    """APPS numbers the problems of each of its splits from 0."""
    number = row.get(column)
    if number is None:
        return text_hash(_read("question", row.get("question")))
    return "/".join(filter(None, (str(row.get("apps_split") or split), str(number))))


def _code(column: str, entry: object) -> str:
    return _read(column, entry.get("solution") if isinstance(entry, Mapping) else entry)


def _origin(entry: object) -> Origin | None:
    """What buggy-apps tells of how a bug was made."""
    if not isinstance(entry, Mapping):
        return None
    checks, distance = entry.get("checks") or {}, entry.get("levenshtein_distance") or {}
    try:
        passed, *others = (int(checks.get(name) or 0) for name in ("pass", "fail", "error"))
        raw = int(distance.get("raw") or 0)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise BadColumn("buggy_solutions", f"checks, levenshtein_distance: {error}") from None
    return Origin(made_by="model", passed=passed, tests=passed + sum(others), distance=raw)


def _tests(row: Mapping[str, Any]) -> Tests | None:
    """The tests, where there are any: APPS has problems without."""
    value = _json(row, "input_output")
    if value is None or value == {}:
        return None
    if isinstance(value, Mapping) and value.get("inputs") == value.get("outputs") == []:
        return None
    try:
        return read_tests(value)
    except (ValueError, TypeError) as error:
        raise BadColumn("input_output", str(error)) from None


def _json_list(row: Mapping[str, Any], column: str) -> list[Any]:
    """A list, or the JSON of one; "" and null stand for an empty one.

    Also a table of lists, which is what a `Sequence` of the `datasets` library makes of a list of
    tables.
    """
    value = _json(row, column)
    if value is None:
        return []
    if isinstance(value, Mapping) and all(isinstance(one, list) for one in value.values()):
        try:
            entries = zip(*value.values(), strict=True)
            return [dict(zip(value, entry, strict=True)) for entry in entries]
        except ValueError:
            raise BadColumn(column, "a table of lists of unequal lengths") from None
    if not isinstance(value, list):
        raise BadColumn(column, f"a {type(value).__name__}, not a list")
    return value


def _json(row: Mapping[str, Any], column: str) -> Any:
    """A value, also one that is written as JSON; None for "" and null."""
    value = row.get(column)
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value) if value.strip() else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadColumn(column, f"not JSON: {error}") from None


def _read(column: str, value: object) -> str:
    try:
        return read_text(value)
    except ValueError as error:
        raise BadColumn(column, str(error)) from None
