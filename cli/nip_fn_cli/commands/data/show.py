"""`nip-fn data show`: a problem of a data set, its solutions and their bugs."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from nip_fn.code.bugs import edit_distance
from nip_fn.code.programs import Tests
from nip_fn.code.solutions import PlacedSolution
from nip_fn.config.schema import did_you_mean
from nip_fn.errors import Problem
from nip_fn_adapters.experiments.datasets import opened_data
from nip_fn_cli.commands.data.opening import DatasetArgument, data_params
from nip_fn_cli.shown.exits import Exit, command, die
from nip_fn_cli.shown.options import SetOption, SkipOption
from nip_fn_cli.shown.printing import console
from nip_fn_cli.shown.watching import TERMINAL

MOST_TESTS = 20


def show_command(
    dataset: DatasetArgument,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A datapoint's id, or a problem's; without it, all of them are listed.",
            metavar="ID",
        ),
    ] = None,
    sets: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Print a problem: its statement, its code, and what differs from the right solution."""
    params = data_params(dataset, sets, skip_bad_rows)
    data = opened_data(params, TERMINAL)
    if name is None:
        named: dict[str, list[str]] = {}
        for placed in data.solutions():
            named.setdefault(placed.solution.problem_id, []).append(placed.id)
        for problem_id, point_ids in named.items():
            print(f"{problem_id}: {' '.join(point_ids)}")
        return
    matching = [
        placed
        for placed in data.solutions()
        if placed.solution.problem_id in (name, f"python/{name}")
    ]
    matching = matching or [laid for laid in data.solutions() if laid.id.startswith(name)]
    if not matching:
        # Without the name of the data set, which may be left out in front of a problem's.
        names = [placed.solution.problem_id.removeprefix("python/") for placed in data.solutions()]
        names += [placed.id for placed in data.solutions()]
        listed = command("nip-fn", "data", "show", params.dataset)
        remedy = f"{did_you_mean(name, names)} `{listed}` lists them all".strip()
        die(Exit.USAGE, Problem(f"{data.info.name} has no such datapoint or problem", name, remedy))
    if len({laid.solution.problem_id for laid in matching}) > 1:
        ids = ", ".join(laid.id for laid in matching[:5])
        several = "the ids of several datapoints begin so"
        die(Exit.USAGE, Problem(several, name, f"write more of one, as in {ids}"))
    problem = matching[0].solution.problem_id
    right = [
        laid.solution.solution
        for laid in data.solutions()
        if laid.solution.problem_id == problem and laid.solution.label
    ]
    _print(matching, right)


def _print(solutions: Sequence[PlacedSolution], right: Sequence[str]) -> None:
    """Print datapoints of one problem, each beside the nearest of its right solutions."""
    out = console()
    first = solutions[0].solution
    title = f"{first.problem_id}, {first.difficulty}" if first.difficulty else first.problem_id
    out.print(Rule(title), Text(first.question), "", sep="\n")
    for placed in solutions:
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
        yield _difference(nearest, solution.solution)
    origin = solution.origin
    if origin:
        yield Text(f"made by {origin.made_by}: {origin.how}" if origin.how else origin.made_by)
        if origin.tests:
            yield Text(
                f"passes {origin.passed} of {origin.tests} tests, {origin.distance} characters off"
            )
    yield Text("")


def _difference(right: str, buggy: str) -> Text:
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
    for arguments, expected in list(zip(tests.inputs, tests.outputs, strict=True))[:MOST_TESTS]:
        if tests.function:
            yield f"  {tests.function}({arguments[1:-1]}) == {expected}"
        else:
            yield f"  {arguments!r} -> {expected!r}"
