"""The search of a study while its cells run, and its log."""

import fcntl
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from returns.result import Failure, Result

from nip_fn.config.schema import did_you_mean
from nip_fn.config.search import (
    Begun,
    Ended,
    Entry,
    Reported,
    Suggested,
    in_force,
    last_results,
    result_of,
    tried,
    values_of,
    with_suggested,
)
from nip_fn.config.study import DRAW, Cell, Search, Study, cells
from nip_fn.errors import Problem
from nip_fn_adapters.experiments.studies.tune import Stopper, asha, suggest
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_adapters.recording.tracker import read_metrics

SEARCH = "search.jsonl"  # in the folder of a study


def read_search(place: Path) -> tuple[Entry, ...]:
    """The lines of the log in a study's folder, without one that is being written."""
    path = place / SEARCH
    data = path.read_bytes() if path.exists() else b""
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return tuple(msgspec.json.decode(line, type=Entry) for line in lines)


class Searching:
    """A search that is told of the cells of a study, chooses draws and stops cells."""

    def __init__(
        self,
        study: Study,
        search: Search,
        place: Path,
        log: BinaryIO,
        entries: tuple[Entry, ...],
        stops: Stopper,
    ) -> None:
        """Go on after the entries of a log, of which `stops` was told."""
        self.search = search
        self._place, self._log, self._stops = place, log, stops
        self.study, self.entries = with_suggested(study, entries), entries
        self._cells = {cell.name: cell for cell in cells(self.study)}
        self.problem: Problem | None = None

    @property
    def stopped(self) -> Mapping[str, Reported]:
        """The last results of the cells that were stopped."""
        last = last_results(self.entries)
        return {name: one for name, one in last.items() if one.stop}

    def cell(self, name: str) -> Cell:
        """A cell as it is to be run; its draw is chosen now, by all results so far."""
        draw = self._cells[name].levels.get(DRAW)
        chosen = {one.draw for one in self.entries if isinstance(one, Suggested)}
        if self.search.algorithm == "optuna" and draw is not None and draw not in chosen:
            self._append(Suggested(draw, self._chosen(draw)))
            self.study = with_suggested(self.study, self.entries)
            self._cells = {cell.name: cell for cell in cells(self.study)}
        return self._cells[name]

    def _chosen(self, draw: str) -> dict[str, Any]:
        own = [cell for cell in self._cells.values() if cell.levels[DRAW] == draw]
        if any((self._place / cell.name / CHECKPOINT).exists() for cell in own):
            return values_of(self.study)[draw]  # begun before there was a search
        assert self.study.draws is not None
        number = list(values_of(self.study)).index(draw) + 1
        return suggest(self.search, self.study.draws, number, tried(self.study, self.entries))

    def look(self, codes: Mapping[str, int | None], well: Collection[int]) -> Collection[str]:
        """The cells to be stopped, after what metrics have told since the last look.

        Args:
            codes: The exit codes of the cells that were begun; None of those that run.
            well: The exit codes of cells that are done.
        """
        before = self.stopped.keys()
        known = before | {one.cell for one in self.entries if isinstance(one, Ended)}
        for name, code in codes.items():
            if name not in known and self._cells[name].tested is None:
                self._read(name, code in well)
        return self.stopped.keys() - before

    def _read(self, name: str, done: bool) -> None:
        """Tell of a cell's results, up to the one by which it is stopped."""
        last = last_results(self.entries).get(name)
        rows = list(read_metrics(self._place / name))
        for row in rows:
            value = result_of(self.search, row)
            if value is None or (last is not None and row["iteration"] <= last.iteration):
                continue
            stop = self._stops(name, row["iteration"], value) and not done
            last = Reported(name, row["iteration"], value, stop)
            self._append(last)
            if stop:
                return
        if done and not last_results(self.entries):  # nor has any cell before
            self.problem = _without_result(self.search, name, rows)
        elif done:
            self._append(Ended(name))

    def _append(self, entry: Entry) -> None:
        _write(self._log, entry)
        self.entries = (*self.entries, entry)


def _write(log: BinaryIO, entry: Entry) -> None:
    """Append a line that will have survived a crash before anything follows from it."""
    log.write(msgspec.json.encode(entry) + b"\n")
    log.flush()
    os.fsync(log.fileno())


def _without_result(search: Search, cell: str, rows: Iterable[dict[str, Any]]) -> Problem:
    names = sorted({f"{row['stage']}.{name}" for row in rows for name in row})
    remedy = did_you_mean(search.metric, names) or "docs/measures.md has all metrics"
    return Problem(
        f"no line in the metrics of {cell} has it", f"search.metric: {search.metric}", remedy
    )


def open_search(
    study: Study, search: Search, place: Path, iterations: int
) -> Result[Searching, Problem]:
    """The search of the study in a folder, after all that its log tells.

    Args:
        study: The study.
        search: Its search.
        place: Its folder.
        iterations: The most of any cell.
    """
    place.mkdir(parents=True, exist_ok=True)
    log = (place / SEARCH).open("ab")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        told = "another command carries on this search"
        return Failure(Problem(told, str(place / SEARCH), "wait until it has ended, or stop it"))
    data = (place / SEARCH).read_bytes()
    os.truncate(log.fileno(), data.rfind(b"\n") + 1)
    written = read_search(place)

    def opened(entries: tuple[Entry, ...]) -> Searching:
        begun = [one for one in written if isinstance(one, Begun)]
        if entries[:1] != tuple(begun[-1:]):
            _write(log, entries[0])
        stops = asha(search, iterations) if search.stop else lambda *result: False
        for one in entries:
            if isinstance(one, Reported):
                stops(one.cell, one.iteration, one.value)
        return Searching(study, search, place, log, entries, stops)

    return in_force(study, search, written).map(opened)
