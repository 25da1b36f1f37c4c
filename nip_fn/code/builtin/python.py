"""`builtin:python`: small everyday problems in Python, written for this project.

Every solution is proven right, and every buggy one proven wrong, by the problem's tests.
"""

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nip_fn.code.programs import Tests, read_checks
from nip_fn.code.solutions import BugOrigin, LabelledSolution
from nip_fn.params.base import Record

Text = Annotated[str, Meta(min_length=1)]


class WrittenBug(Record, frozen=True):
    """A wrong solution that somebody might well write."""

    note: Text  # what is wrong
    solution: Text


class PythonProblem(Record, frozen=True):
    """A problem as it is written down."""

    id: Text
    difficulty: Literal["introductory", "interview", "competition"]
    statement: Text
    solution: Text
    tests: Text  # lines like `add(1, 2) == 3`
    bug: tuple[WrittenBug, ...]


class _Topic(Record, frozen=True):
    problem: tuple[PythonProblem, ...]


def _texts() -> Iterator[tuple[str, str]]:
    """The name and the text of each topic's file, by name."""
    folder = files(__package__).joinpath("problems")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            yield file.name.removesuffix(".toml"), file.read_text("utf-8")


@cache
def topics() -> dict[str, tuple[PythonProblem, ...]]:
    """The problems by topic."""
    return {name: msgspec.toml.decode(text, type=_Topic).problem for name, text in _texts()}


def problems_hash() -> str:
    """A hash of all problems (32 hexadecimal digits)."""
    digest = blake2b(digest_size=16)
    for _, text in _texts():
        digest.update(text.encode())
    return digest.hexdigest()


def solutions() -> Iterator[LabelledSolution]:
    """All solutions: of each problem first the right one, then those with a bug."""
    for topic in topics().values():
        for problem in topic:
            # The problems come with the package, so a test that cannot be read is a bug and raises.
            tests = read_checks(problem.tests).unwrap()
            yield _labelled(problem, tests, problem.solution, 1, None)
            for bug in problem.bug:
                yield _labelled(problem, tests, bug.solution, 0, BugOrigin("author", bug.note))


def _labelled(
    problem: PythonProblem, tests: Tests, solution: str, label: int, origin: BugOrigin | None
) -> LabelledSolution:
    return LabelledSolution(
        question=problem.statement.strip(),
        solution=solution.strip("\n") + "\n",
        label=label,
        problem_id=f"python/{problem.id}",
        difficulty=problem.difficulty,
        tests=tests,
        origin=origin,
    )
