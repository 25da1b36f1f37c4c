"""`nip-fn compare`: two sides, each of one run or more, on the problems that both have met."""

import json
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

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
from nip_fn_cli.shown.numbers import interval, p_value, points
from nip_fn_cli.shown.options import JsonOption, RunsOption, TrustOption
from nip_fn_cli.shown.printing import console

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
    first: Annotated[
        str, typer.Argument(help="The runs of one side: NAME, NAME@ITERATION, A,B,C, or 'malt-*'.")
    ],
    second: Annotated[str, typer.Argument(help="The runs of the other side.")],
    pair: Annotated[
        Pairing | None,
        typer.Option(
            help="By seed, the n-th runs of both sides belong together; by datapoint, only the "
            "problems are the same.  The default is seed where both sides have the same seeds.",
            metavar="seed|datapoint",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Also write an HTML page that needs no other file.", metavar="FILE"
        ),
    ] = None,
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Compare the last tests of two runs, or of two sets of runs, problem by problem.

    Prints the difference with its interval, the problems that one side decides rightly more often,
    and the parameters that differ.  `compare RUN@0 RUN` tells what a training changed.
    """
    sides = _side(first, runs), _side(second, runs)
    seeds = [[test.params.seed for test in side.tests] for side in sides]
    # Trainings from the same seeds, in the same order, are pairs unless it is said otherwise.
    pairing: Pairing = pair or ("seed" if seeds[0] == seeds[1] else "datapoint")
    try:
        comparison = compare(sides[0].verdicts, sides[1].verdicts, pairing)
    except ValueError as error:
        remedy = "compare runs that were tested on the same data, as many on each side"
        die(Exit.USAGE, Problem(str(error), f"{first} and {second}", remedy))
    if html is not None:
        write_pages(html.parent, {html.name: _page(sides, comparison, pairing)})
        print(html)
    elif as_json:
        json.dump(_record(sides, comparison, pairing), sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(console(), sides, comparison, pairing)


def _side(names_and_patterns: str, runs: Path) -> Side:
    """The runs that a comma-separated list of names and patterns stands for."""
    names = [name for part in names_and_patterns.split(",") for name in _matching(part, runs)]
    versions = [version_of(name, runs) for name in names]
    return Side(
        names_and_patterns,
        tuple(version.given for version in versions),
        tuple(map(_test, versions)),
    )


def _matching(pattern: str, runs: Path) -> list[str]:
    """The runs whose names match a pattern, or the name itself if it is none."""
    name, separator, iteration = pattern.partition("@")
    if not any(wildcard in name for wildcard in "*?["):
        return [pattern]
    names = sorted(path.parent.name for path in runs.glob(f"*/{CHECKPOINT}"))
    matching = [
        f"{known_name}{separator}{iteration}"
        for known_name in names
        if fnmatchcase(known_name, name)
    ]
    if not matching:
        die(Exit.RUN, Problem("no run has such a name", pattern, known_runs(runs)))
    return matching


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


def _record(sides: tuple[Side, Side], comparison: Comparison, pair: Pairing) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "first": {"runs": sides[0].runs, "accuracy": comparison.first._asdict()},
        "second": {"runs": sides[1].runs, "accuracy": comparison.second._asdict()},
        "difference": {
            **comparison.difference._asdict(),
            "interval_over": "problems"
            if comparison.is_of_two_models
            else "problems and trainings",
            "p": comparison.p,
            "p_flip": None if comparison.is_of_two_models else comparison.difference.p_flip,
            "p_these_two_models": comparison.difference.p if comparison.is_of_two_models else None,
        },
        "paired_by": pair,
        "datapoints": comparison.datapoints,
        "datapoints_left_out": comparison.left_out,
        "detectable_difference": None
        if comparison.detectable == float("inf")
        else comparison.detectable,
        "parameters": [
            {"name": name, "first": first, "second": second}
            for name, first, second in _changed(sides)
        ],
        "datapoints_that_differ": [change._asdict() for change in comparison.changes],
    }


def _changed(sides: tuple[Side, Side]) -> list[tuple[str, Any, Any]]:
    """(address, first value, second value) of the parameters that differ; but seeds of several."""
    first, second = (side.params for side in sides)
    several = any(len(side.tests) > 1 for side in sides)
    return [
        (name, *values)
        for name, values in changes(first, second).items()
        if not (several and name == "seed")
    ]


def _print(out: Console, sides: tuple[Side, Side], comparison: Comparison, pair: Pairing) -> None:
    for name, side, accuracy in zip(
        ("first", "second"), sides, (comparison.first, comparison.second), strict=True
    ):
        out.print(f"{name:<11} {interval(accuracy)}  {', '.join(side.runs)}", soft_wrap=True)
    out.print(
        f"difference  {points(comparison.difference)} points, {_p(comparison)}", soft_wrap=True
    )
    for line in _basis(comparison, pair):
        out.print(f"            {line}", soft_wrap=True)
    for title, moved in (
        ("more often right", comparison.gained),
        ("less often right", comparison.lost),
    ):
        out.print(f"\n{_count(moved, 'problem')} {title}{':' if moved else ''}")
        for change in moved[:SHOWN]:
            out.print(f"    {_change(change)}", soft_wrap=True)
        if len(moved) > SHOWN:
            out.print(f"    … (--json names all {len(moved):,})")
    changed = _changed(sides)
    out.print(f"\nwhat differs: {_count(changed, 'parameter')}")
    for address, first, second in changed:
        out.print(f"    {address}: {first} → {second}", soft_wrap=True)


def _page(sides: tuple[Side, Side], comparison: Comparison, pair: Pairing) -> str:
    """The comparison as an HTML page."""
    datapoints = (point for side in sides for test in side.tests for point in test.batch.datapoints)
    view = view_comparison(
        (sides[0].given, sides[1].given),
        comparison,
        datapoints,
        notes=[
            f"{line[0].upper()}{line[1:]}." for line in (_p(comparison), *_basis(comparison, pair))
        ],
        parameters=_changed(sides),
        data=_record(sides, comparison, pair),
    )
    return render_comparison(view, version=__version__)


def _basis(comparison: Comparison, pair: Pairing) -> Iterator[str]:
    """Lines on what the comparison rests on."""
    first, second = comparison.seeds
    paired = "paired by seed" if pair == "seed" else "seeds not paired"
    yield (
        f"over {comparison.datapoints:,} problems, of these two models alone: one training a side "
        "tells nothing of other seeds"
        if comparison.is_of_two_models
        else f"over {comparison.datapoints:,} problems and {first} and {second} runs, {paired}"
    )
    if comparison.left_out:
        yield f"{comparison.left_out:,} problems that only some tests have are left out"
    if comparison.detectable < float("inf"):
        finest = f"{100 * comparison.detectable:.1f} points or more"
        between = " between two models" if comparison.is_of_two_models else ""
        yield f"a comparison like this finds {finest}{between} in four of five cases"


def _p(comparison: Comparison) -> str:
    """The p-value, and of what it is one, if not of trainings."""
    value = comparison.difference.p
    if comparison.p is None and not comparison.is_of_two_models:
        return f"p = - (from {LEAST_TRAININGS} trainings a side on)"
    name = "p (these two models)" if comparison.is_of_two_models else "p"
    shown = p_value(value)
    return f"{name} {shown}" if shown.startswith("<") else f"{name} = {shown}"


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def _change(change: Change) -> str:
    return f"{change.id}  {change.first:.0%} → {change.second:.0%}"
