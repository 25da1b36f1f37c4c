"""`nip-fn data ...`: look at data sets, check them, make buggy solutions."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nip_fn_cli.shown.helping import Command, Group
from nip_fn_cli.shown.options import (
    BaseUrlOption,
    BudgetOption,
    JsonOption,
    PricesOption,
    ProviderOption,
    SetOption,
    SkipOption,
)

data = typer.Typer(
    cls=Group, help="Look at data sets, check them, and make buggy solutions.", no_args_is_help=True
)
command = partial(data.command, cls=Command)

DatasetArgument = Annotated[
    str, typer.Argument(help="The data set, as for nip-fn train --dataset.", metavar="DATASET")
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        help="The number of programs to run at a time; one per processor by default.",
        min=1,
        max=1024,
    ),
]
UnsafeOption = Annotated[
    bool, typer.Option("--unsafe", help="Run code even if nothing isolates it.")
]
SecondsOption = Annotated[
    float,
    typer.Option(help="The processor time that each test may take.", min=0.1, metavar="SECONDS"),
]


@command()
def stats(
    dataset: DatasetArgument,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Count the tokens of this model, not characters.", metavar="NAME"),
    ] = None,
    set_: SetOption = None,
    skip_bad_rows: SkipOption = False,
    json: JsonOption = False,
) -> None:
    """Print what a data set holds: rows, problems, balance, difficulties, lengths, hash."""
    from nip_fn_cli.shown.data_tables import data_params, stats_command

    params = data_params(dataset, tuple(set_ or ()), skip_bad_rows)
    stats_command(params, tokenizer=tokenizer, as_json=json)


@command()
def check(
    dataset: DatasetArgument,
    prove: Annotated[bool, typer.Option(help="Run the tests of all solutions.")] = True,
    jobs: JobsOption = None,
    seconds: SecondsOption = 4.0,
    unsafe: UnsafeOption = False,
    set_: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Check rows, duplicates, leaks between splits, and labels against tests."""
    from nip_fn_cli.shown.data_tables import Proving, check_command, data_params

    params = data_params(dataset, tuple(set_ or ()), skip_bad_rows)
    check_command(params, Proving(jobs, unsafe, seconds), prove=prove)


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


@command()
def mutate(
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
    set_: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Make buggy solutions out of right ones by small changes to their syntax trees.

    A bug is kept only if tests show it: the program ends in time, gives a wrong answer in
    at least one of them, and the right one in another.  The same command continues where an earlier
    one was stopped.
    """
    from nip_fn_cli.commands.bugs import Making, mutate_command
    from nip_fn_cli.shown.data_tables import Proving, data_params

    params = data_params(dataset, tuple(set_ or ()), skip_bad_rows)
    making = Making(out, wanted, limit, seed, Proving(jobs, unsafe, seconds))
    mutate_command(params, making, most_tried=most_tried)


@command()
def bug(
    dataset: DatasetArgument,
    out: OutOption,
    model: Annotated[str, typer.Option(help="The model that writes the bugs.", metavar="NAME")],
    provider: ProviderOption = "local",
    base_url: BaseUrlOption = None,
    wanted: WantedOption = 2,
    attempts: Annotated[
        int, typer.Option(help="The most requests for each right solution.", min=1)
    ] = 3,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of a reply.", min=1)] = 2048,
    temperature: Annotated[
        float | None, typer.Option(help="The sampling temperature.", min=0.0)
    ] = None,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    limit: LimitOption = None,
    seed: Annotated[int, typer.Option(help="The seed by which replies are drawn.")] = 0,
    jobs: JobsOption = None,
    seconds: SecondsOption = 1.0,
    unsafe: UnsafeOption = False,
    set_: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Make buggy solutions out of right ones by asking a model for them.

    They are judged by tests as those of nip-fn data mutate are.  The same command continues
    where an earlier one was stopped, even by its budget; no reply is requested twice.
    """
    from nip_fn_cli.commands.bugs import Asking, Making, bug_command
    from nip_fn_cli.config import Flags
    from nip_fn_cli.money import money_or_die
    from nip_fn_cli.shown.data_tables import Proving

    flags = Flags(
        provider=provider,
        model=model,
        base_url=base_url,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows or None,
        sets=tuple(set_ or ()),
    )
    making = Making(out, wanted, limit, seed, Proving(jobs, unsafe, seconds))
    asking = Asking(max_tokens, temperature, attempts)
    bug_command(flags, making, asking, money_or_die(budget, prices))


@command()
def show(
    dataset: DatasetArgument,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A datapoint's id, or a problem's; without it, all of them are listed.",
            metavar="ID",
        ),
    ] = None,
    set_: SetOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Print a problem: its statement, its code, and what differs from the right solution."""
    from nip_fn_cli.shown.data_tables import data_params, show_command

    show_command(data_params(dataset, tuple(set_ or ()), skip_bad_rows), name)
