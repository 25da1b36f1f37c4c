"""`nip-fn bench ...`: the speed of trainings on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn_cli.shown.exits import Exit, or_exit, say
from nip_fn_cli.shown.helping import Command, Group

bench = typer.Typer(
    cls=Group, help="Measure speed and memory on this machine.", no_args_is_help=True
)


@bench.command(cls=Command)
def train(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="The model: a folder, ORG/NAME of the Hugging Face hub, a built-in one "
            "(builtin:tea if left out), or random:60M, a Llama of 60 million random weights, which "
            "takes minutes, and for which trl holds 2.5 GB for each pair of a step.",
            metavar="NAME",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a local run: its trainings are done again instead, whole, by trl "
            "in new interpreters and packed.",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    trees: Annotated[
        int, typer.Option(help="The number of trees to train on, of five pairs each.", min=1)
    ] = 4,
    pairs: Annotated[int, typer.Option(help="The number of pairs of a step.", min=1)] = 8,
    repeats: Annotated[
        int, typer.Option(help="The number of runs of each way, in turns.", min=1)
    ] = 1,
    threads: Annotated[
        int, typer.Option(help="The number of processor threads of a training.", min=1)
    ] = 1,
) -> None:
    """Compare DPO by trl, on packed rows, and one pass over the distinct tokens (the limit).

    Rows have prompts of 600 tokens and replies of 60, less where the model's context is short.
    """
    from nip_fn_adapters.providers.local.models import require
    from nip_fn_cli.shown.printing import print_rows

    or_exit(require("torch", "transformers", "peft", "trl", "datasets"), Exit.ADAPTER)
    if run is not None:
        _train_again(run, repeats, threads)
        return
    table = []
    for name in model or ["builtin:tea"]:
        table += _speeds(name, trees, repeats, threads, pairs)
    titles = ("model", "way", "steps/s", "tokens of rows/s", "time : limit", "peak GB")
    print_rows(titles, table, keys=2)
    say(
        "seconds are of the processor, on a GPU of the clock; plain: trl; both it and packed score "
        "the reference first and the policy at the end, their steps alone do not"
    )


def _speeds(
    model: str, trees: int, repeats: int, threads: int, pairs: int
) -> list[tuple[str, ...]]:
    """The lines of a model in the table."""
    from nip_fn_adapters.providers.local.bench import RANDOM, WAYS, measure
    from nip_fn_adapters.providers.local.models import model_directory

    if model != RANDOM:
        or_exit(model_directory(model), Exit.ADAPTER)
    say(f"training {model} in {len(WAYS)} ways, {repeats} times each")
    speeds = or_exit(measure(model, trees, repeats, threads, pairs), Exit.ADAPTER)
    limit = speeds["limit"].seconds
    return [
        (
            model,
            way,
            f"{speed.steps / speed.seconds:.3g}",
            f"{speed.tokens / speed.seconds:,.0f}",
            f"{speed.seconds / limit:.2f}",
            f"{speed.gigabytes:.2f}",
        )
        for way, speed in speeds.items()
    ]


def _train_again(run: Path, repeats: int, threads: int) -> None:
    """Print what the trainings of a run cost in both ways."""
    from nip_fn_adapters.providers.local.bench_jobs import WAYS, measure_run
    from nip_fn_cli.shown.printing import print_rows

    say(f"training all jobs of {run} in {len(WAYS)} ways, {repeats} times each")
    costs = or_exit(measure_run(run, repeats, threads), Exit.RUN)
    table = [
        (
            way,
            str(cost.trainings),
            f"{cost.seconds:.1f}",
            f"{cost.read:,}",
            f"{cost.read / cost.distinct:.2f}",
        )
        for way, cost in costs.items()
    ]
    titles = ("way", "trainings", "processor seconds", "tokens read", "read : distinct")
    print_rows(titles, table, keys=1)
