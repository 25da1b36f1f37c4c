"""Statistics of a data set, and its faults: both from one pass over its solutions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nip_fn.code.programs import Tally
from nip_fn.code.solutions import LabelledSolution, PlacedSolution
from nip_fn.code.splitting import marks_of
from nip_fn.game.datapoint import SPLITS, Split

# The keys of `LeakKeys` in words: splits must not share them.
SHARED = ("problem", "question (and views)", "solution, but for names and layout,")

UNKNOWN_DIFFICULTY = "unknown"  # the difficulty of a problem that names none


class Lengths(NamedTuple):
    """Lengths of texts."""

    median: float
    most: float  # the 95th percentile
    longest: int


NO_TEXT = Lengths(0.0, 0.0, 0)


class SplitStatistics(NamedTuple):
    """Statistics of one split."""

    split: Split
    datapoints: int
    problems: int
    right: int
    buggy: int
    with_tests: int
    difficulties: tuple[tuple[str, int], ...]  # (difficulty, datapoints), by name
    question: Lengths
    solution: Lengths
    views: tuple[tuple[str, Lengths], ...] = ()  # (role or agent's name, lengths), by name


def statistics(
    solutions: Iterable[PlacedSolution], length: Callable[[str], int]
) -> tuple[SplitStatistics, ...]:
    """The statistics of every split that holds anything; lengths in whatever `length` counts."""
    rows: defaultdict[Split, list[_Row]] = defaultdict(list)
    views: defaultdict[Split, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for split, _, solution in solutions:
        sizes = length(solution.question), length(solution.solution)
        row = (
            solution.problem_id,
            solution.label,
            solution.tests is not None,
            solution.difficulty or UNKNOWN_DIFFICULTY,
            *sizes,
        )
        rows[split].append(row)
        for name, text in solution.views:
            views[split][name].append(length(text))
    return tuple(
        _of_split(split, rows[split])._replace(
            views=tuple((name, _lengths(sizes)) for name, sizes in sorted(views[split].items()))
        )
        for split in SPLITS
        if rows[split]
    )


_Row = tuple[str, int | None, bool, str, int, int]


def _of_split(split: Split, rows: list[_Row]) -> SplitStatistics:
    problems, labels, tested, difficulties, questions, solutions = zip(*rows, strict=True)
    return SplitStatistics(
        split=split,
        datapoints=len(rows),
        problems=len(set(problems)),
        right=labels.count(1),
        buggy=labels.count(0),
        with_tests=sum(tested),
        difficulties=tuple(sorted(Counter(difficulties).items())),
        question=_lengths(questions),
        solution=_lengths(solutions),
    )


def _lengths(sizes: Iterable[int]) -> Lengths:
    array = np.array(list(sizes))
    return Lengths(float(np.median(array)), float(np.percentile(array, 95)), int(array.max()))


def leaks(solutions: Iterable[PlacedSolution]) -> Iterator[str]:
    """A line for everything that two splits have in common, but should not."""
    seen: dict[tuple[str, str], tuple[Split, str]] = {}
    for split, name, solution in solutions:
        # The keys by which data are split, so that the check cannot forget what the split has
        # promised.
        for what, mark in zip(SHARED, marks_of(solution).keys, strict=True):
            earlier_split, earlier = seen.setdefault((what, mark), (split, name))
            if earlier_split != split:
                yield f"{name} ({split}): {earlier} ({earlier_split}) has the same {what}"


def label_problem(solution: LabelledSolution, tally: Tally) -> str | None:
    """The reason why the tests do not bear out the label; None where they do, or there is none."""
    if solution.label is None:
        return None
    if solution.label and not tally.all_passed:
        return f"labelled right, but {_failures(tally)}"
    if not solution.label and tally.all_passed:
        return f"labelled as having a bug, but all {tally.tests} tests pass"
    return None


def _failures(tally: Tally) -> str:
    counts: dict[str, Any] = {
        "with another output": tally.wrong,
        "crashed": tally.crashed,
        "out of time": tally.stopped,
    }
    failed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return f"{tally.tests - tally.passed} of {tally.tests} tests fail ({failed})"
