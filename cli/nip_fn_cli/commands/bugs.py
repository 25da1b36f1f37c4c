"""`nip-fn data mutate` and `nip-fn data bug`: buggy solutions out of right ones."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result
from rich.progress import Progress

from nip_fn.code.bugs import buggy
from nip_fn.code.solutions import PlacedSolution
from nip_fn.config.presets import with_preset
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.run.ports import Sampler, Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.costs.budget import Budget, tokens_of
from nip_fn_adapters.costs.prices import Price, cost, price_of
from nip_fn_adapters.data.bugfile import BugFile, Entry, open_bug_file
from nip_fn_adapters.data.bugmaking import (
    WRITER,
    BugWriter,
    Made,
    Maker,
    MutantFactory,
    by_model,
    by_mutation,
)
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.experiments.budgets import (
    Money,
    check_budget,
    in_dollars,
    lost_line,
    open_budget,
)
from nip_fn_adapters.experiments.datasets import opened_data
from nip_fn_adapters.experiments.settings import resolve, with_base_url, with_provider
from nip_fn_adapters.experiments.wiring import wire
from nip_fn_adapters.pool import in_order
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.data_tables import Proving, sandbox_or_die
from nip_fn_cli.shown.exits import Exit, die, or_exit, say
from nip_fn_cli.shown.watching import TERMINAL

AT_A_TIME = 64  # right solutions that a model is asked about; the sampler paces its requests


class Making(NamedTuple):
    """Options of the making of bugs."""

    out: Path
    wanted: int  # bugs of each right solution
    limit: int | None  # right solutions at most
    seed: int
    proving: Proving

    def asked(self, data: Data, **more: object) -> dict[str, object]:
        """All options that bear on the result."""
        own = {"hash": data.info.hash, "wanted": self.wanted, "limit": self.limit}
        return {**own, "seed": self.seed, "seconds": self.proving.seconds, **more}


class Asking(NamedTuple):
    """Options of the requests to a model."""

    max_tokens: int
    temperature: float | None
    attempts: int  # requests for each right solution at most


class Work(NamedTuple):
    """A maker of bugs, and its limits."""

    maker: Maker
    at_a_time: int  # right solutions
    budget: Budget | None = None  # that it is paid from


def mutate_command(params: HyperParameters, making: Making, *, most_tried: int) -> None:
    """Make bugs by mutation."""
    data = opened_data(params, TERMINAL)
    tasks, factory = _tasks_or_die(data, making), _factory(making)
    asked = making.asked(data, by="mutation", most_tried=most_tried)
    with closing(_open(making.out, asked)) as file:
        maker = by_mutation(factory, most_tried)
        _make(data, making, Work(maker, making.proving.at_a_time), file, tasks)


def bug_command(flags: Flags, making: Making, asking: Asking, money: Money) -> None:
    """Make bugs with a model, which is wired as an agent of a run is."""
    params = _writer_params(flags)
    check_budget(params, money)
    (agent,) = params.agents
    price = price_of(money.prices, agent, tuned=False)
    folder = making.out.with_name(f"{making.out.name}.run")  # for files that a provider needs
    data, models = opened_data(params, TERMINAL), wire(params, folder, TERMINAL)
    tasks, factory = _tasks_or_die(data, making), _factory(making)
    model = {"provider": flags.provider, "model": agent.model_name}
    asked = making.asked(data, by="model", **model, **asking._asdict())
    with closing(_open(making.out, asked)) as file:
        budget = open_budget(folder, money.budget, _paid(file, price))
        if models.meter is not None:
            models.meter.open(budget, lambda request: price)
        sampler = file.remembered(_recorded(models.sampler, budget, price))
        writer = BugWriter(sampler, agent.model_name, *asking)
        try:
            maker = by_model(factory, writer)
            _make(data, making, Work(maker, AT_A_TIME, budget), file, tasks)
        finally:
            used = tokens_of(file.replies.values())
            tokens, dollars = used.prompt + used.completion, in_dollars(_paid(file, price))
            print(f"{len(file.replies):,} replies, {tokens:,.0f} tokens, {dollars}")
            budget.close()
            if lost := lost_line(budget.unrecorded):
                say(lost)


def _recorded(sampler: Sampler, budget: Budget, price: Price | None) -> Sampler:
    """The sampler, all of whose replies are noted in the file of bugs as soon as they come."""

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        answers = await sampler(request)
        budget.record(cost(tokens_of(answers.value_or(())), price) or 0.0)
        return answers

    return sample


def _paid(file: BugFile, price: Price | None) -> float | None:
    """Dollars for all that a model replied; None where its price is unknown."""
    return cost(tokens_of(file.replies.values()), price)


def _writer_params(flags: Flags) -> HyperParameters:
    """The parameters that bear on the data, and on the one agent that writes bugs."""
    params = with_base_url(
        resolve(with_provider(with_preset(overrides(flags)), flags.provider)), TERMINAL
    )
    writer = replace(params.agents[0], name=WRITER, shared_model_group=None, freeze_agent=True)
    return replace(params, agents=(writer,))


def _open(path: Path, asked: Mapping[str, Any]) -> BugFile:
    opened = open_bug_file(path, asked)
    file = or_exit(opened)
    if file.entries:
        say(f"resuming {path}: {len(file.entries)} right solutions are done")
    return file


def _factory(making: Making) -> MutantFactory:
    proving = making.proving
    return MutantFactory(
        sandbox_or_die(proving),
        asyncio.Semaphore(proving.at_a_time),
        replace(proving.limits, give_up=True),
        key(making.seed),
        making.wanted,
    )


def _tasks_or_die(data: Data, making: Making) -> list[str]:
    """The ids of the right solutions that have tests; ends the command if there is none."""
    # Before a file is made: a refusal leaves nothing behind that the next command would resume.
    tasks = [laid.id for laid in islice(_tasks(data), making.limit)]
    if not tasks:
        problem = "it has no right solution with tests, by which a bug could be told"
        column = 'as in {"tests": ["add(1, 2) == 3"]}'
        die(Exit.USAGE, Problem(problem, data.info.name, f"give rows a column tests, {column}"))
    return tasks


def _make(data: Data, making: Making, work: Work, file: BugFile, tasks: list[str]) -> None:
    """Make bugs of every right solution among `tasks` that is not done with yet."""
    left = set(tasks) - {entry.id for entry in file.entries}
    # Read a second time rather than kept: solutions with all their tests may be too many to hold.
    todo = (laid for laid in islice(_tasks(data), making.limit) if laid.id in left)
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

    async def make(laid: PlacedSolution) -> Result[Made, Problem]:
        nonlocal first
        made = await work.maker(laid) if first is None else Failure(first)
        first = first or made.swap().value_or(None)
        return made

    in_time = True
    async with aclosing(in_order(todo, make, work.at_a_time)) as results:
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
    how = tuple(bug.candidate.origin.how for bug in made.bugs)
    file.add(rows, Entry(id=laid.id, size=0, bugs=how, tried=made.tried, problem=made.problem))


def _again(making: Making) -> str:
    return f"what is done is in {making.out}; the same command continues it"


def _summarise(file: BugFile, making: Making) -> None:
    entries = file.entries
    enough = sum(len(entry.bugs) >= making.wanted for entry in entries)
    operators = Counter(how for entry in entries for how in entry.bugs)
    print(
        f"{enough} of {len(entries)} right solutions ({enough / max(1, len(entries)):.1%}) have "
        f"{making.wanted} buggy ones; {sum(entry.tried for entry in entries):,} candidates tried, "
        f"{operators.total():,} kept in {making.out}"
    )
    for problem, count in Counter(
        entry.problem for entry in entries if entry.problem
    ).most_common():
        print(f"{count:6,} left out: {problem}")
    for how, count in operators.most_common():
        print(f"{count:6,} {how}")
