"""The table of a study, printed or as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nip_fn.config.study import Study
from nip_fn.metrics.evaluation import verdicts
from nip_fn.metrics.study import AFTER, BEFORE, CellResult, Contrast, StudyRow, StudyTable
from nip_fn_adapters.costs.prices import Prices
from nip_fn_adapters.costs.spending import dollars
from nip_fn_adapters.recording.runs import Run
from nip_fn_cli.shown.numbers import dollars as in_dollars
from nip_fn_cli.shown.numbers import interval, p_value, points
from nip_fn_cli.shown.printing import print_rows


def outcome(run: Run, metrics: Iterable[str], prices: Prices) -> CellResult:
    """The tests of a run that is done, and the means that a study shows of it.

    Of a run without a test they are those of its training.
    """
    stages = run.stages("test")
    tests = [verdicts(test.batch.datapoints, test.batch.trees) for test in stages]
    named = {BEFORE: tests[0]} if len(tests) > 1 else {}
    rows = {stage: [dict(row.metrics) for row in run.state.rows if row.stage == stage]
            for stage in ("test", "sample", "train")}  # fmt: skip
    last = next((rows[stage][-1] for stage in ("test", "sample") if rows[stage]), {})
    trained = {} if tests else _trained(rows["sample"], rows["train"])
    # Of a run that trains, those that it trains on.
    counted = rows["sample"] or rows["test"]
    return CellResult(
        {**named, AFTER: tests[-1]} if tests else {},
        {
            **{name: last.get(name) for name in metrics},
            **trained,
            "replies": sum(row["replies"] for row in counted),
            "seconds": sum(seconds for _, _, seconds in run.state.seconds),
            "dollars": dollars(run.state, prices),
        },
    )


def _trained(
    sampled: Sequence[Mapping[str, float]], trained: Sequence[Mapping[str, float]]
) -> dict[str, float | None]:
    """The numbers of a run's training: of its last sampled games, and of all its trainings."""
    return {
        "sampled accuracy": sampled[-1].get("accuracy") if sampled else None,
        "trainings": sum(row["jobs"] - row["jobs_failed"] for row in trained),
        "training rows": sum(value for row in trained for name, value in row.items()
                    if name.endswith(".rows")),
    }  # fmt: skip


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
            *(interval(row.accuracies.get(name)) for name in accuracies),
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
