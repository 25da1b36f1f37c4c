"""Decisions of a verifier: their spread, the line between them, and how far two tests agree.

Functions of the ends of games, as in `oversight`: G games about each of P datapoints.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.game.decision import ACCEPT, NEITHER, NO_DECISION, REJECT
from nip_fn.metrics.oversight import Judged

VERDICTS = (REJECT, ACCEPT, NO_DECISION, NEITHER)


class CredenceLevel(NamedTuple):
    """Games that ended with one credence: those about right solutions, and about buggy ones."""

    credence: float
    right: int
    buggy: int


class Histogram(NamedTuple):
    """The number of games by credence, ascending, and of those that were not decided."""

    levels: tuple[CredenceLevel, ...]
    undecided: tuple[int, int]  # about right solutions, about buggy ones


def histogram(judged: Judged) -> Histogram:
    """The games of a test by the credence with which they ended, for each degree that occurs."""
    is_right_PG, is_wrong_PG = judged.label_PG == ACCEPT, judged.label_PG == REJECT
    is_decided_PG = judged.verdict_PG != NO_DECISION

    def count(chosen_PG: NDArray[np.bool_]) -> tuple[int, int]:
        return int((chosen_PG & is_right_PG).sum()), int((chosen_PG & is_wrong_PG).sum())

    degrees = np.unique(judged.credence_PG[is_decided_PG]).tolist()
    return Histogram(
        tuple(CredenceLevel(c, *count(is_decided_PG & (judged.credence_PG == c))) for c in degrees),
        count(~is_decided_PG),
    )


class Threshold(NamedTuple):
    """A verifier that accepts from a credence on, and rejects what is below it or undecided.

    accuracy: the share of all games that are right so.
    true_positives, false_positives: the shares accepted among games about right, and about buggy
      solutions; those rejected are the rest.  None without any such game.
    precision: the share about right solutions among those accepted; None if none is.
    """

    credence: float
    accuracy: float
    true_positives: float | None
    false_positives: float | None
    precision: float | None


def thresholds(judged: Judged) -> tuple[Threshold, ...]:
    """Each place where the line could be drawn: at every degree that occurs, and above them all."""
    levels = [level.credence for level in histogram(judged).levels]
    return tuple(_threshold(judged, line) for line in (*levels, float("inf")))


def _threshold(judged: Judged, line: float) -> Threshold:
    is_right_PG, is_wrong_PG = judged.label_PG == ACCEPT, judged.label_PG == REJECT
    accepts_PG = (judged.credence_PG >= line) & (judged.verdict_PG != NO_DECISION)
    return Threshold(
        credence=line,
        accuracy=float((accepts_PG == is_right_PG)[is_right_PG | is_wrong_PG].mean()),
        true_positives=_share(accepts_PG[is_right_PG]),
        false_positives=_share(accepts_PG[is_wrong_PG]),
        precision=_share(is_right_PG[accepts_PG]),
    )


class Agreement(NamedTuple):
    """The share of pairs of games about one datapoint that end alike: of all, and by label."""

    overall: float | None
    right: float | None
    buggy: float | None


def agreement(first: Judged, second: Judged) -> Agreement:
    """The chance that a game of one test and a game of the other end with the same verdict.

    The games are about the same datapoint, drawn anew for each; "not decided" is a verdict, too.
    Of a test with itself they are two different games, so that sampling alone makes it less than 1;
    None if there is only one about each.

    Raises:
        ValueError: The tests are about other datapoints.
    """
    if first.ids != second.ids:
        raise ValueError("the tests are about other datapoints")
    ours_PV, theirs_PV = (_counts(judged) for judged in (first, second))
    pairs_P = (ours_PV * theirs_PV).sum(axis=1)
    number = first.games * second.games
    if first is second:
        pairs_P, number = pairs_P - first.games, number - first.games
    if not number:
        return Agreement(None, None, None)
    alike_P, label_P = pairs_P / number, first.label_P
    return Agreement(
        _share(alike_P), _share(alike_P[label_P == ACCEPT]), _share(alike_P[label_P == REJECT])
    )


def _counts(judged: Judged) -> NDArray[np.int_]:
    """`[P, V]` the games about each datapoint with each verdict."""
    return np.stack([(judged.verdict_PG == verdict).sum(axis=1) for verdict in VERDICTS], axis=1)


def _share(values: NDArray[np.bool_] | NDArray[np.float64]) -> float | None:
    return float(values.mean()) if values.size else None
