"""`nip-fn data mutate` and `nip-fn data bug`: buggy solutions out of right ones."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing, closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.result import Failure
from rich.console import Console
from rich.progress import Progress

from nip_fn.bugs import buggy
from nip_fn.keys import key
from nip_fn.params import DummyParameters, HyperParameters
from nip_fn.ports import Sampler
from nip_fn.solutions import Laid
from nip_fn_adapters.bugfile import BugFile, Entry, open_bug_file
from nip_fn_adapters.bugmaking import (
    Budget,
    Made,
    Maker,
    OutOfBudget,
    Workshop,
    Writer,
    by_model,
    by_mutation,
)
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.pool import in_order
from nip_fn_cli.data import Proving, sandbox_or_die
from nip_fn_cli.datasets import open_or_die
from nip_fn_cli.exits import Exit, die, say


class Making(NamedTuple):
    """What is to be made, and where."""

    out: Path
    wanted: int  # bugs of each right solution
    limit: int | None  # right solutions at most
    seed: int
    proving: Proving

    def asked(self, data: Data, **more: object) -> dict[str, object]:
        """All that decides what is made."""
        own = {"hash": data.info.hash, "wanted": self.wanted, "limit": self.limit}
        return {**own, "seed": self.seed, "seconds": self.proving.seconds, **more}


class Asking(NamedTuple):
    """Which model is asked for bugs, and how often."""

    provider: str
    model: str
    attempts: int
    max_tokens: int
    temperature: float | None
    max_requests: int
    budget_tokens: int


def mutate_command(params: HyperParameters, making: Making, *, most_tried: int) -> None:
    """Make bugs by mutation."""
    data = open_or_die(params)
    asked = making.asked(data, by="mutation", most_tried=most_tried)
    with closing(_open(making.out, asked)) as file:
        _make(data, making, by_mutation(_workshop(making), most_tried), file)


def bug_command(params: HyperParameters, making: Making, asking: Asking) -> None:
    """Make bugs with a model."""
    data, sampler = open_or_die(params), _sampler(asking.provider)
    shown = asking._asdict()
    del shown["max_requests"], shown["budget_tokens"]  # may be more the next time
    with closing(_open(making.out, making.asked(data, by="model", **shown))) as file:
        budget = Budget(
            asking.max_requests - sum(entry.requests for entry in file.entries),
            asking.budget_tokens - sum(entry.tokens for entry in file.entries),
        )
        writer = Writer(
            sampler, asking.model, asking.max_tokens, asking.temperature, asking.attempts, budget
        )
        _make(data, making, by_model(_workshop(making), writer), file)


def _open(path: Path, asked: Mapping[str, Any]) -> BugFile:
    opened = open_bug_file(path, asked)
    if isinstance(opened, Failure):
        die(Exit.USAGE, opened.failure())
    file: BugFile = opened.unwrap()
    if file.entries:
        say(f"going on with {path}: {len(file.entries)} right solutions are done")
    return file


def _workshop(making: Making) -> Workshop:
    limits = replace(making.proving.limits, give_up=True)
    return Workshop(sandbox_or_die(making.proving), limits, key(making.seed), making.wanted)


def _sampler(provider: str) -> Sampler:
    """The sampler of a provider that needs no run."""
    if provider not in ("dummy", "local"):
        die(Exit.USAGE, f"--provider {provider}: this version asks local or dummy")
    if provider == "dummy":
        from nip_fn_adapters.dummy import dummy_sampler

        return dummy_sampler(DummyParameters())
    from nip_fn_adapters.local.sampler import local_sampler

    return local_sampler(Path())


def _make(data: Data, making: Making, maker: Maker, file: BugFile) -> None:
    """Make bugs of every right solution that has tests, and is not done with yet."""
    tasks = [laid.id for laid in islice(_tasks(data), making.limit)]
    if not tasks:
        die(Exit.USAGE, f"{data.info.name}: it has no right solution with tests")
    left = set(tasks) - {entry.id for entry in file.entries}
    todo = (laid for laid in islice(_tasks(data), making.limit) if laid.id in left)
    operators: Counter[str] = Counter()

    async def make(progress: Progress) -> None:
        bar = progress.add_task("right solutions", total=len(tasks), completed=len(file.entries))
        async with aclosing(in_order(todo, maker, making.proving.at_a_time)) as results:
            async for laid, result in results:
                if isinstance(result, Failure):
                    die(Exit.ADAPTER, f"{result.failure()}; {_again(making)}")
                made = result.unwrap()
                operators.update(bug.candidate.origin.how for bug in made.bugs)
                _add(file, laid, made)
                progress.advance(bar)

    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            asyncio.run(make(progress))
    except OutOfBudget:
        _summarise(file, making, operators)
        die(Exit.BUDGET, f"the budget might not do for the next solution; {_again(making)}")
    except KeyboardInterrupt:
        die(Exit.INTERRUPTED, f"stopped; {_again(making)}")
    file.finish()
    _summarise(file, making, operators)


def _tasks(data: Data) -> Iterator[Laid]:
    return (laid for laid in data.solutions() if laid.solution.label and laid.solution.tests)


def _add(file: BugFile, laid: Laid, made: Made) -> None:
    """Write a right solution and the bugs that were made of it; nothing where there are none."""
    right = replace(laid.solution, wanted=laid.split)
    rows = (right, *(buggy(right, bug) for bug in made.bugs)) if made.bugs else ()
    file.add(
        rows,
        Entry(
            id=laid.id,
            size=0,
            bugs=len(made.bugs),
            tried=made.tried,
            problem=made.problem,
            requests=made.requests,
            tokens=made.tokens,
        ),
    )


def _again(making: Making) -> str:
    return f"what is done is in {making.out}; go on with the same command"


def _summarise(file: BugFile, making: Making, operators: Counter[str]) -> None:
    entries = file.entries
    enough = sum(entry.bugs >= making.wanted for entry in entries)
    print(
        f"{enough} of {len(entries)} right solutions ({enough / max(1, len(entries)):.1%}) have "
        f"{making.wanted} buggy ones; {sum(entry.tried for entry in entries):,} candidates tried, "
        f"{sum(entry.bugs for entry in entries):,} kept in {making.out}"
    )
    for problem, count in Counter(
        entry.problem for entry in entries if entry.problem
    ).most_common():
        print(f"{count:6,} left out: {problem}")
    for how, count in operators.most_common():
        print(f"{count:6,} {how}")
    requests, tokens = (sum(getattr(e, name) for e in entries) for name in ("requests", "tokens"))
    if requests:
        print(f"{requests:,} requests, {tokens:,} tokens")
