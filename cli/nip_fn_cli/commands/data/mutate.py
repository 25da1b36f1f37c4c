"""`nip-fn data mutate`: buggy solutions out of right ones by small changes to their syntax."""

from contextlib import closing
from typing import Annotated

import typer

from nip_fn_adapters.data.bugmaking import by_mutation
from nip_fn_adapters.experiments.datasets import opened_data
from nip_fn_cli.commands.data.making import (
    LimitOption,
    Making,
    OutOption,
    WantedOption,
    Work,
    make,
    mutant_factory,
    open_file,
    tasks_or_die,
)
from nip_fn_cli.commands.data.opening import DatasetArgument, data_params
from nip_fn_cli.commands.data.proving import JobsOption, Proving, SecondsOption, UnsafeOption
from nip_fn_cli.shown.options import SetOption, SkipOption
from nip_fn_cli.shown.watching import TERMINAL


def mutate_command(
    dataset: DatasetArgument,
    out: OutOption,
    wanted: WantedOption = 2,
    most_tried: Annotated[
        int, typer.Option(help="The most mutants of each right solution to run.", min=1)
    ] = 40,
    limit: LimitOption = None,
    seed: Annotated[int, typer.Option(help="The seed by which mutants are drawn.")] = 0,
    jobs: JobsOption = None,
    seconds: SecondsOption = 1.0,
    unsafe: UnsafeOption = False,
    sets: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Make buggy solutions out of right ones by small changes to their syntax trees.

    A bug is kept only if tests show it: the program ends in time, gives a wrong answer in
    at least one of them, and the right one in another.  The same command continues where an earlier
    one was stopped.
    """
    data = opened_data(data_params(dataset, sets, skip_bad_rows), TERMINAL)
    making = Making(out, wanted, limit, seed, Proving(jobs, unsafe, seconds))
    tasks, factory = tasks_or_die(data, making), mutant_factory(making)
    signature = making.signature(data, by="mutation", most_tried=most_tried)
    with closing(open_file(out, signature)) as file:
        work = Work(by_mutation(factory, most_tried), making.proving.at_a_time)
        make(data, making, work, file, tasks)
