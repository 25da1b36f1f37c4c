"""`nip-fn report`: recorded runs as one HTML page, or as an index with pages."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn_adapters.experiments.recordings import read_recording, replay_recording
from nip_fn_adapters.recording import runs as recorded
from nip_fn_adapters.recording.reports import (
    Subject,
    report_page,
    split_report,
    subject,
    write_pages,
)
from nip_fn_cli.shown.exits import Exit, die, or_exit, say
from nip_fn_cli.shown.options import PricesOption, RunsOption, TrustOption, money_or_die
from nip_fn_cli.shown.watching import TERMINAL

REPORT = "report"


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
    files = [or_exit(recorded.checkpoint_file(path, runs)) for path in run]
    money = money_or_die(prices=prices)
    subjects = [_subject(file) for file in files]
    folder = files[0].parent if len(files) == 1 else Path()
    if split:
        out = out or folder / REPORT
        write_pages(out, split_report(subjects, money.prices))
        print(out / "index.html")
    else:
        out = out or folder / f"{REPORT}.html"
        write_pages(out.parent, {out.name: report_page(subjects, money.prices)})
        print(out)
    # Only now: whoever looks for the cause of a mismatch needs what was derived.
    for file, run_subject in zip(files, subjects, strict=True):
        if run_subject.replayed.state.faults:
            die(Exit.MISMATCH, f"{file}: {run_subject.replayed.state.faults[0]}")


def _subject(file: Path) -> Subject:
    recording = read_recording(file)
    if recording.torn:
        say(
            f"nip-fn: {file} ends inside an event; the report is of the {len(recording.events):,} "
            "before it"
        )
    replayed = replay_recording(file, recording, TERMINAL)
    return subject(file.parent.name, replayed, recorded.start_of(recording))
