"""A study, printed or as JSON: its table, and the cells that have stopped."""

import sys
from collections.abc import Sequence
from typing import Any

from nip_fn.config.study import Study
from nip_fn.metrics.study import AFTER, BEFORE, Contrast, StudyRow, StudyTable
from nip_fn_adapters.experiments.sweeping import Sweep
from nip_fn_cli.shown.exits import Exit, command, die, say
from nip_fn_cli.shown.numbers import dollars as in_dollars
from nip_fn_cli.shown.numbers import p_value, points, share_with_interval
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.records import print_json


def print_sweep(found: Sweep, *, as_json: bool = False) -> None:
    """Print a study, and why cells were stopped; ends the command with the first one's exit code.

    A command whose cells are all done returns, unless one went on without a training that failed.
    """
    if as_json:
        print_json({"study": found.folder, **record(found.table, found.study)})
    else:
        print_study(found.table, found.study)
        print(f"\nTo look closer: {command('nip-fn', 'ls', '--runs', found.folder)}")
    for cell in found.stopped:
        say(f"{cell.cell} (exit code {cell.code}): {cell.why}")
    if found.stopped:
        cells = len(found.done) + len(found.remaining)
        say(
            f"nip-fn: {len(found.remaining):,} of {cells:,} cells are not done; resume with the "
            "same command"
        )
        sys.exit(found.stopped[0].code)
    if found.skipped:
        die(Exit.SKIPPED, "all cells are done, but some went on without a training that failed")


def print_study(table: StudyTable, study: Study) -> None:
    """Print the rows of a study, its rises, and the differences from its baseline."""
    if not table.rows:
        print("no cell is done")
        return
    if not any(row.accuracies for row in table.rows):
        print('nothing was tested (text_rl.test_scheme is "none"); of the training:')
    _print_rows(table.rows)
    if table.rises:
        print("\nrises in training")
        _print_contrasts(table.rises, study.compare.difference)
    if table.over_baseline:
        names = sorted({contrast.over for contrast in table.over_baseline})
        print(f"\nover {' and '.join(names)}")
        _print_contrasts(table.over_baseline, study.compare.difference)


def _print_rows(rows: Sequence[StudyRow]) -> None:
    accuracies = dict.fromkeys(name for row in rows for name in row.accuracies)
    means = dict.fromkeys(name for row in rows for name in row.means)
    # Nothing was trained between two tests.
    first = {} if BEFORE in accuracies else {AFTER: "accuracy"}
    titles = ("", "runs", *(f"{first.get(name, name)} [95 %]" for name in accuracies), *means)
    lines = [
        (
            row.label,
            str(row.cells),
            *(share_with_interval(row.accuracies.get(name)) for name in accuracies),
            *(_mean(name, row.means.get(name)) for name in means),
        )
        for row in rows
    ]
    print_rows(titles, lines)


def _mean(name: str, value: float | None) -> str:
    if name == "dollars":
        return in_dollars(value)
    if value is None:
        return "-"
    if name in ("replies", "seconds", "trainings", "training rows"):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _print_contrasts(contrasts: Sequence[Contrast], smallest: float) -> None:
    needed = f"runs to see {100 * smallest:g} points"
    titles = ("", "runs", "points [95 %]", "p", "p (Holm)", needed)
    rows = [
        (
            contrast.label,
            str(contrast.comparison.seeds[0]),
            points(contrast.comparison.difference),
            p_value(contrast.comparison.p),
            p_value(contrast.p_holm),
            _needed(contrast),
        )
        for contrast in contrasts
    ]
    print_rows(titles, rows)


def _needed(contrast: Contrast) -> str:
    if contrast.seeds is not None:
        return str(contrast.seeds)
    return "more problems" if contrast.comparison.seeds[0] > 1 else "-"


def record(table: StudyTable, study: Study) -> dict[str, Any]:
    """The table as JSON."""
    return {
        "rows": [
            {
                "row": row.label,
                "runs": row.cells,
                "accuracies": {
                    name: accuracy._asdict() for name, accuracy in row.accuracies.items()
                },
                "means": dict(row.means),
            }
            for row in table.rows
        ],
        "rises": list(map(_contrast, table.rises)),
        "over_baseline": list(map(_contrast, table.over_baseline)),
        "power": {"difference": study.compare.difference, "power": 0.8},
    }


def _contrast(contrast: Contrast) -> dict[str, Any]:
    return {
        "row": contrast.label,
        "over": contrast.over,
        "runs": contrast.comparison.seeds[0],
        **contrast.comparison.difference._asdict(),
        "p": contrast.comparison.p,
        "p_holm": contrast.p_holm,
        "runs_needed": contrast.seeds,
    }
