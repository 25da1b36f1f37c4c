"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn_cli.shown.exits import Exit, die

RunsOption = Annotated[
    Path, typer.Option("--runs", help="The folder that holds the runs.", metavar="FOLDER")
]


def _trust(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
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


def seeds_or_die(given: str | None) -> int | tuple[int, ...] | None:
    """The number of seeds, or the seeds; None if none are given.  Ends the command if wrong."""
    words = () if given is None else tuple(map(str.strip, given.split(",")))
    if given is None:
        return None
    if not all(word.lstrip("-").isdecimal() for word in words) or words == ("0",):
        die(Exit.USAGE, f"--seeds: expected a number or a list, got {given!r}; as in --seeds 1,2,5")
    numbers = tuple(map(int, words))
    return numbers if len(numbers) > 1 else numbers[0]


def listed(values: list[str] | None) -> tuple[str, ...]:
    """The values of an option that may be repeated, and may hold several, separated by commas."""
    return tuple(one.strip() for given in values or () for one in given.split(",") if one.strip())
