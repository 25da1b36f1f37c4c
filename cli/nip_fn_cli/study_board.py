"""The cells of a study while they run: a table on a terminal, a line for each change elsewhere."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from nip_fn_adapters.studies.cell import last_line
from nip_fn_adapters.tracker import read_metrics
from nip_fn_cli.consoles import Console
from nip_fn_cli.exits import Exit, say

ORDER = ("running", "stopped", "waiting", "done")  # in which states are shown, the last cut first


def why(code: int, folder: Path) -> str:
    """The reason why a cell's command has ended with an exit code: what it said last."""
    if code > 128 and code != Exit.INTERRUPTED:
        return f"killed by signal {code - 128}"
    return last_line(folder).removeprefix("nip-fn: ") or f"exit code {code}"


class Board:
    """An observer of the cells of a study that shows them on standard error."""

    def __init__(
        self, folders: Sequence[Path], done: Collection[str], well: Collection[int]
    ) -> None:
        """The cells in these folders, some of them done before; `well` are good exit codes."""
        self._folders, self._done, self._well = folders, done, well
        self._told: Mapping[str, int | None] = {}
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> "Board":
        """Start drawing."""
        if sys.stderr.isatty():
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        self._live.stop()

    def __call__(self, codes: Mapping[str, int | None]) -> None:
        """Show the cells that were begun: their exit codes, None of those that run."""
        if self._live.is_started:
            self._live.update(self._table(codes), refresh=True)
        else:
            for folder in self._folders:
                name = folder.name
                if name in codes and codes[name] != self._told.get(name, ...):
                    say(
                        f"{name}: {self._state(codes, folder)}  {self._says(codes, folder)}".strip()
                    )
        self._told = dict(codes)

    def _state(self, codes: Mapping[str, int | None], folder: Path) -> str:
        name = folder.name
        if name not in codes:
            return "done" if name in self._done else "waiting"
        code = codes[name]
        return "running" if code is None else "done" if code in self._well else "stopped"

    def _says(self, codes: Mapping[str, int | None], folder: Path) -> str:
        code = codes.get(folder.name)
        if code is None:
            return last_line(folder) if folder.name in codes else ""
        return accuracies(folder) if code in self._well else why(code, folder)

    def _table(self, codes: Mapping[str, int | None]) -> Table:
        rows = [(self._state(codes, folder), folder) for folder in self._folders]
        counts = {state: sum(own == state for own, _ in rows) for state in ORDER}
        title = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("cell", "state", ""):
            table.add_column(heading, no_wrap=True, overflow="ellipsis")
        for state, folder in sorted(rows, key=lambda row: ORDER.index(row[0])):
            table.add_row(*map(Text, (folder.name, state, self._says(codes, folder))))
        return table


def accuracies(folder: Path) -> str:
    """The accuracies of the first and the last test of a run, as its metrics have them."""
    tests: list[dict[str, Any]] = [
        row for row in read_metrics(folder) if row["stage"] == "test" and "accuracy" in row
    ]
    shares = [f"{row['accuracy']:.1%}" for row in tests]
    return f"accuracy {' → '.join(dict.fromkeys((shares[0], shares[-1])))}" if shares else ""
