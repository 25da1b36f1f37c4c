"""The note in a run's folder of the dollars that may have been billed without being recorded.

RUN/unrecorded   the number, as text

It is beside the recording and not in it: what a replay derives must not depend on prices.
"""

import os
from pathlib import Path

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn_adapters.store import sync_path

UNRECORDED = "unrecorded"
WIDTH = 24  # bytes, so that a shorter number overwrites a longer one


def read_unrecorded(run: Path) -> Result[float, Problem]:
    """The dollars that the sessions of a run have noted; 0 if there is no note."""
    file = run / UNRECORDED
    try:
        dollars = float(file.read_text("ascii"))
    except FileNotFoundError:
        return Success(0.0)
    except ValueError:
        dollars = -1.0
    if not 0.0 <= dollars < float("inf"):
        remedy = "write the dollars into it that may have been billed without being recorded"
        return Failure(Problem("it is not a number of dollars", str(file), remedy))
    return Success(dollars)


class UnrecordedNote:
    """Implements the budget's `Note` as a file in a run's folder."""

    def __init__(self, run: Path) -> None:
        """Write nothing yet."""
        self._run = run

    def __call__(self, dollars: float, *, sync: bool) -> None:
        """Overwrite the number."""
        # In place and in one write, which a kill cannot divide: far cheaper than a new file.
        file = self._run / UNRECORDED
        is_new = not file.exists()
        if is_new:
            self._run.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, f"{dollars:<{WIDTH - 1}.9f}\n".encode(), 0)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_path(self._run)
