"""Losses: their formulas by hand, their laws, and other array libraries than NumPy."""

import math
from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.chat import Message
from nip_fn.keys import key
from nip_fn.testing.losses import WEIGHTS, LossError, ScoredRow, check_loss, scores_of
from nip_fn.training.losses import (
    BUILT_IN_LOSSES,
    DPO,
    IPO,
    SFT,
    Clipped,
    Loss,
    PolicyGradient,
    Scores,
    SimPO,
    log_sigmoid,
)
from nip_fn.training.rows import Row, imitated, preference, rows_problem

from ..lazily import torch

LOSSES: tuple[Loss, ...] = (
    *BUILT_IN_LOSSES.values(),
    DPO(beta=0.7, label_smoothing=0.2, sft_weight=0.5),
    IPO(by_length=False),
    PolicyGradient(by_length=True),
    Clipped(low=0.05, high=0.3, kl=0.2, by_length=True),
)
BY_NAME = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def scored(*replies: tuple[float, list[float], list[float], list[float]]) -> Scores:
    """One row of replies: each its weight, and its tokens under policy, reference and sampler."""
    row = ScoredRow([weight for weight, *_ in replies], key(0))
    row.policy, row.reference, row.sampler = (
        [np.array(reply[index]) for reply in replies] for index in (1, 2, 3)
    )
    return scores_of([row])


PAIR = scored(
    (1.0, [-1.0, -0.5], [-1.5, -1.0], [-1.0, -0.7]),
    (-1.0, [-2.0], [-1.0], [-2.1]),
)  # the log-ratios are +1 and -1
BY_HAND: dict[Loss, float] = {
    DPO(beta=0.5): math.log(1 + math.exp(-1.0)),
    DPO(beta=0.5, label_smoothing=0.1): math.log(1 + math.exp(-1.0)) + 0.1,
    DPO(beta=0.5, sft_weight=2.0): math.log(1 + math.exp(-1.0)) + 2.0 * 0.75,
    IPO(beta=0.5): (0.5 + 1.0 - 1.0) ** 2,
    IPO(beta=0.5, by_length=False): (1.0 + 1.0 - 1.0) ** 2,
    SimPO(beta=2.0, margin=1.0): math.log(1 + math.exp(-1.5)),
    PolicyGradient(): (1.5 - 2.0) / 2,
    PolicyGradient(by_length=True): (0.75 - 2.0) / 2,
    Clipped(): -(1.0 + 1.2 - math.exp(0.1)) / 2,
    Clipped(high=0.5): -(1.0 + math.exp(0.2) - math.exp(0.1)) / 2,
    Clipped(kl=1.0): -(1.0 + 1.2 - math.exp(0.1)) / 2
    + (2 * (math.exp(-0.5) + 0.5 - 1) + math.exp(1.0) - 1.0 - 1) / 2,
}


@pytest.mark.parametrize(("loss", "expected"), BY_HAND.items(), ids=repr)
def test_a_loss_is_what_its_formula_gives_by_hand(loss: Loss, expected: float) -> None:
    assert float(loss(PAIR)) == pytest.approx(expected, rel=1e-12)


def test_imitation_is_the_mean_loss_of_a_token() -> None:
    scores = scored((1.0, [-1.0, -0.5, -3.0], [0.0] * 3, [0.0] * 3))
    assert float(SFT()(scores)) == pytest.approx(1.5)


@BY_NAME
def test_built_in_losses_obey_the_laws(loss: Loss) -> None:
    check_loss(loss)


def batches(loss: Loss) -> st.SearchStrategy[list[ScoredRow]]:
    """Steps of rows that the loss takes."""
    weights = [weights for weights in WEIGHTS if not loss.weights_problem(weights)]
    rows = st.builds(ScoredRow, st.sampled_from(weights), st.integers(0, 99).map(key))
    return st.lists(rows, min_size=1, max_size=5)


@pytest.mark.xdist_group("trainings")  # whose worker has torch
@BY_NAME
@given(data=st.data())
def test_torch_derives_what_finite_differences_give(loss: Loss, data: st.DataObject) -> None:
    scores = scores_of(data.draw(batches(loss)))
    policy = torch.tensor(scores.policy, requires_grad=True)
    by_torch = in_torch(scores, policy)
    loss(by_torch).backward()
    assert policy.grad is not None
    for token, slope in enumerate(policy.grad.tolist()):
        step = np.eye(len(scores.policy))[token] * 1e-5
        values = [float(loss(scores._replace(policy=scores.policy + s * step))) for s in (1, -1)]
        assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-6)


