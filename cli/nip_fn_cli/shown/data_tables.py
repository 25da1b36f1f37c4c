"""`nip-fn data`: the contents of a data set, and its faults."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from itertools import chain
from os import cpu_count
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from nip_fn.code.ports import Sandbox
from nip_fn.code.programs import Limits, Tally, Tests, program, tally
from nip_fn.code.solutions import PlacedSolution
from nip_fn.code.statistics import NO_TEXT, SplitStatistics, label_problem, leaks, statistics
from nip_fn.config.codec import merge
from nip_fn.config.presets import with_preset
from nip_fn.config.schema import did_you_mean
from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.experiments.datasets import describe, left_out, opened_data
from nip_fn_adapters.experiments.settings import resolve
from nip_fn_adapters.pool import in_order
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.exits import Exit, command, die, or_exit, say
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.showing import print_problem
from nip_fn_cli.shown.watching import TERMINAL


class Proving(NamedTuple):
    """Options of running tests."""

    jobs: int | None  # at a time; None: one a processor
    unsafe: bool
    seconds: float  # that each test may take

    @property
    def at_a_time(self) -> int:
        """The number of programs that run at a time."""
        return self.jobs or cpu_count() or 1

    @property
    def limits(self) -> Limits:
        """The limits of each program."""
        return Limits(seconds=self.seconds)


def data_params(dataset: str, sets: tuple[str, ...], skip_bad_rows: bool) -> HyperParameters:
    """The parameters that bear on a data set, all of which is used unless `sets` say otherwise."""
    flags = Flags(dataset=dataset, sets=sets, skip_bad_rows=skip_bad_rows or None)
    whole = {"dataset_options": {"balance_classes": False}}
    return resolve(with_preset(merge(whole, overrides(flags))))


def stats_command(params: HyperParameters, *, tokenizer: str | None, as_json: bool) -> None:
    """Print the statistics of a data set."""
    data = opened_data(params, TERMINAL)
    unit, length = _length(tokenizer)
    found = statistics(data.solutions(), length)
    views = dict.fromkeys(name for split in found for name, _ in split.views)
    if as_json:
        report = {**asdict(data.report), "info": asdict(data.info), "lengths_in": unit}
        print(msgspec.json.encode({**report, "splits": [*map(_table, found)]}).decode())
        return
    print(describe(data, params))
    _print_statistics(found, (*views,), unit)
    for line in left_out(data):
        print(line)
    if data.report.unused:
        print(f"columns that nothing is read from: {', '.join(data.report.unused)}")
    print(f"hash {data.info.hash}")


def _table(split: SplitStatistics) -> dict[str, Any]:
    return {
        **split._asdict(),
        "buggy": split.buggy,
        "difficulties": dict(split.difficulties),
        "question": split.question._asdict(),
        "solution": split.solution._asdict(),
        "views": {name: lengths._asdict() for name, lengths in split.views},
    }


def _length(tokenizer: str | None) -> tuple[str, Callable[[str], int]]:
    """The unit of lengths, and a function that counts them."""
    if tokenizer is None:
        return "characters", len
    from nip_fn_adapters.providers.local.models import token_counter

    counter = token_counter(tokenizer)
    option = f"--tokenizer {tokenizer}"
    return "tokens", counter.alt(lambda why: die(Exit.USAGE, f"{option}: {why}")).unwrap()


def _print_statistics(found: Iterable[SplitStatistics], views: tuple[str, ...], unit: str) -> None:
    # Data that say everything in views have no solutions.
    texts = ("question", *([f"view of {name}" for name in views] or ["solution"]))
    lengths = [f"{what}, {unit}" for what in texts]
    titles = ("datapoints", "problems", "right", "buggy", "with tests", "difficulties")
    rows = []
    for one in found:
        share = one.right / one.datapoints
        texts_of = [dict(one.views).get(name, NO_TEXT) for name in views] or [one.solution]
        spread = (
            f"{x.median:,.0f} / {x.most:,.0f} / {x.longest:,}" for x in (one.question, *texts_of)
        )
        shares = f"{one.right:,} ({share:.0%})", f"{one.buggy:,} ({1 - share:.0%})"
        difficulties = ", ".join(f"{name} {count:,}" for name, count in one.difficulties)
        counts = f"{one.datapoints:,}", f"{one.problems:,}", *shares, f"{one.with_tests:,}"
        rows.append((one.split, *counts, difficulties, *spread))
    print_rows(("split", *titles, *lengths), rows)
    print("lengths: median / 95th percentile / longest")


def check_command(params: HyperParameters, proving: Proving, *, prove: bool) -> None:
    """Check a data set; end with a code of its own where something is wrong."""
    data = opened_data(params, TERMINAL, most_shown=1000)
    print(describe(data, params))
    faults = 0
    for line in leaks(data.solutions()):
        faults += 1
        print(line)
    for split in statistics(data.solutions(), len):
        if not split.right or not split.buggy:
            faults += 1
            print(f"{split.split}: all {split.datapoints:,} solutions have the same label")
    for line in left_out(data):
        print(line)
    if prove:
        faults += _prove(data, proving)
    if faults:
        die(Exit.ADAPTER, f"{data.info.name}: {faults} {'fault' if faults == 1 else 'faults'}")
    print(f"{data.info.name}: no fault found")


def _prove(data: Data, proving: Proving) -> int:
    """Run all tests there are; the number of labels that they do not bear out."""
    tested = (laid for laid in data.solutions() if laid.solution.tests)
    # Looked at first, so that data without tests need no sandbox.
    first = next(tested, None)
    if first is None:
        if data.report.kind == "code":  # of answers in words nobody expects any
            print("no solution has tests, so no label is proven")
        return 0
    sandbox = sandbox_or_die(proving)
    counts: Counter[bool] = Counter()

    async def prove() -> None:
        work = partial(_tally, sandbox, proving.limits)
        everything = in_order(chain([first], tested), work, proving.at_a_time)
        async with aclosing(everything) as results:
            async for laid, result in results:
                problem = label_problem(laid.solution, result)
                counts[problem is None] += 1
                if problem:
                    print(f"{laid.id} ({laid.split}, {laid.solution.problem_id}): {problem}")

    asyncio.run(prove())
    print(f"labels: {counts[True]:,} proven by tests, {counts[False]:,} not borne out")
    return counts[False]


async def _tally(sandbox: Sandbox, limits: Limits, laid: PlacedSolution) -> Tally:
    tests = laid.solution.tests or Tests()
    ran = await sandbox(program(laid.solution.solution, tests), limits)
    return tally(tests, or_exit(ran))


def sandbox_or_die(proving: Proving) -> Sandbox:
    """A sandbox; print its name."""
    from nip_fn_adapters.sandbox import open_sandbox

    opened = open_sandbox(unsafe=proving.unsafe)
    sandbox = or_exit(opened)
    say(f"sandbox: {sandbox.name}")
    return sandbox


def show_command(params: HyperParameters, name: str | None) -> None:
    """Print all that is known of a datapoint, or of all datapoints of a problem.

    Without a name, print the names that there are: the problems, each with its datapoints.
    """
    data = opened_data(params, TERMINAL)
    if name is None:
        named: dict[str, list[str]] = {}
        for one in data.solutions():
            named.setdefault(one.solution.problem_id, []).append(one.id)
        for problem_id, own in named.items():
            print(f"{problem_id}: {' '.join(own)}")
        return
    found = [one for one in data.solutions() if one.solution.problem_id in (name, f"python/{name}")]
    found = found or [laid for laid in data.solutions() if laid.id.startswith(name)]
    if not found:
        # Without the name of the data set, which may be left out in front of a problem's.
        known = [one.solution.problem_id.removeprefix("python/") for one in data.solutions()]
        known += [one.id for one in data.solutions()]
        listed = command("nip-fn", "data", "show", params.dataset)
        remedy = f"{did_you_mean(name, known)} `{listed}` lists them all".strip()
        die(Exit.USAGE, Problem(f"{data.info.name} has no such datapoint or problem", name, remedy))
    if len({laid.solution.problem_id for laid in found}) > 1:
        ids = ", ".join(laid.id for laid in found[:5])
        several = "the ids of several datapoints begin so"
        die(Exit.USAGE, Problem(several, name, f"write more of one, as in {ids}"))
    problem = found[0].solution.problem_id
    right = [
        laid.solution.solution
        for laid in data.solutions()
        if laid.solution.problem_id == problem and laid.solution.label
    ]
    print_problem(found, right)
