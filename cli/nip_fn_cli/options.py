"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

RunsOption = Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")]
SkipOption = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read; count them.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set one parameter; may be repeated."),
]

BudgetOption = Annotated[
    float | None,
    typer.Option(help="Dollars that may be spent, all sittings of a run together.", min=0.0),
]
PricesOption = Annotated[
    Path | None,
    typer.Option(help="A .toml file of prices that go before the listed ones.", metavar="FILE"),
]

ProviderOption = Annotated[
    str | None,
    typer.Option(
        help="Who samples and trains: local, openai, openrouter, self-hosted or dummy (no model)."
    ),
]
ModelOption = Annotated[
    str | None, typer.Option(help="Of all agents that name none of their own.", metavar="NAME")
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(help="Where a compatible API is; several, with commas between, share the work."),
]

BatchOption = Annotated[
    bool, typer.Option("--batch", help="Ask in batches: half the price, up to a day a step.")
]
