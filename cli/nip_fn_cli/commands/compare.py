"""`nip-fn compare`: two sides, each of one run or more, on the problems that both have met."""

import json
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn import __version__
from nip_fn.config.codec import changes
from nip_fn.errors import Problem
from nip_fn.export.comparison import view_comparison
from nip_fn.export.page import render_comparison
from nip_fn.metrics.comparison import LEAST_TRAININGS, Change, Comparison, Pairing, compare
from nip_fn.metrics.evaluation import Verdicts, verdicts
from nip_fn.params.run import HyperParameters
from nip_fn.run.replay import StageForest
from nip_fn_adapters.experiments.casting import Version, version_of
from nip_fn_adapters.recording.reports import write_pages
from nip_fn_adapters.recording.runs import known_runs
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.exits import Exit, die
from nip_fn_cli.shown.printing import console, share

SHOWN = 5  # problems of each kind that the text names; --json names all


class Side(NamedTuple):
    """One of the two that are compared.

    given: as the user names it.
    runs: the names of its runs.
    tests: a test of each run.
    """

    given: str
    runs: tuple[str, ...]
    tests: tuple[StageForest, ...]

    @property
    def params(self) -> HyperParameters:
        """The parameters of the first of its runs."""
        return self.tests[0].params

    @property
    def verdicts(self) -> list[Verdicts]:
        """The verdicts of each test."""
        return [verdicts(test.batch.datapoints, test.batch.trees) for test in self.tests]


def compare_command(
    first: str,
    second: str,
    pair: Pairing | None,
    as_json: bool,
    page: Path | None,
    runs: Path,
) -> None:
    """Print how the second side differs from the first, or write a page about it."""
    sides = _side(first, runs), _side(second, runs)
    seeds = [[test.params.seed for test in side.tests] for side in sides]
    # Trainings from the same seeds, in the same order, are pairs unless it is said otherwise.
    how: Pairing = pair or ("seed" if seeds[0] == seeds[1] else "datapoint")
    try:
        found = compare(sides[0].verdicts, sides[1].verdicts, how)
    except ValueError as error:
        remedy = "compare runs that were tested on the same data, as many on each side"
        die(Exit.USAGE, Problem(str(error), f"{first} and {second}", remedy))
    if page is not None:
        write_pages(page.parent, {page.name: _page(sides, found, how)})
        print(page)
    elif as_json:
        json.dump(_record(sides, found, how), sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(console(), sides, found, how)


def _side(given: str, runs: Path) -> Side:
    """The runs that a comma-separated list of names and patterns stands for."""
    names = [name for part in given.split(",") for name in _matching(part, runs)]
    versions = [version_of(name, runs) for name in names]
    return Side(given, tuple(one.given for one in versions), tuple(map(_test, versions)))


def _matching(pattern: str, runs: Path) -> list[str]:
    """The runs whose names match a pattern, or the name itself if it is none."""
    name, at, iteration = pattern.partition("@")
    if not any(wildcard in name for wildcard in "*?["):
        return [pattern]
    known = sorted(path.parent.name for path in runs.glob(f"*/{CHECKPOINT}"))
    found = [
        f"{known_name}{at}{iteration}" for known_name in known if fnmatchcase(known_name, name)
    ]
    if not found:
        die(Exit.RUN, Problem("no run has such a name", pattern, known_runs(runs)))
    return found


def _test(version: Version) -> StageForest:
    """The last test of a run, or that of the iteration that was asked for."""
    tests = version.run.stages("test", version.iteration)
    if not tests:
        tested = ", ".join(str(test.iteration) for test in version.run.stages("test"))
        problem = "the run has no finished test" + (" of that iteration" if tested else "")
        remedy = f"its tests are of iterations {tested}" if tested else "let it end its first test"
        die(Exit.RUN, Problem(problem, version.given, remedy))
    return tests[-1]


# ------------------------------------------------------------------------------------------- shown


def _record(sides: tuple[Side, Side], found: Comparison, pair: Pairing) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "first": {"runs": sides[0].runs, "accuracy": found.first._asdict()},
        "second": {"runs": sides[1].runs, "accuracy": found.second._asdict()},
        "difference": {
            **found.difference._asdict(),
            "interval_over": "problems" if found.is_of_two_models else "problems and trainings",
            "p": found.p,
            "p_flip": None if found.is_of_two_models else found.difference.p_flip,
            "p_these_two_models": found.difference.p if found.is_of_two_models else None,
        },
        "paired_by": pair,
        "datapoints": found.datapoints,
        "datapoints_left_out": found.left_out,
        "detectable_difference": None if found.detectable == float("inf") else found.detectable,
        "parameters": [
            {"name": name, "first": one, "second": other} for name, one, other in _changed(sides)
        ],
        "datapoints_that_differ": [change._asdict() for change in found.changes],
    }


