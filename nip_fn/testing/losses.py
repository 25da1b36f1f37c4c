"""`check_loss`, the conformance suite of losses, built in or your own."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nip_fn.keys import Key, fold_in, key, randint, uniform
from nip_fn.training.losses import LossFunction, Scores

Floats = NDArray[np.float64]
TOLERANCE = 1e-9  # of the loss of a step of some nats, in double precision

# Rows of one to three replies each, with weights of both signs.
WEIGHTS = ((1.0, -1.0), (1.0,), (0.5, -1.5, 1.0), (-0.5, 0.5), (2.0, 1.0))
COMPARED = ((1.0, -1.0), (0.5, -1.5, 1.0), (-0.5, 0.5))

LossLaw = Callable[[LossFunction, Sequence["ScoredRow"]], Iterator[str]]


class LossError(AssertionError):
    """A loss breaks a law; the message has one line for each violation."""


class ScoredRow:
    """The log-probabilities of a row's replies under three policies, and their weights."""

    def __init__(self, weights: Sequence[float], row_key: Key) -> None:
        """Draw replies of one to five tokens; `row_key` is consumed."""
        self.weights = tuple(weights)
        lengths = [1 + randint(fold_in(row_key, "length", k), 5) for k in range(len(weights))]
        self.policy, self.reference, self.sampler = (
            [
                np.array([-3.0 * uniform(fold_in(row_key, name, k, t)) for t in range(length)])
                for k, length in enumerate(lengths)
            ]
            for name in ("policy", "reference", "sampler")
        )


def scores_of(rows: Sequence[ScoredRow], step: Sequence[ScoredRow] | None = None) -> Scores:
    """Rows as a loss takes them, in NumPy; `step` holds all rows of their step, if there are more.

    A script that computes log-probabilities by itself may do the same.
    """
    step = rows if step is None else step
    shape = len(rows), max(len(row.weights) for row in rows)
    lengths, weights = np.zeros(shape), np.zeros(shape)
    for index, row in enumerate(rows):
        lengths[index, : len(row.policy)] = [len(reply) for reply in row.policy]
        weights[index, : len(row.weights)] = row.weights
    reply = np.repeat(np.arange(lengths.size), lengths.ravel().astype(int))

    def total(values: Floats) -> Floats:
        sums = np.bincount(reply, weights=values, minlength=lengths.size)
        return sums.reshape(shape).astype(np.float64)

    return Scores(
        policy=np.concatenate([reply for row in rows for reply in row.policy]),
        reference=np.concatenate([reply for row in rows for reply in row.reference]),
        sampler=np.concatenate([reply for row in rows for reply in row.sampler]),
        reply=reply,
        weights=weights,
        lengths=lengths,
        num_rows=len(step),
        num_replies=sum(len(row.weights) for row in step),
        num_imitated=sum(
            len(reply)
            for row in step
            for reply, weight in zip(row.policy, row.weights, strict=True)
            if weight > 0
        ),
        total=total,
        xp=np,
    )


def it_is_a_finite_number(loss: LossFunction, rows: Sequence[ScoredRow]) -> Iterator[str]:
    """The loss is a scalar, and neither infinite nor NaN."""
    value = np.asarray(loss(scores_of(rows)))
    if value.shape != ():
        yield f"it has the shape {value.shape}; sum over rows and divide by scores.num_rows"
    elif not np.isfinite(value):
        yield f"it is {value}"


def it_does_not_depend_on_the_order_of_rows(
    loss: LossFunction, rows: Sequence[ScoredRow]
) -> Iterator[str]:
    """Rows stand in a batch by chance."""
    value, reverse = float(loss(scores_of(rows))), float(loss(scores_of(rows[::-1])))
    if not abs(value - reverse) <= TOLERANCE:
        yield f"it is {value:g}, and {reverse:g} with the rows in reverse"


def parts_of_a_step_add_up(loss: LossFunction, rows: Sequence[ScoredRow]) -> Iterator[str]:
    """A step that is too large for memory, or spread over devices, is scored in parts."""
    value = float(loss(scores_of(rows)))
    parts = sum(float(loss(scores_of([row], rows))) for row in rows)
    if not abs(value - parts) <= TOLERANCE:
        yield (
            f"it is {value:g} for a step, and its rows by themselves add up to {parts:g}; divide "
            "by scores.num_rows, num_replies or num_imitated, not by what a part holds"
        )


def it_moves_with_the_policy(loss: LossFunction, rows: Sequence[ScoredRow]) -> Iterator[str]:
    """Its derivative by the log-probabilities of the policy is finite, and not 0 everywhere."""
    scores = scores_of(rows)
    steps = [np.eye(len(scores.policy))[token] * 1e-6 for token in range(len(scores.policy))]
    slopes = [
        (
            float(loss(scores._replace(policy=scores.policy + step)))
            - float(loss(scores._replace(policy=scores.policy - step)))
        )
        / 2e-6
        for step in steps
    ]
    if not np.isfinite(slopes).all():
        yield "its derivative is not finite"
    elif max(map(abs, slopes), default=inf) < TOLERANCE:
        yield "no token's log-probability changes it, so that nothing would be learnt"


LOSS_LAWS: tuple[LossLaw, ...] = (
    it_is_a_finite_number,
    it_does_not_depend_on_the_order_of_rows,
    parts_of_a_step_add_up,
    it_moves_with_the_policy,
)


def check_loss(loss: LossFunction | Any, *, num_batches: int = 5, seed: int = 0) -> None:
    """Check that a loss obeys every law, on batches of random log-probabilities.

    Args:
        loss: The loss.
        num_batches: Batches of a handful of rows.
        seed: Of the batches.

    Raises:
        LossError: With one line for each violation.
    """
    lines: dict[str, None] = {}
    problem = getattr(loss, "weights_problem", lambda weights: "")
    for batch in range(num_batches):
        rows = [
            ScoredRow(weights, fold_in(key(seed), "loss", batch, index))
            for index, weights in enumerate((*WEIGHTS, *COMPARED))
            if not problem(weights)
        ]
        for law in LOSS_LAWS:
            for violation in law(loss, rows):
                lines[f"{law.__name__.replace('_', ' ')}: {violation}"] = None
            if lines:  # the later laws take numbers for granted
                raise LossError("\n".join(lines))
