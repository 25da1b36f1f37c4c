"""Options that several commands have, and the values that they stand for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nip_fn_cli.shown.exits import Exit, die, or_exit

if TYPE_CHECKING:  # as in `exits`
    from nip_fn_adapters.experiments.budgets import Money

# The words by which help texts offer a reference (see nip_fn_adapters.extensions).
OWN = "your own as package.module:NAME or file.py:NAME"

RunsOption = Annotated[
    Path, typer.Option("--runs", help="The folder that holds the runs.", metavar="FOLDER")
]


def _trust(ctx: typer.Context, is_trusted: bool) -> None:
    if is_trusted:
        from nip_fn_adapters.trust import trusting

        ctx.with_resource(trusting())


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_trust,
        expose_value=False,
        help="Run the Python code, and ask the servers, that a recording names, even if you have "
        "never named them yourself.",
    ),
]
SkipOption = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Skip and count rows that cannot be read.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set a parameter to a value; may be repeated."),
]

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only print a forecast of requests, tokens and price.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

BudgetOption = Annotated[
    float | None,
    typer.Option(
        help="The most dollars that a run may spend, over all its sessions.",
        min=0.0,
        metavar="DOLLARS",
    ),
]
PricesOption = Annotated[
    Path | None,
    typer.Option(help="A .toml file of prices that override the built-in ones.", metavar="FILE"),
]

ProviderOption = Annotated[
    str | None,
    typer.Option(
        help="The provider of all models: local, openai, openrouter, self-hosted, scripted or "
        "dummy (no model).",
        metavar="NAME",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="The model of all agents that do not name their own.", metavar="NAME"),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(
        help="The URL of an OpenAI-compatible API; several, separated by commas, share the work.",
        metavar="URL",
    ),
]

BatchOption = Annotated[
    bool,
    typer.Option(
        "--batch", help="Use the batch API, which takes half the price and up to a day per step."
    ),
]


SeedsOption = Annotated[
    str | None,
    typer.Option(
        help="The number of seeds (3 for 1, 2 and 3), or a list of them (1,2,5).", metavar="N"
    ),
]

DatasetOption = Annotated[
    str | None, typer.Option(help="The data set, as for nip-fn train.", metavar="DATA")
]

# Of the commands that test.
TestedArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A .toml or .json file, as for nip-fn train; nothing is trained.", metavar="CONFIG"
    ),
]
VerifierModelOption = Annotated[
    str | None, typer.Option(help="The model of the verifier.", metavar="NAME")
]
ProverModelOption = Annotated[
    str | None, typer.Option(help="The model of all provers.", metavar="NAME")
]
TemperatureOption = Annotated[
    float | None, typer.Option(help="The temperature of all models.", min=0.0)
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        help="The rows to test on: all, train, validation, test, or another split that the "
        "data come in.  The default is their test split, or all rows of data without one.",
        metavar="NAME",
    ),
]
LimitOption = Annotated[int | None, typer.Option(help="The most datapoints to test on.", min=1)]
ShuffleOption = Annotated[
    int | None,
    typer.Option(help="The seed of the datapoints' order, and so of those that --limit takes."),
]
RepeatsOption = Annotated[
    int | None, typer.Option(help="The number of dialogues about each datapoint.", min=1)
]
SeedOption = Annotated[int | None, typer.Option(help="The seed of all randomness.")]
TestNameOption = Annotated[
    str | None,
    typer.Option(
        "--run", help="A name for the runs; made from their parameters if left out.", metavar="NAME"
    ),
]


def seeds_or_die(text: str | None) -> int | tuple[int, ...] | None:
    """The number of seeds, or the seeds; None if none are given.  Ends the command if wrong."""
    if text is None:
        return None
    words = tuple(map(str.strip, text.split(",")))
    if not all(word.lstrip("-").isdecimal() for word in words) or words == ("0",):
        die(Exit.USAGE, f"--seeds: expected a number or a list, got {text!r}; as in --seeds 1,2,5")
    numbers = tuple(map(int, words))
    return numbers if len(numbers) > 1 else numbers[0]


def money_or_die(budget: float | None = None, prices: Path | None = None) -> "Money":
    """The budget, and the prices: of the file, then of the user's own file, then the listed ones.

    Ends the command if a file cannot be read.
    """
    from nip_fn_adapters.experiments.budgets import read_money
    from nip_fn_adapters.experiments.outcomes import outcome

    return or_exit(outcome(read_money)(budget, prices))


def listed(values: list[str] | None) -> tuple[str, ...]:
    """The values of an option that may be repeated, and may hold several, separated by commas."""
    words = (word.strip() for value in values or () for word in value.split(","))
    return tuple(filter(None, words))
