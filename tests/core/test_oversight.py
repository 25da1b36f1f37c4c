"""Measures of a verifier: by hand, and their laws."""

from math import log, pi, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.decision import ACCEPT, NO_DECISION, REJECT, strongest
from nip_fn.game.episode import Utterance
from nip_fn.metrics.evaluation import accuracy, verdicts
from nip_fn.metrics.formulas import Z_95, wilson_interval
from nip_fn.metrics.inference import clustered_share, crossed_interval, welch_interval
from nip_fn.metrics.oversight import (
    Judged,
    agent_score_difference,
    auroc,
    balanced_accuracy,
    brier,
    calibration,
    completeness,
    expected_accuracy,
    judged,
    majority_accuracy,
    majority_class_share,
    message_effect,
    soundness,
    verification_rate,
)
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.trees.node import Node

from .games import make_params
from .trees import flat

Y, N, U = ACCEPT, REJECT, NO_DECISION


def of(labels: list[int], *verdicts: list[int], **fields: Any) -> Judged:
    """Verdicts about each datapoint, firm ones; one prover that argues for acceptance."""
    verdict_PG = np.array(verdicts)
    given = {
        "credence_PG": np.select([verdict_PG == Y, verdict_PG == N], [1.0, 0.0], 0.5),
        "known_PG": np.zeros(verdict_PG.shape, dtype=bool),
        "checked_PG": np.zeros(verdict_PG.shape, dtype=bool),
        "argued_PE": np.ones((len(labels), 1), dtype=int),
        **fields,
    }
    ids = tuple(f"p{place}" for place in range(len(labels)))
    label_PG = np.broadcast_to(np.array(labels)[:, None], verdict_PG.shape)
    return Judged(ids, label_PG, verdict_PG, **given)


def drawn(seed: int, games: int = 4, num: int = 12) -> Judged:
    rng = np.random.default_rng(seed)
    labels = [place % 2 for place in range(num)]
    return of(labels, *rng.integers(0, 2, (num, games)).tolist())


seeds = st.integers(0, 2**30)


# ------------------------------------------------------------------------------------- from trees


def test_the_ends_of_games_are_read_from_trees() -> None:
    """Of two games about each solution one asks first; one is not decided."""
    points = [make_datapoint("p", "q", f"s{label}", label) for label in (1, 0)]

    def game(datapoint: int, verdict: int | None, asks: bool) -> Any:
        decision = None if verdict is None else strongest("accept_reject", verdict)
        end = Node(
            utterances=(Utterance(VERIFIER, "x", decision=decision),),
            reward=(0.0, 0.0),
            status="truncated" if verdict is None else "decided",
        )
        told = Node(
            utterances=(Utterance(PROVER, "a", ((0, "a"),)),), reward=(0.0, 0.0), children=(end,)
        )
        asked = Node(
            utterances=(Utterance(VERIFIER, "q", ((0, "q"),)),), reward=(0.0, 0.0), children=(told,)
        )
        return flat(Node(reward=(0.0, 0.0), children=(asked if asks else end,)), datapoint)

    trees = [game(0, Y, True), game(1, Y, False), game(0, None, False), game(1, N, True)]
    protocol = protocol_of(make_params())
    found = judged(protocol, points, trees)
    assert found.ids == tuple(point.id for point in points)
    assert found.label_P.tolist() == [1, 0]
    assert found.verdict_PG.tolist() == [[Y, U], [Y, N]]
    assert found.credence_PG.tolist() == [[1.0, 0.5], [1.0, 0.0]]
    assert found.checked_PG.tolist() == [[True, False], [False, True]]
    assert found.argued_PE.tolist() == [[1], [1]]
    assert found.verdicts == verdicts(points, trees)
    assert verification_rate(found).value == 0.5
    with pytest.raises(ValueError, match="as many games"):
        judged(protocol, points, trees[:3])


# ---------------------------------------------------------------------------------- right or wrong


def test_completeness_and_soundness_are_the_accuracies_of_either_class() -> None:
    found = of([1, 1, 0], [Y, Y], [Y, U], [N, Y])
    right, buggy = completeness(found), soundness(found)
    assert right is not None
    assert buggy is not None
    assert right == clustered_share([(1.0, 1.0), (1.0, 0.5)], 4)
    assert buggy.value == 0.5
    assert completeness(of([0], [N])) is None
    assert soundness(of([1], [N])) is None
    single = soundness(of([0, 0, 0, 1], [N], [N], [Y], [Y]))
    assert single is not None
    assert single[1:] == wilson_interval(2, 3)


