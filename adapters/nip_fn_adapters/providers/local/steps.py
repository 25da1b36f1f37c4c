"""The steps of a training: their rows, and what is told of them, by trl or packed."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nip_fn.keys import fold_in, key
from nip_fn.training.packing import TokenRow, tree_order
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.models import is_sharded, token_log_probabilities
from nip_fn_adapters.providers.local.rows import Encoded

Floats = NDArray[np.float64]
T = TypeVar("T")
RowOrder = tuple[int, ...]
RATED_ROWS = 64  # rows whose log-ratios are reported, at most: each costs two forward passes


class EndedTraining(NamedTuple):
    """A training that has ended, in each of its processes."""

    model: Any
    wrapped: Any  # the model as accelerate has wrapped it up
    accelerator: Any
    steps: tuple["Step", ...]
    log_ratios: tuple[float, ...]  # of chosen replies; supervised: ()


class Figures(NamedTuple):
    """The figures of a step, means over its rows as they were before it changed the model."""

    loss: float
    accuracy: float  # DPO: of the pairs, those that are in order; supervised: of the tokens, the
    # likeliest ones
    margin: float  # DPO: beta times the difference of the log-ratios; supervised: 0


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


def row_sampler(job: Job, encoded: Encoded) -> Any:
    """A sampler for torch's loader: each time the rows in the order of the next epoch."""
    from torch.utils.data import Sampler

    epochs = orders(job, encoded)

    class Rows(Sampler[int]):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(encoded.rows)

        def __iter__(self) -> Iterator[int]:
            return iter(next(epochs))

    return Rows()


def plain_scores(model: Any, rows: Sequence[TokenRow]) -> list[tuple[Floats, ...]]:
    """The log-probability of each token of each row's replies, each by itself."""
    model.eval()
    return [
        tuple(
            token_log_probabilities(model, row.prompt, reply).cpu().numpy() for reply in row.replies
        )
        for row in rows
    ]


def chosen_rows(encoded: Encoded) -> list[TokenRow]:
    """Rows whose log-ratios are reported, with their chosen replies only."""
    return [row._replace(replies=row.replies[:1]) for row in evenly(encoded.rows)]


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
    policy: Sequence[tuple[Floats, ...]], reference: Sequence[tuple[Floats, ...]]
) -> tuple[float, ...]:
    """ln(policy / reference) of each row's chosen reply, in nats: below 0, it became less likely.

    Args:
        policy: The log-probability of each token of each row's chosen reply, which comes first.
        reference: The same under the reference policy.
    """
    # No divergence: the replies are the data's and not the policy's, and no estimator of a KL is
    # one on them.  Schulman's k3 gave thousands of nats for one token that became unlikely.
    return tuple(
        float(np.sum(policy_scores[0] - reference_scores[0]))
        for policy_scores, reference_scores in zip(policy, reference, strict=True)
    )
