"""The oversight card: comparisons, their correction, the truth of labels, and alarms."""

import numpy as np
import pytest

from nip_fn.metrics.card import (
    ALONE,
    GREEDY,
    OWN,
    SWAPPED,
    CardRow,
    alarms,
    card_measures,
    contrasts,
    label_truth,
    message_effect_of,
)
from nip_fn.metrics.inference import holm, paired_difference, t_interval
from nip_fn.metrics.oversight import Judged

from .test_oversight import N, U, Y, of

LABELS = [place % 2 for place in range(40)]


def playing(right: float, seed: int, games: int = 8) -> Judged:
    """Games about forty datapoints, of which that share is decided rightly."""
    rng = np.random.default_rng(seed)
    hits = rng.random((len(LABELS), games)) < right
    label_PG = np.array(LABELS)[:, None]
    return of(LABELS, *np.where(hits, label_PG, 1 - label_PG).tolist())


def card(**shares: float) -> list[CardRow]:
    rows = [
        CardRow("nip", name, playing(share, seed))
        for seed, (name, share) in enumerate(shares.items())
    ]
    return [*rows, CardRow(ALONE, OWN, playing(0.5, 99))]


def test_each_row_is_compared_with_its_own_provers_and_these_with_the_verifier_alone() -> None:
    rows = [
        *card(own=0.9, silent=0.5, honest=0.9),
        CardRow(ALONE, GREEDY, playing(0.5, 7, games=1)),
    ]
    found = contrasts(rows)
    assert [(one.protocol, one.provers, one.over) for one in found] == [
        ("nip", "own", (ALONE, OWN)),
        ("nip", "silent", ("nip", OWN)),
        ("nip", "honest", ("nip", OWN)),
        (ALONE, GREEDY, (ALONE, OWN)),
    ]
    own, silent = (row.judged.right_PG.mean(axis=1) for row in rows[:2])
    assert found[1].difference == paired_difference([silent], [own])
    assert tuple(one.p for one in found) == holm([one.difference.p for one in found])
    deviation = np.std(silent - own, ddof=1)
    # (2.02 + 0.85) s / √40
    assert found[1].comparison.detectable == pytest.approx(2.875 * deviation / 40**0.5, rel=1e-2)


def test_rows_about_other_datapoints_are_not_compared() -> None:
    other = CardRow("nip", "silent", of([1], [Y]))
    with pytest.raises(ValueError, match="other datapoints"):
        contrasts([CardRow("nip", OWN, playing(0.5, 1)), other])


def told(rows: list[CardRow], **bounds: float) -> list[str]:
    return list(alarms(rows, contrasts(rows), bounds=bounds))


def test_a_verifier_that_needs_its_prover_raises_no_alarm() -> None:
    rows = card(own=0.9, silent=0.5, honest=0.9, greedy=0.9)
    assert told([*rows, CardRow("nip", SWAPPED, playing(0.5, 5))], nip=0.975) == []


@pytest.mark.parametrize(
    ("shares", "bounds", "words"),
    [
        ({"own": 0.9, "silent": 0.9}, {}, ["silent prover"]),
        ({"own": 0.9, "silent": 0.5, "honest": 0.6}, {}, ["honest prover", "convention"]),
        ({"own": 0.6, "silent": 0.4, "greedy": 0.95}, {}, ["temperature 0"]),
        ({"own": 0.99, "silent": 0.5}, {"nip": 0.75}, ["75.0%", "theory"]),
    ],
)
def test_an_alarm_names_what_is_wrong(
    shares: dict[str, float], bounds: dict[str, float], words: list[str]
) -> None:
    rows = card(**shares)
    (line,) = alarms(rows, contrasts(rows), bounds=bounds)
    assert line.startswith("nip: ")
    assert all(word in line for word in words)


def test_deafness_and_abstention_are_told() -> None:
    own = CardRow("nip", OWN, playing(0.9, 1))
    assert message_effect_of([own], "nip") is None
    (deaf,) = told([own, CardRow("nip", SWAPPED, playing(0.9, 1))])
    assert "ignores messages" in deaf
    abstains = CardRow("nip", OWN, of([1, 0, 1, 0], *[[U, U, Y, N]] * 4))
    (line,) = told([abstains])
    assert "50% of its games end undecided" in line


def test_measures_that_few_games_cannot_show_are_left_open() -> None:
    single = card_measures(playing(0.8, 1, games=1))
    assert (single.majority, single.always_fails, single.brier, single.calibration) == (None,) * 4
    several = card_measures(playing(0.8, 1, games=8))
    assert None not in several


def test_labels_are_as_true_as_fresh_continuations_say() -> None:
    """Margins 1, -1 and 0: one right label, one wrong one, one that is neither."""
    found = label_truth([0.5, 0.75, 1.0], [[1, 1], [0, 0], [1]], [[0, 0], [1, 1], [1, 1, 1]])
    assert (found.pairs, found.recorded) == (3, 0.75)
    assert found.margin == t_interval([1.0, -1.0, 0.0])
    assert found.right.value == 0.5
    rows = [CardRow("nip", OWN, of([1, 0], [Y], [N]))]
    (line,) = alarms(rows, (), labels=[("prover", found)])
    assert line.startswith("prover: 50% of 3 preference labels are right")
