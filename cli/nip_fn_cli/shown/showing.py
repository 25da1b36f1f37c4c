"""A problem of a data set, printed: its statement, its solutions and their bugs."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from nip_fn.code.mutation import edit_distance
from nip_fn.code.programs import Tests
from nip_fn.code.solutions import PlacedSolution
from nip_fn_cli.shown.printing import console

MOST_TESTS = 20


def print_problem(found: Sequence[PlacedSolution], right: Sequence[str]) -> None:
    """Print datapoints of one problem, each beside the nearest of its right solutions."""
    out = console()
    first = found[0].solution
    title = f"{first.problem_id}, {first.difficulty}" if first.difficulty else first.problem_id
    out.print(Rule(title), Text(first.question), "", sep="\n")
    for placed in found:
        out.print(Group(*_parts(placed, right)))
    if first.tests:
        out.print(*_tests(first.tests), sep="\n")


def _parts(placed: PlacedSolution, right: Sequence[str]) -> Iterator[RenderableType]:
    solution = placed.solution
    verdict = "right" if solution.label else "has a bug"
    yield Rule(f"{placed.id}, {placed.split}: {verdict}", align="left")
    # Views are no code, and so is a solution beside them.
    if solution.views:
        for name, text in (*solution.views, ("", solution.solution)):
            yield Text(f"{name}:" if name else "", style="bold")
            yield Text(text)
    elif solution.label or not right:
        yield Syntax(solution.solution.rstrip(), "python", background_color="default")
    else:
        nearest = min(right, key=lambda code: edit_distance(code, solution.solution))
        yield difference(nearest, solution.solution)
    origin = solution.origin
    if origin:
        yield Text(f"made by {origin.made_by}: {origin.how}" if origin.how else origin.made_by)
        if origin.tests:
            yield Text(
                f"passes {origin.passed} of {origin.tests} tests, {origin.distance} characters off"
            )
    yield Text("")


def difference(right: str, buggy: str) -> Text:
    """The lines of both programs; those of one alone are marked - (right) or + (with the bug)."""
    ours, theirs = right.rstrip().splitlines(), buggy.rstrip().splitlines()
    text = Text()
    # Without `autojunk`, which takes lines that are frequent in a long program for noise.
    for what, i, j, m, n in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if what == "equal":
            text.append("".join(f"  {line}\n" for line in ours[i:j]))
            continue
        text.append("".join(f"- {line}\n" for line in ours[i:j]), style="red")
        text.append("".join(f"+ {line}\n" for line in theirs[m:n]), style="green")
    text.rstrip()
    return text


def _tests(tests: Tests) -> Iterator[str]:
    yield f"{len(tests.inputs)} tests"
    for given, expected in list(zip(tests.inputs, tests.outputs, strict=True))[:MOST_TESTS]:
        if tests.function:
            yield f"  {tests.function}({given[1:-1]}) == {expected}"
        else:
            yield f"  {given!r} -> {expected!r}"
