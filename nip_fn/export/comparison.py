"""A comparison of two sides as the record of a page."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nip_fn.export.curves import percent
from nip_fn.export.svg import Chart, Point, Series
from nip_fn.game.datapoint import Datapoint
from nip_fn.metrics.comparison import Comparison

MOST_PROBLEMS = 500  # of each kind


class ComparisonView(NamedTuple):
    """A comparison, ready to be shown.

    title: its title.
    tiles: (name, value, remark).
    chart: the accuracies of both sides, with their intervals.
    notes: sentences on what it rests on.
    listings: (title, number of all, those that are shown) of the problems that changed sides, a
      problem as (datapoint, first accuracy, second accuracy).
    parameters: (address, first value, second value) where the sides differ.
    data: the numbers, for programs.
    """

    title: str
    tiles: tuple[tuple[str, str, str], ...]
    chart: Chart
    notes: tuple[str, ...]
    listings: tuple[tuple[str, int, tuple[tuple[Datapoint, str, str], ...]], ...]
    parameters: tuple[tuple[str, str, str], ...]
    data: Mapping[str, Any]


def view_comparison(
    names: tuple[str, str],
    comparison: Comparison,
    datapoints: Iterable[Datapoint],
    *,
    notes: Sequence[str],
    parameters: Iterable[tuple[str, Any, Any]],
    data: Mapping[str, Any],
) -> ComparisonView:
    """The record of a comparison.

    Args:
        names: The names of both sides.
        comparison: The comparison.
        datapoints: The datapoints of the tests.
        notes: Sentences on what it rests on.
        parameters: (address, first value, second value) where the sides differ.
        data: The numbers, for programs.
    """
    points = {point.id: point for point in datapoints}
    sides = tuple(zip(names, (comparison.first, comparison.second), strict=True))
    value, low, high = (100 * share for share in comparison.difference[:3])
    accuracies = tuple(
        (name, percent(estimate.value), f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %")
        for name, estimate in sides
    )
    curves = tuple(
        Series(name, (Point(number, *estimate),))
        for number, (name, estimate) in enumerate(sides, 1)
    )
    kinds = (("More often right", comparison.gained), ("Less often right", comparison.lost))
    return ComparisonView(
        title=f"{names[1]} compared with {names[0]}",
        tiles=(
            *accuracies,
            ("Difference, in points", f"{value:+.1f}", f"{low:+.1f} to {high:+.1f}"),
        ),
        chart=Chart("Accuracy", curves, percent, "Bars are 95 % intervals.", "side"),
        notes=tuple(notes),
        listings=tuple(
            (
                title,
                len(changes),
                tuple(
                    (points[change.id], percent(change.first), percent(change.second))
                    for change in changes[:MOST_PROBLEMS]
                ),
            )
            for title, changes in kinds
        ),
        parameters=tuple(
            (address, str(first), str(second)) for address, first, second in parameters
        ),
        data=data,
    )
