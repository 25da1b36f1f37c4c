"""Pictures as SVG, written out: curves with intervals, trees, and the outcomes of problems.

Classes and not colours: the page's style sheet knows the palette of a light and a dark screen.
"""

from collections.abc import Callable, Sequence
from math import floor, log10
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from nip_fn.trees.tree import ROOT, Tree, leaves_of

NUM_BINS = 9  # of values, from the worst to the best; the middle one holds 0

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 66, 10, 24
MOST_LETTERS = 10  # beside a curve


class Point(NamedTuple):
    """A value of a curve, with its 95 % interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """A named curve."""

    name: str
    points: tuple[Point, ...]


class Chart(NamedTuple):
    """Curves over one axis.

    title: the quantity.
    series: the curves; none is empty.
    written: value -> text, for axes and tables.
    about: a sentence on how to read it.
    axis: the name of the horizontal axis.
    """

    title: str
    series: tuple[Series, ...]
    written: Callable[[float], str]
    about: str = ""
    axis: str = "iteration"

    @property
    def alt_text(self) -> str:
        """The picture in words."""
        clauses = []
        for curve in self.series:
            first, last = (self.written(curve.points[end].y) for end in (0, -1))
            values = f"from {first} to {last}" if len(curve.points) > 1 else first
            clauses.append(f"{curve.name} {values}")
        return f"{self.title}: {', '.join(clauses)}."

    @property
    def xs(self) -> tuple[float, ...]:
        """All x at which a curve has a value, ascending."""
        return tuple(sorted({point.x for curve in self.series for point in curve.points}))


# ------------------------------------------------------------------------------------------ curves


def draw_chart(chart: Chart) -> Markup:
    """The chart as an `svg` element, its curves named at their ends."""
    points = [point for curve in chart.series for point in curve.points]
    ticks = _ticks([y for p in points for y in (p.y, p.low, p.high) if y is not None])
    xs = chart.xs
    x_of = _scale(xs[0], xs[-1], LEFT, WIDTH - RIGHT)
    y_of = _scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    grid = [
        Markup('<path class=g d="M{} {}H{}"/><text class=y x={} y={}>{}</text>').format(
            LEFT, _n(y_of(tick)), WIDTH - RIGHT, LEFT - 6, _n(y_of(tick) + 4), chart.written(tick)
        )
        for tick in ticks
    ]
    marks = [
        Markup("<text class=x x={} y={}>{}</text>").format(_n(x_of(x)), HEIGHT - 6, f"{x:g}")
        for x in xs[:: -(-len(xs) // 11)]
    ]
    label_ys = _apart([y_of(curve.points[-1].y) for curve in chart.series])
    curves = [
        _curve(chart, index, curve, x_of, y_of, label_y)
        for index, (curve, label_y) in enumerate(zip(chart.series, label_ys, strict=True))
    ]
    return Markup('<svg viewBox="0 0 {} {}" role=img aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, chart.alt_text, Markup("").join((*grid, *marks, *curves))
    )


def _curve(
    chart: Chart,
    index: int,
    curve: Series,
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
    label_y: float,
) -> Markup:
    places = [(_n(x_of(p.x)), _n(y_of(p.y))) for p in curve.points]
    band = [(p.x, p.low, p.high) for p in curve.points if p.low is not None and p.high is not None]
    around = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
    if len(band) == 1:  # an interval of a single value has no area
        path = "M{} {}V{}".format(
            *(_n(v) for v in (x_of(band[0][0]), y_of(band[0][1]))), _n(y_of(band[0][2]))
        )
        shade = Markup('<path class=w d="{}"/>').format(path)
    else:
        path = "L".join(f"{_n(x_of(x))} {_n(y_of(y))}" for x, y in around)
        shade = Markup('<path class=b d="M{}z"/>').format(path) if around else Markup("")
    line = Markup('<path class=l d="M{}"/>').format("L".join(f"{x} {y}" for x, y in places))
    dots = Markup("").join(
        Markup("<circle cx={} cy={} r=2.6><title>{}</title></circle>").format(
            x, y, f"{curve.name}, {p.x:g}: {chart.written(p.y)}"
        )
        for (x, y), p in zip(places, curve.points, strict=True)
    )
    name = Markup("<text class=n x={} y={}>{}</text>").format(
        WIDTH - RIGHT + 7, _n(label_y + 4), _short(curve.name)
    )
    return Markup("<g class=s{}>{}{}{}{}</g>").format(index % 5, shade, line, dots, name)


def _short(name: str) -> str:
    """A name that fits beside a curve; the dots and the numbers have it whole."""
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


def _ticks(values: Sequence[float]) -> tuple[float, ...]:
    """Three to six round numbers around all values, evenly spaced."""
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) or 1.0
    power = 10 ** floor(log10(spread / 3))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if spread / (m * power) <= 4)
    first = floor(low / step + 1e-9)
    last = first
    while (last * step) < high - 1e-9 * spread or last == first:
        last += 1
    return tuple(round(n * step, 12) for n in range(first, last + 1))


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    if low == high:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _apart(ys: Sequence[float], gap: float = 12.0) -> list[float]:
    """The heights of labels, moved so that none overlaps another, and all inside the picture."""
    moved = [0.0] * len(ys)
    lowest = -gap
    for index in sorted(range(len(ys)), key=lambda i: ys[i]):
        lowest = moved[index] = max(ys[index], lowest + gap)
    over = max(0.0, lowest - (HEIGHT - BOTTOM))
    return [y - over for y in moved]


def _n(value: float) -> str:
    """A coordinate, as short as it can be."""
    return f"{value:.1f}".removesuffix(".0")


# ------------------------------------------------------------------------------------------- trees


class Colours(NamedTuple):
    """The view of one agent on a tree.

    alt_text: the picture in words.
    bin_N: `[N]` the bin of its value at each node, from 0 to `NUM_BINS` - 1.
    chosen: the nodes of its chosen replies, to which thick lines lead.
    rejected: the nodes of its rejected replies, to which dashed lines lead.
    """

    alt_text: str
    bin_N: Sequence[int]
    chosen: frozenset[int]
    rejected: frozenset[int]


def draw_trees(tree: Tree, id: str, agents: Sequence[Colours]) -> tuple[Markup, ...]:
    """A picture of a tree for each agent, from left to right, nodes in the colours of its values.

    Args:
        tree: The tree.
        id: A name for what the pictures share, different for each tree on a page.
        agents: What differs between them.
    """
    x_N, y_N, height = _places(tree)
    parent_N = tree.parent_N.tolist()
    line_N = [
        f"M{x_N[parent]} {_n(y_N[parent])}L{x_N[node]} {_n(y_N[node])}" if node else ""
        for node, parent in enumerate(parent_N)
    ]
    lines = Markup('<path id="{}" class=e d="{}"/>').format(id, "".join(line_N))
    again = Markup('<use href="#{}"/>').format(id)
    pictures = []
    for index, view in enumerate(agents):
        paths: dict[str, list[str]] = {}
        for css_class, nodes in (("c", view.chosen), ("r", view.rejected)):
            paths[css_class] = [line_N[node] for node in sorted(nodes)]
        for node, value in enumerate(view.bin_N):
            # What ended undecided has square corners.
            css_class = f"d{value}" if tree.status_N[node] in ("open", "decided") else f"q{value}"
            paths.setdefault(css_class, []).append(f"M{x_N[node]} {_n(y_N[node])}h0")
        drawn = (
            Markup('<path class={} d="{}"/>').format(css_class, "".join(segments))
            for css_class, segments in paths.items()
            if segments
        )
        pictures.append(
            Markup(
                '<svg class=tree viewBox="0 0 {w} {h}" width={w} height={h} role=img '
                'aria-label="{}">{}{}</svg>'
            ).format(
                view.alt_text,
                again if index else lines,
                Markup("").join(drawn),
                w=max(x_N) + 6,
                h=_n(height),
            )
        )
    return tuple(pictures)


def _places(tree: Tree) -> tuple[list[int], list[float], float]:
    """x and y of each node, and the height of the picture: leaves are spread evenly from above."""
    leaves = leaves_of(tree)
    gap = min(8.0, max(0.4, 360 / len(leaves)))
    gap = gap if gap < 3 else float(round(gap))
    y_N: list[float] = [0.0] * tree.num_nodes
    below: list[list[float]] = [[] for _ in range(tree.num_nodes)]
    for rank, leaf in enumerate(leaves):
        y_N[leaf] = 5 + rank * gap
    # The reverse of breadth-first order has children before their parent.
    for node in reversed(range(tree.num_nodes)):
        if below[node]:
            y_N[node] = (below[node][0] + below[node][-1]) / 2
            y_N[node] = y_N[node] if gap < 3 else float(round(y_N[node]))
        if node != ROOT:
            below[int(tree.parent_N[node])].insert(0, y_N[node])
    x_N = [5 + 46 * depth for depth in tree.depth_N.tolist()]
    return x_N, y_N, 10 + (len(leaves) - 1) * gap


def value_bins(value_N: NDArray[np.float64], bounds: tuple[float, float]) -> list[int]:
    """The bin of each value: 0 for the least that can be had, the middle one for 0."""
    most = max(map(abs, bounds)) or 1.0
    middle = NUM_BINS // 2
    share_N = np.clip(value_N / most, -1.0, 1.0)
    # Away from the middle: only what is 0 may look as if it were.
    return [
        middle + int(np.sign(s)) * int(np.ceil(abs(s) * middle - 1e-9)) for s in share_N.tolist()
    ]


# ---------------------------------------------------------------------------------------- outcomes


def draw_outcomes(css_classes: Sequence[str]) -> Markup:
    """A bar with a stripe for each problem, in the class of its outcome."""
    paths: dict[str, list[str]] = {}
    start = 0
    for end in range(1, len(css_classes) + 1):
        # One stripe for neighbours with one outcome.
        if end == len(css_classes) or css_classes[end] != css_classes[start]:
            paths.setdefault(css_classes[start], []).append(f"M{start} .5h{end - start}")
            start = end
    stripes = Markup("").join(
        Markup('<path class={} d="{}"/>').format(css_class, "".join(segments))
        for css_class, segments in sorted(paths.items())
    )
    return Markup(
        '<svg class=bar viewBox="0 0 {} 1" preserveAspectRatio=none aria-hidden=true>{}</svg>'
    ).format(len(css_classes), stripes)
