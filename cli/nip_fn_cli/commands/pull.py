"""`nip-fn pull`: a shared run, downloaded."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn.errors import Problem
from nip_fn_adapters.experiments.plans import checked_name
from nip_fn_adapters.recording.sharing import ADAPTERS, pull
from nip_fn_cli.shown.exits import Exit, command, die, or_exit, say
from nip_fn_cli.shown.options import RunsOption, TrustOption


def pull_command(
    source: Annotated[
        str,
        typer.Argument(
            help="ORG/NAME, a repository of the Hugging Face hub that nip-fn export --to hf has "
            "pushed, or wandb:ENTITY/PROJECT/RUN, a run that --track wandb has kept."
        ),
    ],
    run: Annotated[
        str | None,
        typer.Option("--run", help="A new name for the run; its own if left out.", metavar="NAME"),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Download a shared run: its recording and its adapters.

    It is derived again, and refused if the result is not as recorded.  Other runs can start from
    its agents.
    """
    folder = runs / (checked_name(run) or source.rpartition("/")[2])
    if folder.exists():
        remedy = "give it another name (--run)"
        die(Exit.RUN, Problem("there is a run of that name", str(folder), remedy))
    pulled = or_exit(pull(source, folder))
    print(folder)
    say(
        f"digest {pulled.digest}, as recorded; look at it with: {command('nip-fn', 'show', folder)}"
    )
    lineage = [adapter.name for group in pulled.state.groups for adapter in group.lineage]
    missing = [name for name in lineage if not (folder / ADAPTERS / name).is_dir()]
    if missing:
        say(f"nip-fn: it has no weights of {', '.join(missing)}: only what speaks of them is here")
