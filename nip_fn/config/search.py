"""A search among the cells of a study, as a scan over what was recorded of it.

The log of a search has a line for each result that it was told and for each of its decisions, which
follow from the lines above them.  So a search that was killed goes on where it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.config.codec import flatten
from nip_fn.config.study import DRAW, Axis, Level, Search, Study, cells, nested
from nip_fn.errors import Problem


class Begun(Struct, frozen=True, tag="begun"):
    """The search, and the values among which it chooses; a line of another one follows a change."""

    search: Search
    spaces: dict[str, Any]


class Suggested(Struct, frozen=True, tag="suggested"):
    """The values of a draw, by address."""

    draw: str
    values: dict[str, Any]


class Reported(Struct, frozen=True, tag="reported"):
    """A result of a cell; if `stop`, the last one, since it is stopped."""

    cell: str
    iteration: int
    value: float
    stop: bool = False


class Ended(Struct, frozen=True, tag="ended"):
    """A cell that has run to its end."""

    cell: str


Entry = Begun | Suggested | Reported | Ended


class Tried(NamedTuple):
    """A draw all of whose cells have ended, or were stopped.

    draw: its name.
    values: by address.
    result: the mean of the last results of its cells.
    """

    draw: str
    values: dict[str, Any]
    result: float


def in_force(
    study: Study, search: Search, entries: Sequence[Entry]
) -> Result[tuple[Entry, ...], Problem]:
    """The lines of a log that hold for a study, behind the one with its search.

    The results are in the recordings: after a change of the search they are read again, and what
    was decided by them is decided again.  Values that were suggested stay those of their draws.
    """
    begun = Begun(search, study.draws.spaces if study.draws else {})
    chosen = tuple(one for one in entries if isinstance(one, Suggested))
    before = [(at, one) for at, one in enumerate(entries) if isinstance(one, Begun)]
    last, known = before[-1] if before else (0, begun)
    if known == begun:
        results = (one for one in entries[last + 1 :] if not isinstance(one, Suggested))
        return Success((begun, *chosen, *results))
    if chosen and known.spaces != begun.spaces:
        told = "draws were chosen among other values before"
        remedy = "write [random] as it was, or give the study another --name"
        return Failure(Problem(told, "random", remedy))
    return Success((begun, *chosen))


def with_suggested(study: Study, entries: Iterable[Entry]) -> Study:
    """The study with the values that were suggested in place of those that were drawn."""
    found = {one.draw: nested(one.values) for one in entries if isinstance(one, Suggested)}

    def own(axis: Axis) -> Axis:
        if axis.name != DRAW:
            return axis
        return Axis(DRAW, tuple(Level(v.label, found.get(v.label, v.table)) for v in axis.levels))

    return replace(study, axes=tuple(map(own, study.axes)))


def last_results(entries: Iterable[Entry]) -> dict[str, Reported]:
    """The last result of each cell that has one."""
    return {one.cell: one for one in entries if isinstance(one, Reported)}


def tried(study: Study, entries: Sequence[Entry]) -> tuple[Tried, ...]:
    """The draws that have a result, in the order of their numbers."""
    last = last_results(entries)
    ended = {one.cell for one in entries if isinstance(one, Ended)}
    ended |= {one.cell for one in last.values() if one.stop}
    own: dict[str, list[str]] = {}
    for cell in cells(study):
        if cell.tested is None and DRAW in cell.levels:
            own.setdefault(cell.levels[DRAW], []).append(cell.name)
    values = values_of(with_suggested(study, entries))
    return tuple(
        Tried(draw, values[draw], sum(known) / len(known))
        for draw, names in own.items()
        if ended.issuperset(names)
        and (known := [last[name].value for name in names if name in last])
    )


def values_of(study: Study) -> dict[str, dict[str, Any]]:
    """The values of each draw by address."""
    return {
        level.label: flatten(level.table)
        for axis in study.axes
        if axis.name == DRAW
        for level in axis.levels
    }


def result_of(search: Search, row: Mapping[str, Any]) -> float | None:
    """The result in a line of a run's metrics; None if it has none."""
    return row.get(search.name) if row["stage"] == search.stage else None
