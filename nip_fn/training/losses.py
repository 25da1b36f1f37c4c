"""Losses: pure functions of log-probabilities, and the records that name them.

A loss is what a training minimises.  Each is written once, against the array API standard: NumPy
computes it in tests and scripts, torch differentiates it in trainings.  Letters for dimensions: N
rows, K replies of a row, T tokens of all these replies, one reply after the other.

Of a prompt x with replies y_k that weigh w_k, and the log-probabilities of the model π, the
reference policy ρ and the sampler σ, with h_k = ln π(y_k|x) − ln ρ(y_k|x):

    DPO              −ln sigmoid(β Σ_k w_k h_k)
    IPO              (Σ_k w_k h_k − 1/(2β))²
    SimPO            −ln sigmoid(β Σ_k w_k ln π(y_k|x) / |y_k| − γ)
    SFT              −Σ_k max(w_k, 0) ln π(y_k|x)
    PolicyGradient   −Σ_k w_k ln π(y_k|x)
    Clipped          −Σ_k Σ_t min(w_k r_t, w_k clip(r_t)),  r_t = π(t) / σ(t)
"""

from collections.abc import Callable, Mapping
from math import fsum
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

# Any array of the array API standard: NumPy's, torch's, and those of other libraries.
Array = Any
# Every number of a configuration has two bounds (`nip_fn.params.base`).
Positive = Annotated[float, Meta(gt=0.0, le=100.0)]
NotNegative = Annotated[float, Meta(ge=0.0, le=100.0)]
# How far the weights of a comparison may be from a sum of zero: they are rounded.
ROUNDED = 1e-9


class Scores(NamedTuple):
    """The log-probabilities, in nats, of the tokens of a step's replies, or of a part of them.

    A step is scored in as many parts as memory asks for, whose losses are added: what a loss
    divides by is therefore a number of the whole step.

    policy: `[T]` under the model that is trained; gradients flow through it.
    reference: `[T]` under the reference policy.
    sampler: `[T]` under the policy that wrote the replies, as recorded; NaN where it was not.
    reply: `[T]` the index n·K + k of the reply that each token is of.
    weights: `[N, K]`; 0 where a row has fewer than K replies.
    lengths: `[N, K]` tokens of each reply, as floats.
    num_rows: of the whole step.
    num_replies: of the whole step.
    num_imitated: tokens of the replies of positive weight, of the whole step.
    total: `[T]` -> `[N, K]`, the sum over the tokens of each reply.
    xp: the namespace of these arrays: `numpy`, `torch`, or another one.
    """

    policy: Array
    reference: Array
    sampler: Array
    reply: Array
    weights: Array
    lengths: Array
    num_rows: int
    num_replies: int
    num_imitated: int
    total: Callable[[Array], Array]
    xp: Any

    def at_tokens(self, values: Array) -> Array:
        """`[T]` the value of each token's reply, of `[N, K]`."""
        return self.xp.take(self.xp.reshape(values, (-1,)), self.reply)

    def mean(self, values: Array) -> Array:
        """`[N, K]` the mean over the tokens of each reply, of `[T]`; 0 for a reply without any."""
        lengths = self.xp.where(self.lengths > 0, self.lengths, self.xp.ones_like(self.lengths))
        return self.total(values) / lengths

    def log_ratios(self, *, by_length: bool = False) -> Array:
        """`[N, K]` ln(policy / reference) of each reply, or its mean over the tokens."""
        ratios = self.policy - self.reference
        # Each sum by itself: where both policies are equal, the difference is exactly zero.
        return (
            self.mean(ratios) if by_length else self.total(self.policy) - self.total(self.reference)
        )


# A scalar: the share of the scored rows in the loss of their step.
LossFunction = Callable[[Scores], Array]


