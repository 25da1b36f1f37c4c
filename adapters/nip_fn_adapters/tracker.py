"""Metrics as JSON Lines: one line a stage, derived from the run and never read back."""

from pathlib import Path

import msgspec

from nip_fn.state import Row, RunState
from nip_fn_adapters.store import replace_file

METRICS = "metrics.jsonl"


class JsonLines:
    """`metrics.jsonl` in a run's folder.  Fulfils the `Tracker` port."""

    def __init__(self, run: Path, state: RunState) -> None:
        """Write what `state` knows already; whatever the file held before is derived anew."""
        self._path = run / METRICS
        seconds = {(iteration, stage): value for iteration, stage, value in state.seconds}
        replace_file(
            self._path,
            b"".join(
                _line(row, seconds[row.iteration, row.stage])
                for row in state.rows
                if (row.iteration, row.stage) in seconds
            ),
        )

    def __call__(self, row: Row, seconds: float) -> None:
        """Append one stage."""
        with self._path.open("ab") as file:
            file.write(_line(row, seconds))


def _line(row: Row, seconds: float) -> bytes:
    fields = {"iteration": row.iteration, "stage": row.stage, **dict(row.metrics)}
    return msgspec.json.encode({**fields, "seconds": round(seconds, 3)}) + b"\n"
