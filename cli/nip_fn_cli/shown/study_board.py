"""The cells of a study while they run: a table on a terminal, a line for each change elsewhere."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from nip_fn_adapters.experiments.studies.cell import is_queued, last_line, why_stopped
from nip_fn_adapters.experiments.studies.running import WELL
from nip_fn_adapters.recording.tracker import read_metrics
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.exits import say

# In which states are shown, the last cut first.
ORDER = ("running", "queued", "stopped", "waiting", "done")


class Board:
    """An observer of the cells of a study that shows them on standard error."""

    def __init__(self, folders: Sequence[Path], finished: Collection[str]) -> None:
        """The cells in these folders, some of them done before."""
        self._folders, self._done = folders, finished
        self._told: dict[str, tuple[str, int | None]] = {}
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> "Board":
        """Start drawing."""
        if sys.stderr.isatty():
            self._live.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        self._live.stop()

    def __call__(self, codes: Mapping[str, int | None]) -> None:
        """Show the cells.

        Args:
            codes: The exit codes of those that were begun, None of those that run or are queued.
        """
        states = {folder: self._state(folder, codes) for folder in self._folders}
        if self._live.is_started:
            self._live.update(self._table(states, codes), refresh=True)
            return
        for folder, state in states.items():
            news = state, codes.get(folder.name)
            if news != self._told.get(folder.name) and folder.name in codes:
                say(f"{folder.name}: {state}  {self._says(folder, codes)}".strip())
            self._told[folder.name] = news

    def _state(self, folder: Path, codes: Mapping[str, int | None]) -> str:
        name, code = folder.name, codes.get(folder.name)
        if name in self._done or code in WELL:
            return "done"
        if name not in codes:
            return "waiting"
        if code is not None:
            return "stopped"
        return "queued" if is_queued(folder) else "running"

    def _says(self, folder: Path, codes: Mapping[str, int | None]) -> str:
        code = codes.get(folder.name)
        match self._state(folder, codes):
            case "running":
                return last_line(folder)
            case "stopped" if code is not None:
                return why_stopped(folder, code)
            case "done" if code is not None:
                return accuracies(folder)
        return ""

    def _table(self, states: Mapping[Path, str], codes: Mapping[str, int | None]) -> Table:
        counts = {
            state: sum(cell_state == state for cell_state in states.values()) for state in ORDER
        }
        title = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("cell", "state", ""):
            table.add_column(heading, no_wrap=True, overflow="ellipsis")
        for folder in sorted(states, key=lambda folder: ORDER.index(states[folder])):
            says = self._says(folder, codes)
            table.add_row(*map(Text, (folder.name, states[folder], says)))
        return table


def accuracies(folder: Path) -> str:
    """The accuracies of the first and the last test of a run, as its metrics have them."""
    tests: list[dict[str, Any]] = [
        row for row in read_metrics(folder) if row["stage"] == "test" and "accuracy" in row
    ]
    shares = [f"{row['accuracy']:.1%}" for row in tests]
    return f"accuracy {' → '.join(dict.fromkeys((shares[0], shares[-1])))}" if shares else ""