# All fields are written: msgspec leaves a default out only if it is the very same object, which no
# hash of the record must depend on.
class _Loss(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="_type"):
    """Base of the losses: records, so that a recording, a job and a configuration can name them.

    reads_reference: True if it looks at the reference policy, which then has to be scored.
    reads_sampler: True if it looks at the log-probabilities under the sampler, as recorded.
    is_nonnegative: True if it measures a misfit, and a training that makes it grow has gone wrong.
    """

    reads_reference: ClassVar[bool] = True
    reads_sampler: ClassVar[bool] = False
    is_nonnegative: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name by which a configuration calls it."""
        return str(self.__struct_config__.tag)

    def weights_problem(self, weights: tuple[float, ...]) -> str:
        """The reason why it cannot take a row of such weights; "" if it can."""
        return ""


class _Comparison(_Loss, frozen=True):
    """Base of the losses that compare the replies of a row."""

    is_nonnegative: ClassVar[bool] = True

    def weights_problem(self, weights: tuple[float, ...]) -> str:
        """The reason why it cannot take a row of such weights; "" if it can."""
        # A reward is known up to a function of the prompt, which cancels only then: this is where
        # the partition function of DPO's derivation goes (Rafailov et al. 2023, section 4).
        if len(weights) > 1 and abs(fsum(weights)) <= ROUNDED * max(map(abs, weights), default=0.0):
            return ""
        return "compares replies, whose weights add up to 0, such as +1 and -1"


class DPO(_Comparison, frozen=True, tag="dpo"):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290).

    beta: the strength of the pull towards the reference policy.
    label_smoothing: the probability that a label is wrong (conservative DPO).
    sft_weight: of a supervised loss on the replies of positive weight, in nats per token; with it
        one training does what MALT (Motwani et al. 2024) does in two.
    """

    beta: Positive = 0.1
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.0
    sft_weight: NotNegative = 0.0

    def __call__(self, scores: Scores) -> Array:
        """The loss of the rows as a share of their step's."""
        xp = scores.xp
        margins = self.beta * xp.sum(scores.weights * scores.log_ratios(), axis=-1)
        right, wrong = 1.0 - self.label_smoothing, self.label_smoothing
        losses = -right * log_sigmoid(margins, xp)
        if wrong:
            losses = losses - wrong * log_sigmoid(-margins, xp)
        loss = xp.sum(losses) / scores.num_rows
        return loss + self.sft_weight * imitation(scores) if self.sft_weight else loss


class IPO(_Comparison, frozen=True, tag="ipo"):
    """Identity preference optimisation (Azar et al. 2023, arXiv:2310.12036, equation 17).

    beta: the pull towards the reference policy, the paper's τ: margins approach 1 / (2·beta).
    by_length: compare means over tokens instead of sums, as trl does.
    """

    beta: Positive = 0.1
    by_length: bool = True

    def __call__(self, scores: Scores) -> Array:
        """The loss of the rows as a share of their step's."""
        xp = scores.xp
        ratios = scores.log_ratios(by_length=self.by_length)
        margins = xp.sum(scores.weights * ratios, axis=-1)
        return xp.sum((margins - 1.0 / (2.0 * self.beta)) ** 2) / scores.num_rows


class SimPO(_Comparison, frozen=True, tag="simpo"):
    """Simple preference optimisation (Meng et al. 2024, arXiv:2405.14734): without a reference.

    beta: the scale of the mean log-probabilities.
    margin: the least by which a reply is to be preferred, the paper's γ.
    """

    reads_reference: ClassVar[bool] = False

    beta: Positive = 2.0
    margin: NotNegative = 1.0

    def __call__(self, scores: Scores) -> Array:
        """The loss of the rows as a share of their step's."""
        xp = scores.xp
        rewards = self.beta * scores.mean(scores.policy)
        margins = xp.sum(scores.weights * rewards, axis=-1) - self.margin
        return -xp.sum(log_sigmoid(margins, xp)) / scores.num_rows


class SFT(_Loss, frozen=True, tag="sft"):
    """Supervised fine-tuning: the mean loss of a token of the replies of positive weight."""

    is_nonnegative: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = False

    def weights_problem(self, weights: tuple[float, ...]) -> str:
        """The reason why it cannot take a row of such weights; "" if it can."""
        # A negative weight would be left out without a word, and its reply was sampled for nothing.
        return (
            "" if weights and min(weights) > 0 else "imitates replies, whose weights are positive"
        )

    def __call__(self, scores: Scores) -> Array:
        """The loss of the rows as a share of their step's."""
        return imitation(scores)