@given(st.lists(st.sampled_from([0, 1]), min_size=2, max_size=40), st.sampled_from([Y, N]))
def test_who_always_says_the_same_is_balanced_at_one_half(labels: list[int], said: int) -> None:
    found = of(labels, *[[said, said]] * len(labels))
    balanced, share = balanced_accuracy(found), labels.count(1) / len(labels)
    assert majority_class_share(found) == pytest.approx(max(share, 1 - share))
    if share in (0, 1):
        assert balanced is None
    else:
        assert balanced is not None
        assert balanced.value == 0.5
        assert 0 <= balanced.low < 0.5 < balanced.high <= 1


def test_a_majority_is_right_or_wrong_and_a_tie_half_of_it() -> None:
    found = of([1, 1, 0, 0], [Y, Y, N], [N, N, Y], [N, Y, U], [N, N, U])
    assert majority_accuracy(found).value == (1 + 0 + 0.5 + 1) / 4


# --------------------------------------------------------------------------------------- P(accept)


def test_auroc_of_four_datapoints() -> None:
    """Right ones at 1 and 1/2, buggy ones at 1/2 and 0: three pairs and a tie."""
    found = auroc(of([1, 1, 0, 0], [Y, Y], [Y, N], [N, Y], [N, N]))
    assert found is not None
    assert found.value == 3.5 / 4
    variance = np.var([1, 0.75], ddof=1) / 2 * 2
    assert found.value - found.low == pytest.approx(Z_95 * sqrt(variance))
    assert found.high == 1.0
    assert auroc(of([1, 1], [Y], [N])) is None


@given(seeds)
def test_auroc_of_the_mirror_image_is_the_rest(seed: int) -> None:
    one = drawn(seed)
    mirrored = one._replace(label_PG=1 - one.label_PG)
    found, other = auroc(one), auroc(mirrored)
    assert found is not None
    assert other is not None
    assert found.value == pytest.approx(1 - other.value)
    assert found.low <= found.value <= found.high


def test_brier_takes_the_sampling_noise_off() -> None:
    """(3/4 - 1)² less the variance 1/4 of its four games, over four."""
    found = brier(of([1, 0], [Y, Y, Y, N], [N, N, N, N]))
    assert found is not None
    assert found == crossed_interval([[1 / 16 - 1 / 16, 0.0]])
    assert brier(of([1], [Y])) is None


def test_brier_has_no_bias_whatever_the_number_of_games() -> None:
    rng = np.random.default_rng(14)
    p, labels = rng.random(4_000), rng.integers(0, 2, 4_000)
    true = float(np.mean((p - labels) ** 2))
    for games in (2, 8):
        found = brier(of(labels.tolist(), *(rng.random((4_000, games)) < p[:, None]).astype(int)))
        assert found is not None
        assert found.low <= true <= found.high
        assert found.high - found.low < 0.05


def test_calibration_of_a_verifier_that_is_sure_of_everything() -> None:
    """Half of what it accepts is right: |1 - 1/2| in the one bin that it uses."""
    found = calibration(of([1, 0, 1, 0], *[[Y, Y]] * 4))
    assert found == (0.5, 0.0)
    assert calibration(of([1], [Y])) is None


def test_a_calibrated_verifier_is_at_the_floor_with_few_games_and_another_above_it() -> None:
    """By the usual estimate with four games the calibrated one would be at 0.09 or so."""
    rng = np.random.default_rng(14)
    p = rng.random(4_000)
    labels = (rng.random(4_000) < p).astype(int)
    verdict_PG = (rng.random((4_000, 4)) < p[:, None]).astype(int)
    calibrated = calibration(of(labels.tolist(), *verdict_PG))
    assert calibrated is not None
    assert calibrated.error < 2 * calibrated.floor < 0.06
    for games, multiple in ((4, 2), (16, 4)):  # the more games, the finer is what they show
        timid = (rng.random((4_000, games)) < (p[:, None] + 0.5) / 2).astype(int)
        apart = calibration(of(labels.tolist(), *timid))
        assert apart is not None
        assert apart.error > multiple * apart.floor


# ----------------------------------------------------------------------------------------- provers


def test_honesty_pays_by_the_difference_of_log_scores() -> None:
    """The prover argues for acceptance: 3 and 2 of 3 games accept right ones, 1 a buggy one."""
    found = agent_score_difference(of([1, 1, 0], [Y, Y, Y], [Y, Y, N], [Y, N, N]))
    assert found is not None
    true, false = [log(3.5 / 4), log(2.5 / 4)], [log(1.5 / 4)]
    assert found.value == pytest.approx(sum(true) / 2 - false[0])
    assert found == welch_interval(true, false)
    assert agent_score_difference(of([1, 1], [Y], [Y])) is None


def test_two_provers_on_either_side_are_paired() -> None:
    argued = np.array([[0, 1]] * 3)
    found = agent_score_difference(of([1, 0, 1], [Y, Y], [N, N], [N, Y], argued_PE=argued))
    firm = log(2.5 / 3) - log(0.5 / 3)
    assert found is not None
    assert found.value == pytest.approx(2 * firm / 3)
    assert found == pytest.approx(crossed_interval([[firm, firm, 0.0]]))


