"""Two ways of training, or two models, compared on the same problems.

Every table of accuracies (of a card, a study, an evaluation, a comparison of runs) compares with
`compare`.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.metrics.evaluation import Verdicts
from nip_fn.metrics.inference import (
    Difference,
    Estimate,
    crossed_share,
    paired_difference,
    unpaired_difference,
)

Pairing = Literal["seed", "datapoint"]

# From so many trainings a side on, p is below 0.05 by chance in 1 to 5 % of comparisons (2,500
# simulated ones, seeds 1 to 7 points apart).  Of two pairs of trainings it is in up to 11 %, of two
# single trainings in 30 %: what these differ by is mostly their seeds.
LEAST_TRAININGS = 3
DETECTABLE = 1 + NormalDist().inv_cdf(0.8) / NormalDist().inv_cdf(0.975)


class Change(NamedTuple):
    """A datapoint with the share of its games that each side decided as its label says."""

    id: str
    first: float
    second: float


class Comparison(NamedTuple):
    """A second side compared with a first one.

    seeds: the number of tests of each side.
    datapoints: those in all of them.
    left_out: datapoints that some tests have and others have not.
    first, second: accuracy, with intervals over seeds and datapoints.
    difference: the accuracy of the second less that of the first, its interval within [-1, 1].
    changes: the datapoints about which they differ, those that differ most first; of two that
      differ as much, the one that is in front in the tests.
    detectable: the smallest difference that such a comparison finds in four of five cases:
      (z₀.₉₇₅ + z₀.₈) / z₀.₉₇₅ times half the width of the interval.
    """

    seeds: tuple[int, int]
    datapoints: int
    left_out: int
    first: Estimate
    second: Estimate
    difference: Difference
    changes: tuple[Change, ...]
    detectable: float

    @property
    def is_of_two_models(self) -> bool:
        """True if each side is one training, so that interval and p are over problems alone."""
        return self.seeds == (1, 1)

    @property
    def p(self) -> float | None:
        """The p-value over trainings and problems; None where trainings are too few for one."""
        return self.difference.p if min(self.seeds) >= LEAST_TRAININGS else None

    @property
    def gained(self) -> tuple[Change, ...]:
        """The datapoints that the second side decides rightly more often."""
        return tuple(change for change in self.changes if change.second > change.first)

    @property
    def lost(self) -> tuple[Change, ...]:
        """The datapoints that the first side decides rightly more often."""
        return tuple(change for change in self.changes if change.second < change.first)


def compare(first: Sequence[Verdicts], second: Sequence[Verdicts], pair: Pairing) -> Comparison:
    """The second tests compared with the first, on the datapoints that all of them share.

    Args:
        first: The tests of one side, one for each seed.
        second: Those of the other.
        pair: "seed" if the n-th tests of both sides belong together, as trainings from the same
            seed do; "datapoint" if only the datapoints are the same.

    Raises:
        ValueError: They share no datapoint, or seeds are paired and their numbers differ.
    """
    if pair == "seed" and len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} tests cannot be paired by seed")
    tests = (*first, *second)
    ids = shared_ids(tests)
    first_SP, second_SP = outcomes(first, ids), outcomes(second, ids)
    differ = paired_difference if pair == "seed" else unpaired_difference
    difference = differ(second_SP, first_SP)
    changes = [
        Change(id, float(before), float(after))
        for id, before, after in zip(ids, first_SP.mean(0), second_SP.mean(0), strict=True)
        if before != after
    ]
    return Comparison(
        seeds=(len(first), len(second)),
        datapoints=len(ids),
        left_out=len({id for test in tests for id in test.ids}) - len(ids),
        first=crossed_share(first_SP),
        second=crossed_share(second_SP),
        # An interval of Student's may reach beyond what a difference of shares can be.
        difference=difference._replace(
            low=max(-1.0, difference.low), high=min(1.0, difference.high)
        ),
        changes=tuple(sorted(changes, key=lambda change: -abs(change.second - change.first))),
        detectable=(difference.high - difference.value) * DETECTABLE,
    )


def shared_ids(tests: Sequence[Verdicts]) -> list[str]:
    """The datapoints that all tests have; raises ValueError if there is none."""
    shared = set(tests[0].ids).intersection(*(test.ids for test in tests))
    if not shared:
        raise ValueError("the tests share no datapoint")
    return [id for id in tests[0].ids if id in shared]


def outcomes(tests: Sequence[Verdicts], ids: Sequence[str]) -> NDArray[np.float64]:
    """`[S, P]` the accuracy of each test about each datapoint."""
    by_id = [dict(zip(test.ids, test.accuracies, strict=True)) for test in tests]
    return np.array([[accuracies[id] for id in ids] for accuracies in by_id])
