"""`nip-fn report`: recorded runs as one HTML page, or as an index with pages."""

from collections.abc import Sequence
from pathlib import Path

from nip_fn_adapters.experiments.budgets import Money
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
from nip_fn_cli.shown.watching import TERMINAL

REPORT = "report"


def report_command(
    given: Sequence[Path], out: Path | None, *, split: bool, money: Money, runs: Path
) -> None:
    """Run the command.

    Args:
        given: Runs: folders, checkpoint files or names.
        out: The file to write, or with `split` the folder; None for one beside the recording of a
            single run, or in the working directory.
        split: Write an index and pages with all trees.
        money: The prices.
        runs: The folder in which names are looked for.
    """
    files = [or_exit(recorded.checkpoint_file(path, runs)) for path in given]
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
    for file, one in zip(files, subjects, strict=True):
        if one.replayed.state.faults:
            die(Exit.MISMATCH, f"{file}: {one.replayed.state.faults[0]}")


def _subject(file: Path) -> Subject:
    recording = read_recording(file)
    if recording.torn:
        say(
            f"nip-fn: {file} ends inside an event; the report is of the {len(recording.events):,} "
            "before it"
        )
    replayed = replay_recording(file, recording, TERMINAL)
    return subject(file.parent.name, replayed, recorded.start_of(recording))
