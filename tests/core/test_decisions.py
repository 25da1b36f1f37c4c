"""Histograms, thresholds and agreement: by hand, and their laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.decision import ACCEPT, NO_DECISION, REJECT
from nip_fn.metrics.decisions import Agreement, CredenceLevel, agreement, histogram, thresholds
from nip_fn.metrics.evaluation import accuracy
from nip_fn.metrics.oversight import Judged, auroc

from .test_oversight import drawn, of

Y, N, U = ACCEPT, REJECT, NO_DECISION


def sure(*credences: list[float], labels: list[int]) -> Judged:
    """Games that ended with these credences; 0.5 is one that was not decided."""
    credence_PG = np.array(credences)
    verdicts = np.select([credence_PG > 0.5, credence_PG < 0.5], [Y, N], U)
    return of(labels, *verdicts.tolist(), credence_PG=credence_PG)


MIXED = sure([0.9, 0.9], [0.7, 0.5], [0.7, 0.1], labels=[1, 1, 0])


def test_games_are_counted_by_credence_and_label() -> None:
    found = histogram(MIXED)
    assert found.levels == (
        CredenceLevel(0.1, 0, 1),
        CredenceLevel(0.7, 1, 1),
        CredenceLevel(0.9, 2, 0),
    )
    assert found.undecided == (1, 0)


def test_each_line_has_its_own_accuracy() -> None:
    """Six games, four of them about right solutions, one of these undecided."""
    lowest, middle, highest, none = thresholds(MIXED)
    assert lowest[:4] == (0.1, 3 / 6, 3 / 4, 1.0)
    assert middle == (0.7, pytest.approx(4 / 6), 3 / 4, 1 / 2, pytest.approx(3 / 4))
    assert highest == (0.9, pytest.approx(4 / 6), 2 / 4, 0.0, 1.0)
    assert none == (float("inf"), pytest.approx(2 / 6), 0.0, 0.0, None)


def test_a_class_that_is_not_there_has_no_share() -> None:
    (first, *_) = thresholds(sure([0.9], labels=[1]))
    assert first.false_positives is None


def test_agreement_by_hand() -> None:
    one, other = of([1, 0], [Y, Y], [N, U]), of([1, 0], [Y, N], [U, U])
    assert agreement(one, other) == Agreement(0.5, 0.5, 0.5)
    # Of two different games: always alike about the first, never about the second.
    assert agreement(one, one) == Agreement(0.5, 1.0, 0.0)
    single = of([1], [Y])
    assert agreement(single, single) == Agreement(None, None, None)
    with pytest.raises(ValueError, match="other datapoints"):
        agreement(one, single)


@given(st.integers(0, 99), st.integers(0, 99))
def test_agreement_knows_no_order_and_is_a_share(seed: int, other: int) -> None:
    one, two = drawn(seed), drawn(other, games=2)
    found = agreement(one, two)
    assert found == agreement(two, one)
    assert found.overall is not None
    assert 0 <= found.overall <= 1


@given(st.integers(0, 99))
def test_the_usual_line_gives_the_usual_accuracy(seed: int) -> None:
    """Firm decisions: the line at 1 is the verifier itself, and every line is on the ROC curve."""
    found = drawn(seed)
    lines = {one.credence: one for one in thresholds(found)}
    assert lines[1.0].accuracy == pytest.approx(accuracy(found.verdicts).value)


def test_the_lines_lie_on_the_roc_curve() -> None:
    """The area below them is the chance that a right solution has the higher credence."""
    rng = np.random.default_rng(7)
    labels = [place % 2 for place in range(40)]
    found = sure(*[[float(c)] for c in rng.integers(0, 5, 40) / 10 + 0.04], labels=labels)
    curve = [(one.false_positives, one.true_positives) for one in thresholds(found)][::-1]
    (xs, ys) = zip(*curve, strict=True)
    expected = auroc(found)
    assert expected is not None
    assert np.trapezoid(ys, xs) == pytest.approx(expected.value)
