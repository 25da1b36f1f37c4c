"""`nip-fn sweep`: the cells of a study, each an ordinary run, and the table of all of them."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from nip_fn.config.codec import merge
from nip_fn.config.study import with_seeds
from nip_fn_adapters.experiments.plans import checked_name
from nip_fn_adapters.experiments.studies.plans import read_study
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.exits import or_exit
from nip_fn_cli.shown.options import (
    DryRunOption,
    JsonOption,
    PricesOption,
    ProviderOption,
    SeedsOption,
    SetOption,
    TrustOption,
    money_or_die,
    seeds_or_die,
)
from nip_fn_cli.shown.watching import TERMINAL
from nip_fn_cli.sweeping import Running, run_study


def sweep_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .toml or .json file: a base configuration, and what varies in it; or a .yaml "
            "file of experiments of the nip library.",
            metavar="STUDY",
        ),
    ],
    seeds: SeedsOption = None,
    forest: Annotated[
        str | None,
        typer.Option(
            help="A run from whose recorded replies all cells select and train; they sample "
            "only their tests.",
            metavar="RUN",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="The most cells to run at a time.  The default is one, and with --ray as many as "
            "fit.",
            min=1,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run the cells as tasks of the Ray cluster at this address; auto finds one, local "
            "starts one on this machine.",
            metavar="ADDRESS",
        ),
    ] = None,
    provider: ProviderOption = None,
    sets: SetOption = None,
    dry_run: DryRunOption = False,
    budget: Annotated[
        float | None,
        typer.Option(
            help="The most dollars that all cells together may spend.", min=0.0, metavar="DOLLARS"
        ),
    ] = None,
    prices: PricesOption = None,
    name: Annotated[
        str | None, typer.Option(help="A name for the study; that of its file if left out.")
    ] = None,
    studies: Annotated[
        Path, typer.Option("--studies", help="The folder that holds the studies.", metavar="FOLDER")
    ] = Path("studies"),
    as_json: JsonOption = False,
    trust: TrustOption = False,
) -> None:
    """Run all cells of a study, and print what differs between them.

    A study is a base configuration with axes along which it varies, and each cell is an ordinary
    run in STUDIES/NAME.  The same command resumes a study that was stopped.
    """
    study = or_exit(read_study(file, checked_name(name, "--name"), TERMINAL))
    study = replace(study, base=merge(study.base, overrides(sets=sets)))
    numbers = seeds_or_die(seeds)
    if numbers is not None:
        study = with_seeds(study, numbers)
    if forest is not None:
        study = replace(study, forest=forest)
    running = Running(provider, jobs, ray, prices)
    money = money_or_die(budget, prices)
    run_study(study, studies / study.name, running, money, dry_run=dry_run, as_json=as_json)
