"""Questions of benchmarks: what is asked, the right answer, and solutions known right or wrong."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.code.programs import Tests
from nip_fn.code.solutions import BugOrigin, LabelledSolution, read_json, read_text
from nip_fn.errors import Problem


class Claim(NamedTuple):
    """A proposed solution of a question."""

    solution: str
    label: int  # 1 right, 0 wrong
    origin: BugOrigin | None = None


class Question(NamedTuple):
    """A question, as one row of a benchmark has it.

    text: the problem, with its options where one of them is to be chosen.
    reference: the right answer, with which a checker compares; "" where tests decide.
    claims: solutions that the data know to be right or wrong; () where they know none.
    problem_id: its name; all of its claims are in one split.
    difficulty: as the benchmark grades it.
    tests: of programs that solve it.
    views: (role, what it alone is shown).
    """

    text: str
    reference: str
    claims: tuple[Claim, ...]
    problem_id: str
    difficulty: str | None = None
    tests: Tests | None = None
    views: tuple[tuple[str, str], ...] = ()


def labelled(question: Question) -> tuple[LabelledSolution, ...]:
    """The claims of a question, each as a solution with its label."""
    return tuple(
        LabelledSolution(
            question=question.text,
            solution=claim.solution,
            label=claim.label,
            problem_id=question.problem_id,
            difficulty=question.difficulty,
            tests=question.tests,
            origin=claim.origin,
            views=question.views,
        )
        for claim in question.claims
    )


def unsolved(question: Question) -> tuple[LabelledSolution, ...]:
    """The question without a solution, if an answer to it can be checked."""
    if not question.reference and question.tests is None:
        return ()
    return (
        LabelledSolution(
            question=question.text,
            solution="",
            label=None,
            problem_id=question.problem_id,
            difficulty=question.difficulty,
            tests=question.tests,
            views=question.views,
            reference=question.reference,
        ),
    )


# -------------------------------------------------------------------------------- columns of a row


def read_column(row: Mapping[str, Any], column: str) -> Result[str, Problem]:
    """A text that is not empty; its problem is found at the name of the column."""
    return read_text(row.get(column)).alt(lambda problem: problem.at(column))


def read_list(row: Mapping[str, Any], column: str) -> Result[list[Any], Problem]:
    """A list, or the JSON of one; "" and null stand for an empty one.

    Also a table of lists, which the `datasets` library makes of some lists of tables.
    """
    return read_json_column(row, column).bind(lambda value: _list(value, column))


def read_json_column(row: Mapping[str, Any], column: str) -> Result[Any, Problem]:
    """A value, also one that is written as JSON; None for "" and null."""
    value = row.get(column)
    if not isinstance(value, str):
        return Success(value)
    if not value.strip():
        return Success(None)
    return read_json(value).alt(lambda problem: problem.at(column))


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
