"""The best response of a prover that knows the verifier's policy but not its private coins.

The verifier says something, which the prover hears; the prover answers; the verifier decides.  With
P(d) the probability of a state d of what the prover cannot see, and P(q | d) that of what it hears,

    success  =  Σ over q  max over a  Σ over d  P(d) P(q | d) P(success | d, q, a)

The maximum is outside the sum over d: the prover answers the same in all states that it cannot tell
apart (an information set of the game).  That is what makes it a best response, and what a search
that tries its answers on the verifier itself, private view and all, is not.

Letters of shapes: R replies, S states.
"""

from collections.abc import Callable, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-12  # of probabilities that are added up
# Valued together: as many as a model answers well at a time, and few, since the others may turn out
# not to be needed.
AT_A_TIME, SETS_AT_A_TIME = 32, 8


class InformationSet(NamedTuple):
    """The states in which the prover has heard the same.

    weights: of each state, its probability together with that of what was heard in it.
    num_replies: the number of answers that the prover chooses from.
    """

    weights: tuple[float, ...]
    num_replies: int


class Case(NamedTuple):
    """An answer in a state, to be valued.

    heard: the index of the information set.
    state: the index of the state in the set.
    reply: the index of the answer.
    level: how closely it is to be valued, counted from 0.
    """

    heard: int
    state: int
    reply: int
    level: int


class BestReply(NamedTuple):
    """The best answer in an information set.

    reply: its index.
    low, high: bounds on the probability that the game comes here and the best answer succeeds.
    """

    reply: int
    low: float
    high: float


# Cases -> lower and upper bounds on the probability of success in each of them.
Success = Callable[[Sequence[Case]], Sequence[tuple[float, float]]]


class _Search:
    """The answers of one information set, as far as they are valued.  Mutable: `value` adds."""

    def __init__(self, heard: int, information: InformationSet, levels: int) -> None:
        """Nothing is known yet."""
        shape = information.num_replies, len(information.weights)
        self.heard, self.levels = heard, levels
        self.weights_S = np.array(information.weights)
        self.low_RS, self.high_RS = np.zeros(shape), np.ones(shape)
        self.level_RS = np.zeros(shape, dtype=int)

    @property
    def bounds_R(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds on the success of each answer."""
        return self.low_RS @ self.weights_S, self.high_RS @ self.weights_S

    @property
    def gap(self) -> float:
        """The difference between the bounds on the success of the best answer."""
        low_R, high_R = self.bounds_R
        return float(high_R.max() - low_R.max())

    def cases(self) -> list[Case]:
        """The cases to be valued next; none if the best answer is known."""
        low_R, high_R = self.bounds_R
        gap_RS = self.weights_S * (self.high_RS - self.low_RS) * (self.level_RS < self.levels)
        may_win = (high_R > low_R.max() + ROUNDING) & (gap_RS.max(1) > ROUNDING)
        replies = np.flatnonzero(may_win)
        # Those that may still succeed most often, which lowers the upper bound, and those that have
        # done so where they were valued, which raises the lower one.
        valued_R = low_R + self.weights_S.sum() - high_R
        by_high = replies[np.argsort(-high_R[replies], kind="stable")][:AT_A_TIME]
        by_low = replies[np.argsort(-(low_R / (valued_R + ROUNDING))[replies], kind="stable")]
        chosen = np.array(list(dict.fromkeys((*by_high, *by_low[: AT_A_TIME // 8]))), dtype=int)
        states = gap_RS[chosen].argmax(1)
        levels = self.level_RS[chosen, states]
        columns = (column.tolist() for column in (chosen, states, levels))
        return [
            Case(self.heard, state, reply, level)
            for reply, state, level in zip(*columns, strict=True)
        ]

    def value(self, case: Case, low: float, high: float) -> None:
        """Take note of the bounds of a case."""
        index = case.reply, case.state
        self.low_RS[index] = max(low, self.low_RS[index])
        self.high_RS[index] = min(high, self.high_RS[index])
        self.level_RS[index] += 1

    def best(self) -> BestReply:
        """The best answer as far as is known; of several that are as good the first."""
        low_R, high_R = self.bounds_R
        reply = int(np.argmax(low_R >= low_R.max() - ROUNDING))
        return BestReply(reply, float(low_R.max()), float(max(low_R.max(), high_R.max())))


def systematic_sample(weights: Sequence[float], number: int, offset: float) -> dict[int, float]:
    """A few of many by their weights: the index of each, and the weight for which it stands.

    Marks at equal distances, the first at `offset` in [0, 1) of one, are laid along all weights;
    who is marked stands for as many distances (systematic sampling, Madow 1949).  Over all offsets
    the mean of what each stands for is its weight; who weighs a distance or more is never missed.

    >>> systematic_sample((0.5, 0.25, 0.125, 0.125), 2, 0.5)
    {0: 0.5, 2: 0.5}
    """
    ends = np.cumsum(weights)
    distance = ends[-1] / number
    marks = (np.arange(number) + offset) * distance
    marked = np.searchsorted(ends, marks, side="right").clip(max=len(ends) - 1)
    indices, times = np.unique(marked, return_counts=True)
    return dict(zip(indices.tolist(), (times * distance).tolist(), strict=True))


def best_replies(
    sets: Sequence[InformationSet],
    success: Success,
    *,
    levels: int = 1,
    tolerance: float = 0.0,
    most: int | None = None,
) -> tuple[BestReply, ...]:
    """The best answer in each information set.

    Best first: an answer is valued in one more state, or more closely, only while it might be
    better than every other, and first where most is unknown.  Nothing is lost by it, and the more a
    verifier can be misled the sooner it is done.

    Args:
        sets: The information sets.
        success: The probability of success, or bounds on it.
        levels: The number of levels, each closer than the one before, at which cases are valued.
        tolerance: The sum over all sets of the difference between their bounds at which to stop.
        most: The number of cases after which to stop, with the bounds as they are; None: without.
    """
    searches = [_Search(index, information, levels) for index, information in enumerate(sets)]
    unfinished, num_cases = set(range(len(sets))), 0
    while unfinished and (most is None or num_cases < most):
        gaps = [search.gap for search in searches]
        if fsum(gaps) <= tolerance:
            break
        widest = sorted(unfinished, key=lambda index: -gaps[index])[:SETS_AT_A_TIME]
        cases = []
        for index in widest:
            more = searches[index].cases()
            cases += more
            if not more:
                unfinished.remove(index)
        num_cases += len(cases)
        for case, (low, high) in zip(cases, success(cases), strict=True):
            searches[case.heard].value(case, low, high)
    return tuple(search.best() for search in searches)
