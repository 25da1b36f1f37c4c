"""The runs in a folder, each in a few facts, without deriving them again."""

import fcntl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from nip_fn.metrics.inference import Estimate
from nip_fn.params.run import HyperParameters
from nip_fn.run.checkpoint import outline
from nip_fn.run.events import Event, Extended, Forked, RunStarted, StageEnded
from nip_fn.run.state import is_tested
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_adapters.recording.tracker import read_metrics

RunStatus = Literal["running", "done", "stopped", "unreadable"]


class Overview(NamedTuple):
    """A run at a glance.

    name: its folder, below the folder of all runs.
    status: "running" while a command has it open; "stopped" can be resumed.
    iterations: (those that have ended, those of the whole run).
    params: as they are now; None of a file that cannot be read.
    dataset: the name of the data.
    first, last: accuracies of its first and its last test; None without a test.
    dollars: the cost up to the last stage that ended; None where a price is unknown.
    changed: the time of its last event.
    """

    name: str
    status: RunStatus
    iterations: tuple[int, int] = (0, 0)
    params: HyperParameters | None = None
    dataset: str = ""
    first: Estimate | None = None
    last: Estimate | None = None
    dollars: float | None = None
    changed: datetime = datetime.fromtimestamp(0, UTC)


def overviews(runs: Path) -> Iterator[Overview]:
    """All runs in a folder and in the evaluations there, by name."""
    for path in sorted((*runs.glob(f"*/{CHECKPOINT}"), *runs.glob(f"*/*/{CHECKPOINT}"))):
        yield overview(path.parent, str(path.parent.relative_to(runs)))


def overview(folder: Path, name: str) -> Overview:
    """The run in a folder, as its checkpoint and its metrics tell."""
    path = folder / CHECKPOINT
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    events = outline(path.read_bytes())
    if not events or not isinstance(events[0], RunStarted):
        return Overview(name, "unreadable", changed=changed)
    params = events[0].params
    for event in events:
        match event:
            case Extended(num):
                params = replace(params, rl=replace(params.rl, num_iterations=num))
            case Forked():
                params = event.params
    ended = sum(isinstance(event, StageEnded) and event.stage == "publish" for event in events)
    rows: list[dict[str, Any]] = []
    with suppress(msgspec.DecodeError):  # up to a line that is damaged
        for row in read_metrics(folder):
            rows.append(row)
    tests = [
        Estimate(row["accuracy"], row["accuracy_low"], row["accuracy_high"])
        for row in rows
        if row["stage"] == "test" and "accuracy" in row
    ]
    costs = [cost for row in rows for name, cost in row.items() if name.endswith(".dollars")]
    return Overview(
        name,
        "running" if _is_open(path) else "done" if _is_done(events[-1], params) else "stopped",
        (ended, params.rl.num_iterations),
        params,
        events[0].dataset.name,
        tests[0] if tests else None,
        tests[-1] if tests else None,
        None if None in costs else sum(costs),
        changed,
    )


def _is_done(last: Event, params: HyperParameters) -> bool:
    """True if the end of the last stage was the end of the run."""
    num = params.rl.num_iterations
    if not isinstance(last, StageEnded):
        return False
    end = ("test", num) if is_tested(params, num) else ("publish", num - 1)
    return (last.stage, last.iteration) == end


def _is_open(path: Path) -> bool:
    """True if another process holds the run's lock."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
