"""`nip-fn bench ...`: the speed of trainings on this machine."""

import subprocess
from typing import Annotated

import typer

from nip_fn_cli.exits import Exit, die, or_exit, say
from nip_fn_cli.helping import Command, Group

bench = typer.Typer(
    cls=Group, help="Measure speed and memory on this machine.", no_args_is_help=True
)


@bench.command(cls=Command)
def train(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="The model: a folder, ORG/NAME of the Hugging Face hub, a built-in one "
            "(builtin:tea if left out), or random:60M, a Llama of 60 million random weights, for "
            "which trl holds 20 GB.",
            metavar="NAME",
        ),
    ] = None,
    trees: Annotated[
        int, typer.Option(help="The number of trees to train on, of five pairs each.", min=1)
    ] = 4,
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
    from nip_fn_adapters.local.bench import RANDOM, measure
    from nip_fn_adapters.local.models import model_directory, require
    from nip_fn_cli.printing import print_rows

    or_exit(require("torch", "transformers", "peft", "trl", "datasets"), Exit.ADAPTER)
    table = []
    for name in model or ["builtin:tea"]:
        if name != RANDOM:
            or_exit(model_directory(name), Exit.ADAPTER)
        say(f"training {name} in four ways, {repeats} times each")
        try:
            speeds = measure(name, trees, repeats, threads)
        except subprocess.CalledProcessError as error:
            die(Exit.ADAPTER, f"the training of {name} ended with exit code {error.returncode}")
        limit = speeds["limit"].seconds
        table += [
            (
                name,
                way,
                f"{speed.steps / speed.seconds:.3g}",
                f"{speed.tokens / speed.seconds:,.0f}",
                f"{speed.seconds / limit:.2f}",
                f"{speed.gigabytes:.2f}",
            )
            for way, speed in speeds.items()
        ]
    titles = ("model", "way", "steps/s", "tokens of rows/s", "time : limit", "peak GB")
    print_rows(titles, table, keys=2)
    say(
        "seconds are of the processor, on a GPU of the clock; plain: trl; packed: with the "
        "reference before and the KL after; steps: the packed steps alone"
    )
