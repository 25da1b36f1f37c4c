"""The steps of a training: their rows, their losses, and what is reported of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nip_fn.keys import fold_in, key
from nip_fn.training.losses import Loss, Scores
from nip_fn.training.packing import TokenRow, tree_order
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.models import is_sharded, token_log_probabilities
from nip_fn_adapters.providers.local.rows import Encoded, Floats

T = TypeVar("T")
RowOrder = tuple[int, ...]
RATED_ROWS = 64  # rows whose log-ratios are reported, at most: each costs two forward passes


class EndedTraining(NamedTuple):
    """A training that has ended, in each of its processes."""

    model: Any
    wrapped: Any  # the model as accelerate has wrapped it up
    accelerator: Any
    steps: tuple["Step", ...]
    log_ratios: tuple[float, ...]  # of the best replies; () without a reference policy


class Figures(NamedTuple):
    """The figures of a step, means over its rows as they were before it changed the model."""

    loss: float
    token_accuracy: float  # share of the tokens to imitate that are the likeliest ones
    reward_accuracy: float  # share of the rows whose margin is positive
    log_ratio_margin: float  # sum of the replies' log-ratios by their weights, in nats


class Step(NamedTuple):
    """A step of a training."""

    epoch: int
    tokens: int  # of its rows, each as often as it stands in them
    forwarded: int  # tokens that the model has read
    figures: Figures


def orders(job: Job, encoded: Encoded) -> Iterator[RowOrder]:
    """For each epoch the order of the rows: those of one tree together, at random otherwise."""
    for epoch in range(job.num_epochs):
        yield tree_order(encoded.chats, fold_in(key(job.seed), epoch))


def batches(job: Job, encoded: Encoded, size: int) -> Iterator[tuple[int, list[int]]]:
    """The rows of each step, `size` of them, with its epoch."""
    for epoch, order in enumerate(orders(job, encoded)):
        for start in range(0, len(order), size):
            yield epoch, list(order[start : start + size])


class Batch(NamedTuple):
    """The rows of a step, of all processes: N rows of at most K replies."""

    rows: list[TokenRow]
    weights: list[tuple[float, ...]]
    # `[T]` of each reply; without it, zeros stand for the reference policy.
    reference: list[tuple[Floats, ...]] | None
    sampler: list[tuple[Floats, ...]]  # NaN where it was not recorded

    @classmethod
    def of(
        cls, encoded: Encoded, reference: list[tuple[Floats, ...]] | None, members: Sequence[int]
    ) -> "Batch":
        """The batch of some of a job's rows, with their scores under the reference policy."""
        return cls(
            [encoded.rows[row] for row in members],
            [encoded.weights[row] for row in members],
            reference and [reference[row] for row in members],
            [encoded.sampler[row] for row in members],
        )

    @property
    def num_replies(self) -> int:
        """The number of replies."""
        return sum(len(row.replies) for row in self.rows)

    @property
    def num_imitated(self) -> int:
        """The number of tokens of the replies that weigh more than 0."""
        return sum(
            len(reply)
            for row, weights in zip(self.rows, self.weights, strict=True)
            for reply, weight in zip(row.replies, weights, strict=True)
            if weight > 0
        )

    def scores(self, members: Sequence[int], policy: Any) -> Scores:
        """The scores of some of the rows.

        Args:
            members: Indices of the rows.
            policy: `[T]` log-probabilities of the tokens of their replies, one after the other.
        """
        import torch

        rows = [self.rows[member] for member in members]
        shape = len(rows), max(len(row.replies) for row in rows)
        lengths, weights = np.zeros(shape), np.zeros(shape)
        for index, (row, member) in enumerate(zip(rows, members, strict=True)):
            lengths[index, : len(row.replies)] = [len(reply) for reply in row.replies]
            weights[index, : len(row.replies)] = self.weights[member]
        reply = torch.as_tensor(np.repeat(np.arange(lengths.size), lengths.ravel().astype(int)))
        reply = reply.to(policy.device)
        nothing = torch.zeros_like(policy, dtype=torch.float64)

        def tokens(scored: list[tuple[Floats, ...]]) -> Any:
            values = [values for member in members for values in scored[member]]
            return torch.as_tensor(np.concatenate(values)).to(nothing)

        def total(values: Any) -> Any:
            sums = values.new_zeros(lengths.size).index_add(0, reply, values)
            return sums.view(*shape).to(policy.dtype)

        return Scores(
            policy=policy,
            reference=nothing if self.reference is None else tokens(self.reference),
            sampler=tokens(self.sampler),
            reply=reply,
            weights=torch.as_tensor(weights).to(policy),
            lengths=torch.as_tensor(lengths).to(policy),
            num_rows=len(self.rows),
            num_replies=self.num_replies,
            num_imitated=self.num_imitated,
            total=total,
            xp=torch,
        )

    def figures(self, loss: Loss, scores: Scores, are_likeliest: Any) -> tuple[Any, ...]:
        """The share of the scored rows in the figures of their step, the first with its gradient.

        Args:
            loss: The loss that is trained by.
            scores: Of some of the rows.
            are_likeliest: `[T]` True where no token was likelier.
        """
        imitated = scores.at_tokens(scores.weights) > 0
        margins = (scores.weights * scores.log_ratios()).detach().sum(-1).double()
        return (
            loss(scores),
            (are_likeliest & imitated).double().sum() / max(1, self.num_imitated),
            (margins > 0).double().sum() / len(self.rows),
            margins.sum() / len(self.rows),
        )


def plain_scores(model: Any, rows: Sequence[TokenRow]) -> list[tuple[Floats, ...]]:
    """The log-probability of each token of each row's replies, each by itself."""
    model.eval()
    return [
        tuple(
            token_log_probabilities(model, row.prompt, reply).cpu().numpy() for reply in row.replies
        )
        for row in rows
    ]


def best_replies(encoded: Encoded, of_row: Sequence[tuple[T, ...]]) -> list[T]:
    """The value of the reply that weighs most, of each row whose log-ratio is reported."""
    weighed = zip(encoded.weights, of_row, strict=True)
    return evenly([values[weights.index(max(weights))] for weights, values in weighed])


def evenly(rows: list[T]) -> list[T]:
    """Some of a job's rows, evenly spaced: those of one tree are neighbours, and much alike."""
    return rows[:: -(-len(rows) // RATED_ROWS)]


def bare(accelerator: Any, model: Any) -> Any:
    """The model without the lower precision that it was trained with on a GPU, for evaluation.

    One in parts stays wrapped up, in what brings its parts together.
    """
    if is_sharded():
        return model.eval()
    return accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()


def log_ratios(
    encoded: Encoded,
    reference: Sequence[tuple[Floats, ...]],
    score: Callable[[list[TokenRow]], Sequence[tuple[Floats, ...]]],
) -> tuple[float, ...]:
    """ln(policy / reference) of the best reply of some rows, in nats: below 0, it fell.

    Args:
        encoded: The rows.
        reference: The log-probability of each token of each reply under the reference policy.
        score: Of rows, the same under the trained policy.
    """
    replies = best_replies(encoded, [row.replies for row in encoded.rows])
    rows = [
        row._replace(replies=(reply,))
        for row, reply in zip(evenly(encoded.rows), replies, strict=True)
    ]
    # No divergence: the replies are the data's and not the policy's, and no estimator of a KL is
    # one on them.  Schulman's k3 gave thousands of nats for one token that became unlikely.
    return tuple(
        float(np.sum(policy - before))
        for (policy,), before in zip(score(rows), best_replies(encoded, reference), strict=True)
    )