def _changed(sides: tuple[Side, Side]) -> list[tuple[str, Any, Any]]:
    """(address, first value, second value) of the parameters that differ; but seeds of several."""
    one, other = (side.params for side in sides)
    several = any(len(side.tests) > 1 for side in sides)
    return [
        (name, *values)
        for name, values in changes(one, other).items()
        if not (several and name == "seed")
    ]


def _print(out: Console, sides: tuple[Side, Side], found: Comparison, pair: Pairing) -> None:
    for name, side, accuracy in zip(
        ("first", "second"), sides, (found.first, found.second), strict=True
    ):
        out.print(f"{name:<11} {share(*accuracy)}  {', '.join(side.runs)}", soft_wrap=True)
    value, low, high = (100 * share for share in found.difference[:3])
    out.print(
        f"difference  {value:+.1f} [{low:+.1f}, {high:+.1f}] points, {_p(found)}",
        soft_wrap=True,
    )
    for line in _basis(found, pair):
        out.print(f"            {line}", soft_wrap=True)
    for title, moved in (("more often right", found.gained), ("less often right", found.lost)):
        out.print(f"\n{_count(moved, 'problem')} {title}{':' if moved else ''}")
        for change in moved[:SHOWN]:
            out.print(f"    {_change(change)}", soft_wrap=True)
        if len(moved) > SHOWN:
            out.print(f"    … (--json names all {len(moved):,})")
    changed = _changed(sides)
    out.print(f"\nwhat differs: {_count(changed, 'parameter')}")
    for address, one, other in changed:
        out.print(f"    {address}: {one} → {other}", soft_wrap=True)


def _page(sides: tuple[Side, Side], found: Comparison, pair: Pairing) -> str:
    """The comparison as an HTML page."""
    points = (point for side in sides for test in side.tests for point in test.batch.datapoints)
    view = view_comparison(
        (sides[0].given, sides[1].given),
        found,
        points,
        notes=[f"{line[0].upper()}{line[1:]}." for line in (_p(found), *_basis(found, pair))],
        parameters=_changed(sides),
        data=_record(sides, found, pair),
    )
    return render_comparison(view, version=__version__)


def _basis(found: Comparison, pair: Pairing) -> Iterator[str]:
    """Lines on what the comparison rests on."""
    first, second = found.seeds
    paired = "paired by seed" if pair == "seed" else "seeds not paired"
    yield (
        f"over {found.datapoints:,} problems, of these two models alone: one training a side tells "
        "nothing of other seeds"
        if found.is_of_two_models
        else f"over {found.datapoints:,} problems and {first} and {second} runs, {paired}"
    )
    if found.left_out:
        yield f"{found.left_out:,} problems that only some tests have are left out"
    if found.detectable < float("inf"):
        finest = f"{100 * found.detectable:.1f} points or more"
        between = " between two models" if found.is_of_two_models else ""
        yield f"a comparison like this finds {finest}{between} in four of five cases"


def _p(found: Comparison) -> str:
    """The p-value, and of what it is one, if not of trainings."""
    value = found.difference.p
    if found.p is None and not found.is_of_two_models:
        return f"p = - (from {LEAST_TRAININGS} trainings a side on)"
    name = "p (these two models)" if found.is_of_two_models else "p"
    return f"{name} = {value:.2g}" if value >= 0.001 else f"{name} < 0.001"


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def _change(change: Change) -> str:
    return f"{change.id}  {change.first:.0%} → {change.second:.0%}"
