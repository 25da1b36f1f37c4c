"""Metrics as JSON Lines: one line a stage, derived from the run and never read back.

A line also has NAME.dollars of each agent, or of each trained group; null if a price is unknown.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nip_fn.params.run import HyperParameters
from nip_fn.run.state import RunState, StageMetrics
from nip_fn_adapters.costs.prices import Prices
from nip_fn_adapters.costs.spending import stage_expenses
from nip_fn_adapters.durable import replace_file

METRICS = "metrics.jsonl"


def read_metrics(run: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's metrics, without one that is being written.

    Raises:
        msgspec.DecodeError: A line is no JSON.
    """
    path = run / METRICS
    data = path.read_bytes() if path.exists() else b""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        yield msgspec.json.decode(line, type=dict[str, Any])


class JsonLines:
    """The `Tracker` port as the file `metrics.jsonl` in a run's folder."""

    def __init__(self, run: Path, params: HyperParameters, state: RunState, prices: Prices) -> None:
        """Write the stages that `state` has recorded.

        Args:
            run: The run's folder.
            params: The run's parameters.
            state: The state to begin in; what the file held before is derived from it again.
            prices: The prices of tokens.
        """
        # A line that was cut by a crash, or written by an older version, is not worth repairing.
        self._path, self._params, self._prices = run / METRICS, params, prices
        seconds = {(iteration, stage): value for iteration, stage, value in state.seconds}
        replace_file(
            self._path,
            b"".join(
                self._line(row, seconds[row.iteration, row.stage])
                for row in state.rows
                if (row.iteration, row.stage) in seconds
            ),
        )

    def __call__(self, row: StageMetrics, seconds: float) -> None:
        """Append one stage."""
        with self._path.open("ab") as file:
            file.write(self._line(row, seconds))

    def _line(self, row: StageMetrics, seconds: float) -> bytes:
        fields = {"iteration": row.iteration, "stage": row.stage, **dict(row.metrics)}
        expenses = stage_expenses(self._params, row, self._prices)
        dollars = {f"{expense.name}.dollars": expense.dollars for expense in expenses}
        return msgspec.json.encode({**fields, **dollars, "seconds": round(seconds, 3)}) + b"\n"
