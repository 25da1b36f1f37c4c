"""Notes about money in a run's folder.

RUN/unrecorded    the dollars that may have been billed without being recorded, as text
RUN/prices.toml   the prices that were given for the run

They are beside the recording and not in it: what a replay derives must not depend on prices.
"""

import os
from pathlib import Path

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn_adapters.costs.prices import PriceTable, parse_prices, prices_text
from nip_fn_adapters.durable import make_folder, replace_file

UNRECORDED, PRICES = "unrecorded", "prices.toml"
WIDTH = 24  # bytes, so that a shorter number overwrites a longer one


def read_prices(path: Path) -> Result[PriceTable, Problem]:
    """The price table in a file."""
    try:
        return parse_prices(path.read_text("utf-8")).alt(lambda problem: problem.at(str(path)))
    except UnicodeDecodeError as error:
        return Failure(Problem(f"it is not UTF-8 text: {error}", address=str(path)))
    except OSError as error:
        return Failure(Problem(f"it cannot be read: {error.strerror}", address=str(path)))


def prices_of_run(run: Path) -> Result[PriceTable, Problem]:
    """The prices that were given for a run; an empty table if none were."""
    file = run / PRICES
    return read_prices(file) if file.is_file() else Success(PriceTable())


def keep_prices(run: Path, prices: PriceTable) -> None:
    """Keep the prices that are given for a run, so that a replay shows the same dollars."""
    if prices != prices_of_run(run).value_or(None):
        replace_file(run / PRICES, prices_text(prices).encode())


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
        file, text = self._run / UNRECORDED, f"{dollars:<{WIDTH - 1}.9f}\n".encode()
        # Whole from the beginning: an empty note would keep the run from being resumed.
        if not file.exists():
            make_folder(self._run)
            replace_file(file, text)
            return
        descriptor = os.open(file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, text, 0)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