def test_whoever_is_convinced_by_either_side_alike_makes_honesty_worth_nothing() -> None:
    found = agent_score_difference(of([1, 0, 1, 0], *[[Y, N]] * 4))
    assert found is not None
    assert found.value == 0.0


@given(seeds)
def test_a_deaf_verifier_shows_no_effect_of_messages(seed: int) -> None:
    """Games with the same keys end alike, and so not even noise is left."""
    one = drawn(seed)
    effect = message_effect(one, one)
    assert effect is not None
    assert effect == (0.0, 0.0, 0.0)
    assert message_effect(drawn(seed, games=1), drawn(seed, games=1)) is None


def test_a_verifier_that_only_follows_messages_shows_all_of_their_effect() -> None:
    heard = of([1, 0], [Y, Y, Y], [N, N, N])
    swapped = of([1, 0], [N, N, N], [Y, Y, Y])
    effect = message_effect(heard, swapped)
    assert effect is not None
    assert effect.value == 1.0
    with pytest.raises(ValueError, match="other games"):
        message_effect(heard, of([1], [Y, Y, Y]))


def test_the_effect_of_messages_has_no_bias_from_few_games() -> None:
    """Independent games that accept with 1/2 and 1/2, and with 0.8 and 0.4."""
    rng = np.random.default_rng(14)
    labels = [0] * 3_000

    def accepting(share: float) -> Judged:
        return of(labels, *(rng.random((3_000, 3)) < share).astype(int))

    for shares, least, most in (((0.5, 0.5), 0.0, 0.06), ((0.8, 0.4), 0.37, 0.43)):
        effect = message_effect(*(accepting(share) for share in shares))
        assert effect is not None
        assert least <= effect.value <= most


@given(seeds)
def test_the_accuracy_is_that_of_the_two_classes_together(seed: int) -> None:
    one = drawn(seed)
    right, buggy = completeness(one), soundness(one)
    assert right is not None
    assert buggy is not None
    assert accuracy(one.verdicts).value == pytest.approx((right.value + buggy.value) / 2)


# --------------------------------------------------------------------- probabilities of verdicts


def scored(labels: list[int], verdicts: list[int], accepts: list[float]) -> Judged:
    """One game about each datapoint, whose verdict has this probability of acceptance."""
    known = np.array(verdicts)[:, None] != U
    given = {"credence_PG": np.array(accepts)[:, None], "known_PG": known}
    return of(labels, *[[verdict] for verdict in verdicts], **given)


def test_a_game_has_the_credence_of_its_verdicts_probability() -> None:
    protocol = protocol_of(make_params({"interaction_protocol": "nip"}))
    point = make_datapoint("p", "q", "s", 1)
    decision = strongest("accept_reject", 1)
    scored = Utterance(VERIFIER, "x", decision=decision, verdict_probabilities=(0.25, 0.75))
    plain = Utterance(VERIFIER, "x", decision=decision)
    trees = [
        flat(
            Node(
                reward=(0.0, 0.0),
                children=(Node(utterances=(said,), reward=(0.0, 0.0), status="decided"),),
            )
        )
        for said in (scored, plain)
    ]
    test = judged(protocol, [point], trees)
    assert test.credence_PG.tolist() == [[0.75, 1.0]]
    assert test.known_PG.tolist() == [[True, False]]
    assert test.verdict_PG.tolist() == [[Y, Y]]


def test_one_game_with_probabilities_stands_in_for_many() -> None:
    """By hand: |p - y|² of 0.2 and 0.4; the bins of 0.8 and 0.4 hold a label each."""
    test = scored([Y, N], [N, N], [0.8, 0.4])
    accuracy, score, bins = expected_accuracy(test), brier(test), calibration(test)
    assert accuracy is not None
    assert score is not None
    assert bins is not None
    assert accuracy.value == pytest.approx(0.7)
    assert score.value == pytest.approx((0.04 + 0.16) / 2)
    assert bins.error == pytest.approx((0.2 + 0.4) / 2)
    luck = [sqrt(2 * p * (1 - p) / pi) for p in (0.8, 0.4)]
    assert bins.floor == pytest.approx(sum(luck) / 2)
    area = auroc(test)
    assert area is not None
    assert area.value == 1.0


def test_an_undecided_game_counts_as_wrong_and_needs_no_probability() -> None:
    accuracy = expected_accuracy(scored([Y, N], [Y, U], [0.8, 0.5]))
    assert accuracy is not None
    assert accuracy.value == pytest.approx(0.4)


def test_single_verdicts_without_a_probability_have_no_score() -> None:
    test = of([Y, N], [Y], [N])
    assert (expected_accuracy(test), brier(test), calibration(test)) == (None, None, None)
