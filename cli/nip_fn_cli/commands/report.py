"""`nip-fn report`: recorded runs as one HTML page, or as an index with pages."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn_adapters.experiments.reporting import report
from nip_fn_cli.shown.exits import Exit, die, or_exit
from nip_fn_cli.shown.options import PricesOption, RunsOption, TrustOption
from nip_fn_cli.shown.watching import TERMINAL


def report_command(
    run: Annotated[
        list[Path], typer.Argument(help="A run's folder, its name, or its checkpoint.msgpack.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file to write, or with --split the folder.  The default is report.html, or "
            "report, beside the recording of a single run, or here.",
            metavar="FILE",
        ),
    ] = None,
    split: Annotated[
        bool,
        typer.Option("--split", help="Write an index, and all trees on pages of their own."),
    ] = False,
    prices: PricesOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Write a run as an HTML page: its curves, trees, games, models and costs.

    The page needs no network and no script, and everything in it is derived from the recording.
    Several runs are shown one after the other, below a chart of all their accuracies.
    """
    written = or_exit(report(run, out, split=split, prices=prices, runs=runs, watch=TERMINAL))
    print(written.page)
    # Only now: whoever looks for the cause of a mismatch needs what was derived.
    for file, fault in written.faults:
        die(Exit.MISMATCH, f"{file}: {fault}")