class PolicyGradient(_Loss, frozen=True, tag="policy_gradient"):
    """REINFORCE (Williams 1992): replies weighed by their advantages.

    by_length: the mean over a reply's tokens in place of their sum, whose gradient is unbiased.
    """

    reads_reference: ClassVar[bool] = False

    by_length: bool = False

    def __call__(self, scores: Scores) -> Array:
        """The loss of the rows as a share of their step's."""
        add = scores.mean if self.by_length else scores.total
        return -scores.xp.sum(scores.weights * add(scores.policy)) / scores.num_replies


class Clipped(_Loss, frozen=True, tag="clipped"):
    """The clipped surrogate of PPO (Schulman et al. 2017, arXiv:1707.06347), with advantages.

    The importance ratio of each token is against the log-probability that was recorded when it was
    sampled, so several steps may be taken on the same replies.

    low, high: the ratio is clipped to [1 − low, 1 + high].
    kl: the weight of the divergence from the reference policy, in nats a token, by the estimator
        ρ/π − ln(ρ/π) − 1 (k3 of Schulman 2020, "Approximating KL Divergence"), which is unbiased
        where the replies are the model's own.
    by_length: the mean over a reply's tokens in place of their sum.
    """

    reads_sampler: ClassVar[bool] = True

    low: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.2
    high: NotNegative = 0.2
    kl: NotNegative = 0.0
    by_length: bool = False

    @property
    def reads_reference(self) -> bool:  # type: ignore[override]
        """True if it is pulled towards the reference policy."""
        return self.kl > 0

    def __call__(self, scores: Scores) -> Array:
        """The loss of the rows as a share of their step's."""
        xp, add = scores.xp, scores.mean if self.by_length else scores.total
        ratios = xp.exp(scores.policy - scores.sampler)
        clipped = xp.clip(ratios, 1.0 - self.low, 1.0 + self.high)
        advantages = scores.at_tokens(scores.weights)
        losses = -xp.minimum(advantages * ratios, advantages * clipped)
        if self.kl:
            gaps = scores.reference - scores.policy
            losses = losses + self.kl * (xp.exp(gaps) - gaps - 1.0)
        return xp.sum(add(losses)) / scores.num_replies


class OwnLoss(_Loss, frozen=True, tag="function"):
    """A loss of a user's: `file.py:NAME` or `package.module:NAME`, a function of `Scores`."""

    function: str

    @property
    def name(self) -> str:
        """The reference to the function."""
        return self.function

    def __call__(self, scores: Scores) -> Array:
        """The loss of the rows as a share of their step's.

        Raises:
            KeyError: The function was not loaded.
        """
        return LOSSES[self.function](scores)


Loss = DPO | IPO | SimPO | SFT | PolicyGradient | Clipped | OwnLoss

BUILT_IN_LOSSES: Mapping[str, Loss] = {
    loss.name: loss for loss in (DPO(), IPO(), SimPO(), SFT(), PolicyGradient(), Clipped())
}
# Functions of users, by reference: a process that trains by one loads it first.
LOSSES: dict[str, LossFunction] = {}


def is_plain(loss: Loss) -> bool:
    """True if it is imitation, or DPO and nothing besides: what fine-tuning APIs know."""
    return isinstance(loss, SFT) or (isinstance(loss, DPO) and loss == DPO(beta=loss.beta))


def log_sigmoid(x: Array, xp: Any) -> Array:
    """ln(1 / (1 + exp(−x))), without overflow."""
    return xp.minimum(x, xp.zeros_like(x)) - xp.log1p(xp.exp(-xp.abs(x)))


def imitation(scores: Scores) -> Array:
    """−Σ max(w, 0) ln π over the tokens of the replies of positive weight, a token of the step."""
    positive = scores.xp.where(
        scores.weights > 0, scores.weights, scores.xp.zeros_like(scores.weights)
    )
    return -scores.xp.sum(positive * scores.total(scores.policy)) / scores.num_imitated
