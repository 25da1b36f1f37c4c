"""The making of buggy solutions out of right ones, by whatever makes them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result
from rich.progress import Progress

from nip_fn.code.bugs import buggy
from nip_fn.code.solutions import PlacedSolution
from nip_fn.errors import Problem
from nip_fn.keys import key
from nip_fn_adapters.costs.budget import Budget
from nip_fn_adapters.data.bugfile import BugFile, Entry, open_bug_file
from nip_fn_adapters.data.bugmaking import Made, Maker, MutantFactory
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.pool import in_order
from nip_fn_cli.commands.data.proving import Proving, sandbox_or_die
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.exits import Exit, die, or_exit, say

OutOption = Annotated[
    Path,
    typer.Option(
        "--out", help="The .jsonl file to write, which is a DATASET itself.", metavar="FILE"
    ),
]
WantedOption = Annotated[
    int, typer.Option(help="The number of bugs to make of each right solution.", min=1, max=100)
]
LimitOption = Annotated[int | None, typer.Option(help="The most right solutions to use.", min=1)]


class Making(NamedTuple):
    """Options of the making of bugs."""

    out: Path
    wanted: int  # bugs of each right solution
    limit: int | None  # right solutions at most
    seed: int
    proving: Proving

    def signature(self, data: Data, **options: object) -> dict[str, object]:
        """All options that bear on the result: these, and those of the maker."""
        return {
            "hash": data.info.hash,
            "wanted": self.wanted,
            "limit": self.limit,
            "seed": self.seed,
            "seconds": self.proving.seconds,
            **options,
        }


class Work(NamedTuple):
    """A maker of bugs, and its limits."""

    maker: Maker
    at_a_time: int  # right solutions
    budget: Budget | None = None  # that it is paid from


def open_file(path: Path, signature: Mapping[str, Any]) -> BugFile:
    """The file of bugs, as far as the same command has written it; ends a command with others."""
    file = or_exit(open_bug_file(path, signature))
    if file.entries:
        say(f"resuming {path}: {len(file.entries)} right solutions are done")
    return file


def mutant_factory(making: Making) -> MutantFactory:
    """The factory that judges candidates by tests in a sandbox."""
    proving = making.proving
    return MutantFactory(
        sandbox_or_die(proving),
        asyncio.Semaphore(proving.at_a_time),
        replace(proving.limits, give_up=True),
        key(making.seed),
        making.wanted,
    )


def tasks_or_die(data: Data, making: Making) -> list[str]:
    """The ids of the right solutions that have tests; ends the command if there is none."""
    # Before a file is made: a refusal leaves nothing behind that the next command would resume.
    tasks = [laid.id for laid in islice(_tasks(data), making.limit)]
    if not tasks:
        problem = "it has no right solution with tests, by which a bug could be told"
        column = 'as in {"tests": ["add(1, 2) == 3"]}'
        die(Exit.USAGE, Problem(problem, data.info.name, f"give rows a column tests, {column}"))
    return tasks


def make(data: Data, making: Making, work: Work, file: BugFile, tasks: list[str]) -> None:
    """Make bugs of every right solution among `tasks` that is not done with yet."""
    remaining = set(tasks) - {entry.id for entry in file.entries}
    # Read a second time rather than kept: solutions with all their tests may be too many to hold.
    todo = (laid for laid in islice(_tasks(data), making.limit) if laid.id in remaining)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task(
                "right solutions", total=len(tasks), completed=len(file.entries)
            )
            advance = partial(progress.advance, bar)
            problem = asyncio.run(_make_all(todo, work, file, advance))
    except KeyboardInterrupt:
        die(Exit.INTERRUPTED, f"stopped; {_again(making)}")
    if problem is None:
        file.finish()
    _summarise(file, making)
    if problem is not None:
        spent = work.budget is not None and str(problem) == str(work.budget.refusal)
        die(Exit.BUDGET if spent else Exit.ADAPTER, f"{problem}; {_again(making)}")


async def _make_all(
    todo: Iterator[PlacedSolution], work: Work, file: BugFile, advance: Callable[[], None]
) -> Problem | None:
    """The problem that stopped the making, if one did; all that was under way then has ended.

    Solutions behind it are left for the next time, so that the file is the same in the end.
    """
    first: Problem | None = None

    async def bugs_of(laid: PlacedSolution) -> Result[Made, Problem]:
        nonlocal first
        made = await work.maker(laid) if first is None else Failure(first)
        first = first or made.swap().value_or(None)
        return made

    in_time = True
    async with aclosing(in_order(todo, bugs_of, work.at_a_time)) as results:
        async for laid, result in results:
            in_time = in_time and is_successful(result)
            if in_time:
                _add(file, laid, result.unwrap())
                advance()
    return first


def _tasks(data: Data) -> Iterator[PlacedSolution]:
    return (laid for laid in data.solutions() if laid.solution.label and laid.solution.tests)


def _add(file: BugFile, laid: PlacedSolution, made: Made) -> None:
    """Write a right solution and the bugs that were made of it; nothing where there are none."""
    right = replace(laid.solution, wanted=laid.split)
    rows = (right, *(buggy(right, bug) for bug in made.bugs)) if made.bugs else ()
    descriptions = tuple(bug.candidate.origin.how for bug in made.bugs)
    file.add(
        rows, Entry(id=laid.id, size=0, bugs=descriptions, tried=made.tried, problem=made.problem)
    )


def _again(making: Making) -> str:
    return f"what is done is in {making.out}; the same command continues it"


def _summarise(file: BugFile, making: Making) -> None:
    entries = file.entries
    enough = sum(len(entry.bugs) >= making.wanted for entry in entries)
    operators = Counter(description for entry in entries for description in entry.bugs)
    print(
        f"{enough} of {len(entries)} right solutions ({enough / max(1, len(entries)):.1%}) have "
        f"{making.wanted} buggy ones; {sum(entry.tried for entry in entries):,} candidates tried, "
        f"{operators.total():,} kept in {making.out}"
    )
    for problem, count in Counter(
        entry.problem for entry in entries if entry.problem
    ).most_common():
        print(f"{count:6,} left out: {problem}")
    for description, count in operators.most_common():
        print(f"{count:6,} {description}")
