"""`nip-fn data check`: the faults of a data set."""

import asyncio
from collections import Counter
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Annotated

import typer

from nip_fn.code.ports import Sandbox
from nip_fn.code.programs import Limits, Tally, Tests, program, tally
from nip_fn.code.solutions import PlacedSolution
from nip_fn.code.statistics import label_problem, leaks, statistics
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.experiments.datasets import describe, left_out, opened_data
from nip_fn_adapters.pool import in_order
from nip_fn_cli.commands.data.opening import DatasetArgument, data_params
from nip_fn_cli.commands.data.proving import (
    JobsOption,
    Proving,
    SecondsOption,
    UnsafeOption,
    sandbox_or_die,
)
from nip_fn_cli.shown.exits import Exit, die, or_exit
from nip_fn_cli.shown.options import SetOption, SkipOption
from nip_fn_cli.shown.watching import TERMINAL


def check_command(
    dataset: DatasetArgument,
    prove: Annotated[bool, typer.Option(help="Run the tests of all solutions.")] = True,
    jobs: JobsOption = None,
    seconds: SecondsOption = 4.0,
    unsafe: UnsafeOption = False,
    sets: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Check rows, duplicates, leaks between splits, and labels against tests."""
    params = data_params(dataset, sets, skip_bad_rows)
    data = opened_data(params, TERMINAL, most_shown=1000)
    print(describe(data, params))
    faults = 0
    for line in leaks(data.solutions()):
        faults += 1
        print(line)
    for split in statistics(data.solutions(), len):
        if bool(split.right) != bool(split.buggy):
            faults += 1
            print(f"{split.split}: all {split.datapoints:,} solutions have the same label")
    for line in left_out(data):
        print(line)
    if prove:
        faults += _prove(data, Proving(jobs, unsafe, seconds))
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
