"""The table of a study: accuracies over seeds and datapoints, and paired differences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nip_fn.config.study import Cell, Study, baseline_of, cells, replicate_of, row_of
from nip_fn.metrics.comparison import Comparison, compare, outcomes, shared_ids
from nip_fn.metrics.evaluation import Verdicts
from nip_fn.metrics.inference import Estimate, crossed_share, holm, seeds_needed

BEFORE, AFTER = "before", "after"


class CellResult(NamedTuple):
    """The tests and further numbers of a finished cell, or of one of its further tests.

    tests: `BEFORE` and `AFTER` its training, or `AFTER` alone where it was tested once.
    means: numbers of which a row shows the mean.
    """

    tests: Mapping[str, Verdicts]
    means: Mapping[str, float | None]


class StudyRow(NamedTuple):
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
    comparison: of the row with it, paired by seed.
    p_holm: `comparison.p`, corrected for the number of contrasts of its kind that have a p (Holm).
    seeds: cells with which `Study.compare.difference` would be found in four of five studies; None
      if more cells alone would not do, or if a single one tells nothing of that.
    """

    label: str
    over: str
    comparison: Comparison
    p_holm: float | None
    seeds: int | None


class StudyTable(NamedTuple):
    """The rows of a study, the rises in training, and the differences from the baseline."""

    rows: tuple[StudyRow, ...]
    rises: tuple[Contrast, ...]
    over_baseline: tuple[Contrast, ...]


_Pair = tuple[str, str, Sequence[Verdicts], Sequence[Verdicts]]


def tabulate(study: Study, results: Mapping[str, CellResult]) -> StudyTable:
    """The table of a study.

    Args:
        study: The study.
        results: The results of the cells that are done, by name; of one that was not tested only
            its means are shown.

    Raises:
        ValueError: The tests of a row, or those of a row and of the baseline, share no datapoint.
    """
    grouped: dict[str, list[Cell]] = {}
    for cell in cells(study):
        if cell.tested is None and cell.name in results:
            grouped.setdefault(row_of(study, cell), []).append(cell)
    return StudyTable(
        tuple(_row(study, label, members, results) for label, members in grouped.items()),
        _contrasts(list(_rises(grouped, results)), study.compare.difference),
        _contrasts(list(_over_baseline(study, grouped, results)), study.compare.difference),
    )


def _row(
    study: Study, label: str, members: Sequence[Cell], results: Mapping[str, CellResult]
) -> StudyRow:
    tests_by_name: dict[str, list[Verdicts]] = {}
    for cell in members:
        for name, test in _tests(study, cell, results):
            tests_by_name.setdefault(name, []).append(test)
    names = dict.fromkeys(name for cell in members for name in results[cell.name].means)
    return StudyRow(
        label,
        len(members),
        {
            name: crossed_share(outcomes(tests, shared_ids(tests)))
            for name, tests in tests_by_name.items()
        },
        {name: _mean([results[cell.name].means.get(name) for cell in members]) for name in names},
    )


def _tests(
    study: Study, cell: Cell, results: Mapping[str, CellResult]
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


def _rises(grouped: Mapping[str, list[Cell]], results: Mapping[str, CellResult]) -> Iterator[_Pair]:
    for label, members in grouped.items():
        tests = [results[cell.name].tests for cell in members]
        if all(BEFORE in test for test in tests):
            yield label, BEFORE, [test[AFTER] for test in tests], [test[BEFORE] for test in tests]


def _over_baseline(
    study: Study, grouped: Mapping[str, list[Cell]], results: Mapping[str, CellResult]
) -> Iterator[_Pair]:
    """Each row with its baseline, as far as both have the same seeds."""
    for label, members in grouped.items():
        baseline = baseline_of(study, label)
        tests, over_tests = (
            {
                replicate_of(study, cell): results[cell.name].tests[AFTER]
                for cell in cells
                if AFTER in results[cell.name].tests
            }
            for cells in (members, grouped.get(baseline or "", []))
        )
        shared = [replicate for replicate in tests if replicate in over_tests]
        if shared:
            yield (
                label,
                str(baseline),
                [tests[replicate] for replicate in shared],
                [over_tests[replicate] for replicate in shared],
            )


def _contrasts(pairs: Sequence[_Pair], smallest: float) -> tuple[Contrast, ...]:
    comparisons = [compare(over_tests, tests, "seed") for *_, tests, over_tests in pairs]
    corrected = iter(holm([c.p for c in comparisons if c.p is not None]))
    return tuple(
        Contrast(
            label=label,
            over=over,
            comparison=comparison,
            p_holm=None if comparison.p is None else next(corrected),
            seeds=_seeds_needed(tests, over_tests, smallest),
        )
        for (label, over, tests, over_tests), comparison in zip(pairs, comparisons, strict=True)
    )


def _seeds_needed(
    tests: Sequence[Verdicts], over_tests: Sequence[Verdicts], smallest: float
) -> int | None:
    ids = shared_ids([*tests, *over_tests])
    return seeds_needed(outcomes(tests, ids) - outcomes(over_tests, ids), smallest)
