"""`nip-fn sweep`: the cells of a study, each an ordinary run, and the table of all of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nip_fn_adapters.experiments.sweeping import forecast_sweep, read_study, sweep
from nip_fn_cli.config import with_sets
from nip_fn_cli.shown.dryrun import print_sweep_forecast
from nip_fn_cli.shown.exits import or_exit
from nip_fn_cli.shown.options import (
    DryRunOption,
    JsonOption,
    PricesOption,
    ProviderOption,
    SeedsOption,
    SetOption,
    TrustOption,
    seeds_or_die,
)
from nip_fn_cli.shown.study_table import print_sweep
from nip_fn_cli.shown.watching import TERMINAL


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
    written = read_study(
        file,
        with_sets({}, sets or ()),
        seeds=seeds_or_die(seeds),
        forest=forest,
        name=name,
        watch=TERMINAL,
    )
    study = or_exit(written)
    options: dict[str, Any] = {
        "provider": provider,
        "budget": budget,
        "prices": prices,
        "studies": studies,
        "watch": TERMINAL,
    }
    if dry_run:
        planned = or_exit(forecast_sweep(study, **options))
        print_sweep_forecast(planned, study.budget if budget is None else budget)
    else:
        print_sweep(or_exit(sweep(study, jobs=jobs, ray=ray, **options)), as_json=as_json)