def in_torch(scores: Scores, policy: Any) -> Scores:
    """The same scores as tensors."""
    reply = torch.tensor(scores.reply)

    def total(values: Any) -> Any:
        return (
            values.new_zeros(scores.weights.size)
            .index_add(0, reply, values)
            .view(*scores.weights.shape)
        )

    arrays = {
        name: torch.tensor(getattr(scores, name))
        for name in ("reference", "sampler", "weights", "lengths")
    }
    return scores._replace(policy=policy, reply=reply, total=total, xp=torch, **arrays)


@BY_NAME
def test_a_loss_uses_the_array_api_standard_alone(loss: Loss) -> None:
    xp = array_api_strict
    rows = [ScoredRow((1.0, -1.0) if loss != SFT() else (1.0,), key(n)) for n in range(3)]
    scores = scores_of(rows)
    shape, replies = scores.weights.shape, scores.weights.size
    arrays = {
        name: xp.asarray(getattr(scores, name))
        for name in ("policy", "reference", "sampler", "weights", "lengths", "reply")
    }
    is_of = xp.astype(
        xp.expand_dims(arrays["reply"], axis=0) == xp.expand_dims(xp.arange(replies), axis=1),
        xp.float64,
    )

    def total(values: Any) -> Any:
        return xp.reshape(is_of @ values, shape)

    assert float(loss(scores._replace(**arrays, total=total, xp=xp))) == pytest.approx(
        float(loss(scores)), rel=1e-12
    )


@BY_NAME
def test_a_reply_that_weighs_nothing_changes_nothing(loss: Loss) -> None:
    """But for the number of replies that some losses divide by."""
    first = ScoredRow((1.0, -1.0), key(1)) if loss != SFT() else ScoredRow((1.0,), key(1))
    longer = ScoredRow((*first.weights, 0.0), key(2))
    for name in ("policy", "reference", "sampler"):
        getattr(longer, name)[: len(first.weights)] = getattr(first, name)
    if getattr(loss, "kl", 0.0):
        loss = Clipped(by_length=True)
    number = len(first.weights)
    scores = scores_of([longer])._replace(num_replies=number)
    assert float(loss(scores)) == pytest.approx(float(loss(scores_of([first]))), rel=1e-12)


def test_the_logarithm_of_a_sigmoid_does_not_overflow() -> None:
    values = log_sigmoid(np.array([-1e4, -1.0, 0.0, 1e4]), np)
    assert values == pytest.approx([-1e4, -math.log(1 + math.e), -math.log(2), 0.0])


# ----------------------------------------------------------------------------------------- checks


def one_row_s_mean(scores: Scores) -> Any:
    return -np.mean(scores.policy)


def of_no_policy(scores: Scores) -> Any:
    return np.sum(scores.weights) / scores.num_rows


def of_the_first(scores: Scores) -> Any:
    return -scores.policy[0] / scores.num_rows


def by_row(scores: Scores) -> Any:
    return -np.sum(scores.total(scores.policy), axis=-1)


def infinite(scores: Scores) -> Any:
    return -np.sum(scores.policy) / np.float64(0.0)


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("function", "law"),
    [
        (one_row_s_mean, "parts of a step add up: .* divide by scores.num_rows"),
        (of_no_policy, "it moves with the policy: no token"),
        (of_the_first, "does not depend on the order of rows"),
        (by_row, "it is a finite number: it has the shape"),
        (infinite, "it is a finite number: it is inf"),
    ],
)
def test_the_check_finds_what_is_wrong_with_a_loss(
    function: Callable[[Scores], Any], law: str
) -> None:
    with pytest.raises(LossError, match=law):
        check_loss(function)


PROMPT = (Message("user", "Is it?"),)


@pytest.mark.parametrize(
    ("row", "loss", "problem"),
    [
        (imitated(PROMPT, "yes"), DPO(), "weighs its replies +1, and dpo compares replies"),
        (
            preference(PROMPT, "yes", "no"),
            SFT(),
            "weighs its replies +1, -1, and sft imitates replies",
        ),
        (
            Row(PROMPT, ("yes", "no"), (1.0, -0.5)),
            IPO(),
            "weighs its replies +1, -0.5, and ipo compares",
        ),
        (Row(PROMPT, ("yes",), (1.0, 2.0)), PolicyGradient(), "has 1 replies and 2 weights"),
        ("yes", PolicyGradient(), "is a str"),
    ],
)
def test_a_row_that_a_loss_cannot_take_is_named(row: Any, loss: Loss, problem: str) -> None:
    rows = (preference(PROMPT, "a", "b"), row) if loss != SFT() else (imitated(PROMPT, "a"), row)
    told = rows_problem("mine", "prover", rows, loss)
    assert told is not None
    assert told.address == "trainer mine"
    assert "row 1 of its update for the group 'prover' " in str(told)
    assert problem in str(told)
