"""The loop of `nip-fn data bug` over the right solutions of a data set."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result
from rich.progress import Progress

from nip_fn.code.bugs import buggy
from nip_fn.code.solutions import PlacedSolution
from nip_fn.errors import Problem
from nip_fn_adapters.costs.budget import Budget
from nip_fn_adapters.data.bugfile import BugFile, Entry
from nip_fn_adapters.data.bugmaking import BugWriter, Made
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.pool import in_order
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.exits import Exit, die

AT_A_TIME = 64  # right solutions that a model is asked about; the sampler paces its requests


def tasks_or_die(data: Data, limit: int | None) -> list[str]:
    """The ids of the right solutions that have tests; ends the command if there is none."""
    # Before a file is made: a refusal leaves nothing behind that the next command would resume.
    right = (p.id for p in data.solutions() if p.solution.label and p.solution.tests)
    tasks = list(islice(right, limit))
    if not tasks:
        problem = "it has no right solution with tests, by which a bug could be told"
        column = 'as in {"tests": ["add(1, 2) == 3"]}'
        die(Exit.USAGE, Problem(problem, data.info.name, f"give rows a column tests, {column}"))
    return tasks


def make(
    data: Data, tasks: list[str], writer: BugWriter, file: BugFile, out: Path, budget: Budget
) -> None:
    """Make bugs of every right solution among `tasks` that is not done with yet."""
    remaining = set(tasks) - {entry.id for entry in file.entries}
    # Read a second time rather than kept: solutions with all their tests may be too many to hold.
    todo = (placed for placed in data.solutions() if placed.id in remaining)
    console = Console(stderr=True)
    again = f"what is done is in {out}; the same command continues it"
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task(
                "right solutions", total=len(tasks), completed=len(file.entries)
            )
            problem = asyncio.run(_make_all(todo, writer, file, partial(progress.advance, bar)))
    except KeyboardInterrupt:
        die(Exit.INTERRUPTED, f"stopped; {again}")
    if problem is None:
        file.finish()
    _summarise(file.entries, out, writer.wanted)
    if problem is not None:
        spent = str(problem) == str(budget.refusal)
        die(Exit.BUDGET if spent else Exit.ADAPTER, f"{problem}; {again}")


async def _make_all(
    todo: Iterable[PlacedSolution], writer: BugWriter, file: BugFile, advance: Callable[[], None]
) -> Problem | None:
    """The problem that stopped the making, if one did; all that was under way then has ended.

    Solutions behind it are left for the next time, so that the file is the same in the end.
    """
    first: Problem | None = None

    async def bugs_of(placed: PlacedSolution) -> Result[Made, Problem]:
        nonlocal first
        made = await writer.make(placed) if first is None else Failure(first)
        first = first or made.swap().value_or(None)
        return made

    in_time = True
    async with aclosing(in_order(todo, bugs_of, AT_A_TIME)) as results:
        async for placed, result in results:
            in_time = in_time and is_successful(result)
            if in_time:
                _add(file, placed, result.unwrap())
                advance()
    return first


def _add(file: BugFile, placed: PlacedSolution, made: Made) -> None:
    """Write a right solution and the bugs that were made of it; nothing where there are none."""
    right = replace(placed.solution, wanted=placed.split)
    rows = (right, *(buggy(right, bug) for bug in made.bugs)) if made.bugs else ()
    models = tuple(bug.model for bug in made.bugs)
    file.add(rows, Entry(id=placed.id, size=0, bugs=models, tried=made.tried, problem=made.problem))


def _summarise(entries: list[Entry], out: Path, wanted: int) -> None:
    enough = sum(len(entry.bugs) >= wanted for entry in entries)
    models = Counter(model for entry in entries for model in entry.bugs)
    print(
        f"{enough} of {len(entries)} right solutions ({enough / max(1, len(entries)):.1%}) have "
        f"{wanted} buggy ones; {sum(entry.tried for entry in entries):,} candidates tried, "
        f"{models.total():,} kept in {out}"
    )
    problems = Counter(entry.problem for entry in entries if entry.problem)
    for problem, count in problems.most_common():
        print(f"{count:6,} left out: {problem}")
    for model, count in models.most_common():
        print(f"{count:6,} {model}")
