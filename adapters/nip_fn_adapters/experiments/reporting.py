"""Reports from Python: recorded runs as one HTML page, or as an index with pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.outcomes import outcome
from nip_fn_adapters.experiments.recordings import open_recording, replay_recording
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.processes.garbage import rare_collections
from nip_fn_adapters.recording.reports import (
    ReportedRun,
    report_page,
    split_report,
    subject,
    write_pages,
)
from nip_fn_adapters.recording.runs import Run, checkpoint_file, start_of

REPORT = "report"


class Report(NamedTuple):
    """A report that was written.

    page: its file, or that of its index.
    faults: (recording, the first place where a recorded digest differs from the derived one), of
      the runs that have one.
    """

    page: Path
    faults: tuple[tuple[Path, str], ...]


@outcome
@rare_collections()
def report(
    run: Run | Path | str | Sequence[Run | Path | str],
    out: Path | str | None = None,
    *,
    split: bool = False,
    prices: Path | None = None,
    runs: Path | str = "runs",
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> Report:
    """Write runs as an HTML page that needs no other file: `nip-fn report`.

    Args:
        run: A run (its name in `runs`, its folder, or itself), or several.
        out: The file to write, or with `split` the folder; None for `report.html`, or `report`,
            beside the recording of a single run, or in the working directory.
        split: Write an index, and all trees on pages of their own.
        prices: A file of prices, which go before those that are known.
        runs: The folder of all runs.
        tell: Takes lines for people, as of a recording that ends inside an event; None: nothing is
            printed.
        watch: See `Watch`.
    """
    watch = watch.telling(tell)
    listed = (run,) if isinstance(run, Run | Path | str) else tuple(run)
    known = read_money(file=prices).prices
    files = [
        one.path if isinstance(one, Run) else checkpoint_file(Path(one), Path(runs)).unwrap()
        for one in listed
    ]
    subjects = [_subject(file, watch) for file in files]
    folder = files[0].parent if len(files) == 1 else Path()
    if split:
        page = Path(out or folder / REPORT) / "index.html"
        write_pages(page.parent, split_report(subjects, known))
    else:
        page = Path(out or folder / f"{REPORT}.html")
        write_pages(page.parent, {page.name: report_page(subjects, known)})
    faults = [subject.replayed.state.faults[:1] for subject in subjects]
    return Report(
        page,
        tuple((file, fault) for file, found in zip(files, faults, strict=True) for fault in found),
    )


report_async = asynchronous(report)


def _subject(file: Path, watch: Watch) -> ReportedRun:
    recording = open_recording(file)
    if recording.torn:
        watch.tell(
            f"nip-fn: {file} ends inside an event; the report is of the {len(recording.events):,} "
            "before it"
        )
    replayed = replay_recording(file, recording, watch)
    return subject(file.parent, replayed, start_of(recording))
