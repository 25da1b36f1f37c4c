"""The table of a study, printed or as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nip_fn.config.study import Study
from nip_fn.metrics.evaluation import verdicts
from nip_fn.metrics.inference import Estimate
from nip_fn.metrics.study import AFTER, BEFORE, Contrast, Outcome, Row, Table
from nip_fn_adapters.costs.prices import Prices
from nip_fn_adapters.costs.spending import dollars
from nip_fn_adapters.recording.runs import Run
from nip_fn_cli.shown.printing import print_rows, share


def outcome(run: Run, metrics: Iterable[str], prices: Prices) -> Outcome:
    """The tests of a run that is done, and the means that a study shows of it.

    Of a run without a test they are those of its training.
    """
    stages = run.stages("test")
    tests = [verdicts(one.batch.datapoints, one.batch.trees) for one in stages]
    named = {BEFORE: tests[0]} if len(tests) > 1 else {}
    rows = {stage: [dict(row.metrics) for row in run.state.rows if row.stage == stage]
            for stage in ("test", "sample", "train")}  # fmt: skip
    last = next((rows[stage][-1] for stage in ("test", "sample") if rows[stage]), {})
    trained = {} if tests else _trained(rows["sample"], rows["train"])
    # Of a run that trains, those that it trains on.
    counted = rows["sample"] or rows["test"]
    return Outcome(
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


def print_study(table: Table, study: Study) -> None:
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
        names = sorted({one.over for one in table.over_baseline})
        print(f"\nover {' and '.join(names)}")
        _print_contrasts(table.over_baseline, study.compare.difference)


def _print_rows(rows: Sequence[Row]) -> None:
    accuracies = dict.fromkeys(name for row in rows for name in row.accuracies)
    means = dict.fromkeys(name for row in rows for name in row.means)
    # Nothing was trained between two tests.
    first = {} if BEFORE in accuracies else {AFTER: "accuracy"}
    titles = ("", "runs", *(f"{first.get(name, name)} [95 %]" for name in accuracies), *means)
    told = [
        (
            row.label,
            str(row.cells),
            *(
                share(*row.accuracies[name]) if name in row.accuracies else "-"
                for name in accuracies
            ),
            *(_mean(name, row.means.get(name)) for name in means),
        )
        for row in rows
    ]
    print_rows(titles, told)


def _share(found: Estimate | None) -> str:
    return "-" if found is None else share(*found)


def _mean(name: str, value: float | None) -> str:
    if value is None:
        return "unknown" if name == "dollars" else "-"
    if name in ("replies", "seconds", "trainings", "training rows"):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _print_contrasts(found: Sequence[Contrast], smallest: float) -> None:
    points = f"{100 * smallest:g} points"
    titles = ("", "runs", "points [95 %]", "p", "p (Holm)", f"runs to see {points}")
    rows = []
    for one in found:
        # An interval of Student's may reach beyond what a difference of shares can be.
        value, low, high = (100 * max(-1.0, min(end, 1.0)) for end in one.difference[:3])
        interval = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
        p = ("-" if number is None else f"{number:.2g}" for number in (one.p, one.p_holm))
        rows.append((one.label, str(one.cells), interval, *p, _needed(one)))
    print_rows(titles, rows)


def _needed(one: Contrast) -> str:
    if one.seeds is not None:
        return str(one.seeds)
    return "more problems" if one.cells > 1 else "-"


def record(table: Table, study: Study) -> dict[str, Any]:
    """The table as JSON; an endless interval has null for its ends."""
    return {
        "rows": [
            {
                "row": row.label,
                "runs": row.cells,
                "accuracies": {
                    name: _finite(own._asdict()) for name, own in row.accuracies.items()
                },
                "means": dict(row.means),
            }
            for row in table.rows
        ],
        "rises": list(map(_contrast, table.rises)),
        "over_baseline": list(map(_contrast, table.over_baseline)),
        "power": {"difference": study.compare.difference, "power": 0.8},
    }


def _contrast(one: Contrast) -> dict[str, Any]:
    return {
        "row": one.label,
        "over": one.over,
        "runs": one.cells,
        **_finite(one.difference._asdict()),
        "p": one.p,
        "p_holm": one.p_holm,
        "runs_needed": one.seeds,
    }


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        name: value if value is None or abs(value) < float("inf") else None
        for name, value in values.items()
    }
