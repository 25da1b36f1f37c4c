"""The gaps that papers report, against values computed by hand."""

from math import sqrt

import pytest

from nip_fn.metrics.card import ALONE, OWN, PROVERS_ALONE, CardRow, gap_recovered
from nip_fn.metrics.gaps import judge_accuracy_gain, legibility_tax, performance_gap_recovered

from .test_oversight import N, Y, of

WEAK, ASSISTED, STRONG = [[0, 0, 1, 0]], [[0, 1, 1, 0]], [[1, 1, 1, 0]]
T_3 = 3.182446  # Student's quantile at 97.5 % with three degrees of freedom


def test_the_gain_and_the_tax_are_paired_differences() -> None:
    gain = judge_accuracy_gain(ASSISTED, WEAK)
    half = T_3 * sqrt(0.25 / 4)  # of the differences 0, 1, 0, 0
    assert gain[:3] == pytest.approx((0.25, 0.25 - half, 0.25 + half))
    assert legibility_tax(STRONG, ASSISTED).value == 0.25
    assert legibility_tax(ASSISTED, STRONG).value == -0.25


def test_the_gap_recovered_is_a_ratio_of_means() -> None:
    """Residuals (0, 1, 0, 0) - 1/2 (1, 1, 0, 0) = (-1/2, 1/2, 0, 0), of variance 1/6."""
    recovered = performance_gap_recovered(WEAK, ASSISTED, STRONG)
    half = T_3 * sqrt(1 / 6 / 4) / 0.5
    assert recovered == pytest.approx((0.5, 0.5 - half, 0.5 + half))


def test_nothing_and_everything_are_recovered_for_sure() -> None:
    assert performance_gap_recovered(WEAK, WEAK, STRONG) == (0.0, 0.0, 0.0)
    assert performance_gap_recovered(WEAK, STRONG, STRONG) == (1.0, 1.0, 1.0)
    assert performance_gap_recovered(WEAK * 3, STRONG * 3, STRONG * 3) == (1.0, 1.0, 1.0)


def test_without_a_gap_nothing_can_be_recovered() -> None:
    assert performance_gap_recovered(STRONG, ASSISTED, WEAK) is None
    assert performance_gap_recovered(WEAK, ASSISTED, WEAK) is None
    with pytest.raises(ValueError, match="differ"):
        performance_gap_recovered(WEAK, ASSISTED, [[1, 1, 1]])


def test_the_card_recovers_the_gap_of_the_provers_model() -> None:
    labels = [1, 1, 0, 0]
    alone = CardRow(ALONE, OWN, of(labels, [Y], [N], [Y], [Y]))
    game = CardRow("nip", OWN, of(labels, [Y], [Y], [Y], [Y]))
    strong = CardRow(ALONE, PROVERS_ALONE, of(labels, [Y], [Y], [N], [Y]))
    recovered = gap_recovered([alone, game, strong], "nip")
    assert recovered is not None
    assert recovered.value == 0.5
    assert gap_recovered([alone, game], "nip") is None
    assert gap_recovered([alone, game, strong], ALONE) is None
