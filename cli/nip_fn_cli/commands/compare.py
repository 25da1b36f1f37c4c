"""`nip-fn compare`: two sides, each of one run or more, on the problems that both have met."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_fn import __version__
from nip_fn.export.comparison import view_comparison
from nip_fn.export.page import render_comparison
from nip_fn.metrics.comparison import LEAST_TRAININGS, Change, Comparison, Pairing
from nip_fn_adapters.experiments.comparing import RunComparison, compare
from nip_fn_adapters.recording.reports import write_pages
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.exits import or_exit
from nip_fn_cli.shown.numbers import p_value, points, share_with_interval
from nip_fn_cli.shown.options import JsonOption, RunsOption, TrustOption
from nip_fn_cli.shown.printing import console

SHOWN = 5  # problems of each kind that the text names; --json names all


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
    found = or_exit(compare(first, second, pair=pair, runs=runs))
    if html is not None:
        write_pages(html.parent, {html.name: _page(found)})
        print(html)
    elif as_json:
        json.dump(_record(found), sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(console(), found)


def _record(found: RunComparison) -> dict[str, Any]:
    """The comparison as JSON."""
    comparison = found.comparison
    is_of_two_models, difference = comparison.is_of_two_models, comparison.difference
    return {
        "first": {"runs": found.first.runs, "accuracy": comparison.first._asdict()},
        "second": {"runs": found.second.runs, "accuracy": comparison.second._asdict()},
        "difference": {
            **difference._asdict(),
            "interval_over": "problems" if is_of_two_models else "problems and trainings",
            "p": comparison.p,
            "p_flip": None if is_of_two_models else difference.p_flip,
            "p_these_two_models": difference.p if is_of_two_models else None,
        },
        "paired_by": found.pair,
        "datapoints": comparison.datapoints,
        "datapoints_left_out": comparison.left_out,
        "detectable_difference": None
        if comparison.detectable == float("inf")
        else comparison.detectable,
        "parameters": [
            {"name": name, "first": first, "second": second}
            for name, first, second in found.parameters
        ],
        "datapoints_that_differ": [change._asdict() for change in comparison.changes],
    }


def _print(out: Console, found: RunComparison) -> None:
    comparison = found.comparison
    for name, side, accuracy in (
        ("first", found.first, comparison.first),
        ("second", found.second, comparison.second),
    ):
        out.print(
            f"{name:<11} {share_with_interval(accuracy)}  {', '.join(side.runs)}", soft_wrap=True
        )
    out.print(
        f"difference  {points(comparison.difference)} points, {_p(comparison)}", soft_wrap=True
    )
    for line in _basis(found):
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
    out.print(f"\nwhat differs: {_count(found.parameters, 'parameter')}")
    for address, first, second in found.parameters:
        out.print(f"    {address}: {first} → {second}", soft_wrap=True)


def _page(found: RunComparison) -> str:
    """The comparison as an HTML page."""
    tests = (*found.first.tests, *found.second.tests)
    lines = (_p(found.comparison), *_basis(found))
    view = view_comparison(
        (found.first.name, found.second.name),
        found.comparison,
        (point for test in tests for point in test.batch.datapoints),
        notes=[f"{line[0].upper()}{line[1:]}." for line in lines],
        parameters=found.parameters,
        data=_record(found),
    )
    return render_comparison(view, version=__version__)


def _basis(found: RunComparison) -> Iterator[str]:
    """Lines on what the comparison rests on."""
    comparison = found.comparison
    first, second = comparison.seeds
    paired = "paired by seed" if found.pair == "seed" else "seeds not paired"
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
