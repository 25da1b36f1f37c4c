"""The table of a study: accuracies over seeds and datapoints, and paired differences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nip_fn.config.study import Cell, Study, baseline_of, cells, replicate_of, row_of
from nip_fn.metrics.comparison import outcomes, p_over_trainings, shared_ids
from nip_fn.metrics.evaluation import Verdicts
from nip_fn.metrics.inference import (
    Difference,
    Estimate,
    crossed_share,
    holm,
    paired_difference,
    seeds_needed,
)

BEFORE, AFTER = "before", "after"


class Outcome(NamedTuple):
    """A cell that is done, or one of its further tests.

    tests: `BEFORE` and `AFTER` its training, or `AFTER` alone where it was tested once.
    means: numbers of which a row shows the mean.
    """

    tests: Mapping[str, Verdicts]
    means: Mapping[str, float | None]


class Row(NamedTuple):
    """Cells that differ in their seeds alone, or in what else is pooled.

    label: what they share.
    cells: the number of those that are done.
    accuracies: by test, with intervals over cells and datapoints.
    means: by name; None where a cell lacks it.
    """

    label: str
    cells: int
    accuracies: Mapping[str, Estimate]
    means: Mapping[str, float | None]


class Contrast(NamedTuple):
    """A paired difference of two tests of accuracy.

    label: of the row.
    over: what it is compared with: the row before training, or the baseline.
    cells: the number of pairs.
    difference: with its interval.
    p: over trainings; None of too few of them.
    p_holm: corrected for the number of contrasts of its kind that have a p (Holm).
    seeds: cells with which `Study.compare.difference` would be found in four of five studies; None
      if more cells alone would not do, or if a single one tells nothing of that.
    """

    label: str
    over: str
    cells: int
    difference: Difference
    p: float | None
    p_holm: float | None
    seeds: int | None


class Table(NamedTuple):
    """The rows of a study, the rises in training, and the differences from the baseline."""

    rows: tuple[Row, ...]
    rises: tuple[Contrast, ...]
    over_baseline: tuple[Contrast, ...]


_Pair = tuple[str, str, Sequence[Verdicts], Sequence[Verdicts]]


def tabulate(study: Study, results: Mapping[str, Outcome]) -> Table:
    """The table of the cells that are done, by their names; one that was not tested has its means.

    Raises ValueError if the tests of a row, or those of a row and of the baseline, share no
    datapoint.
    """
    grouped: dict[str, list[Cell]] = {}
    for cell in cells(study):
        if cell.tested is None and cell.name in results:
            grouped.setdefault(row_of(study, cell), []).append(cell)
    return Table(
        tuple(_row(study, label, members, results) for label, members in grouped.items()),
        _contrasts(list(_rises(grouped, results)), study.compare.difference),
        _contrasts(list(_over_baseline(study, grouped, results)), study.compare.difference),
    )


def _row(study: Study, label: str, members: Sequence[Cell], results: Mapping[str, Outcome]) -> Row:
    tests_by_name: dict[str, list[Verdicts]] = {}
    for cell in members:
        for name, test in _tests(study, cell, results):
            tests_by_name.setdefault(name, []).append(test)
    names = dict.fromkeys(name for cell in members for name in results[cell.name].means)
    return Row(
        label,
        len(members),
        {
            name: crossed_share(outcomes(tests, shared_ids(tests)))
            for name, tests in tests_by_name.items()
        },
        {name: _mean([results[cell.name].means.get(name) for cell in members]) for name in names},
    )


def _tests(
    study: Study, cell: Cell, results: Mapping[str, Outcome]
) -> Iterator[tuple[str, Verdicts]]:
    """The tests of a cell by name: before, after, and those of `Study.tests` likewise."""
    yield from results[cell.name].tests.items()
    for name, _ in study.tests:
        for version, when in (("base", BEFORE), ("latest", AFTER)):
            played = results.get(f"{cell.name}-{name}-{version}")
            if played is not None:
                yield f"{name}: {when}", played.tests[AFTER]


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if len(measured) == len(values) else None


def _rises(grouped: Mapping[str, list[Cell]], results: Mapping[str, Outcome]) -> Iterator[_Pair]:
    for label, members in grouped.items():
        tests = [results[cell.name].tests for cell in members]
        if all(BEFORE in test for test in tests):
            yield label, BEFORE, [test[AFTER] for test in tests], [test[BEFORE] for test in tests]


def _over_baseline(
    study: Study, grouped: Mapping[str, list[Cell]], results: Mapping[str, Outcome]
) -> Iterator[_Pair]:
    """Each row with its baseline, as far as both have the same seeds."""
    for label, members in grouped.items():
        baseline = baseline_of(study, label)
        base, tested = (
            {
                replicate_of(study, cell): cell.name
                for cell in cells
                if AFTER in results[cell.name].tests
            }
            for cells in (grouped.get(baseline or "", []), members)
        )
        pairs = [(name, base[place]) for place, name in tested.items() if place in base]
        if pairs:
            ours = [results[own].tests[AFTER] for own, _ in pairs]
            yield label, str(baseline), ours, [results[other].tests[AFTER] for _, other in pairs]


def _contrasts(pairs: Sequence[_Pair], smallest: float) -> tuple[Contrast, ...]:
    sides = []
    for _, _, ours, theirs in pairs:
        ids = shared_ids([*ours, *theirs])
        sides.append((outcomes(ours, ids), outcomes(theirs, ids)))
    found = [paired_difference(ours_SP, theirs_SP) for ours_SP, theirs_SP in sides]
    p_values = [
        p_over_trainings(one, len(ours_SP)) for one, (ours_SP, _) in zip(found, sides, strict=True)
    ]
    corrected = iter(holm([p for p in p_values if p is not None]))
    return tuple(
        Contrast(
            label=label,
            over=over,
            cells=len(ours),
            difference=one,
            p=p,
            p_holm=None if p is None else next(corrected),
            seeds=seeds_needed(ours_SP - theirs_SP, smallest),
        )
        for (label, over, ours, _), one, p, (ours_SP, theirs_SP) in zip(
            pairs, found, p_values, sides, strict=True
        )
    )
