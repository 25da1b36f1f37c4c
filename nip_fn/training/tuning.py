"""Fine-tuning jobs: what a tuner is given, and a warning about what it reports."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from nip_fn.game.chat import Chat
from nip_fn.training.canary import NUM_PROBES
from nip_fn.training.losses import Loss
from nip_fn.training.rows import Row

Checkpointing = Literal["auto", "on", "off"]
Precision = Literal["float32", "bf16", "8-bit", "4-bit"]


class Probe(NamedTuple):
    """A reply to a chat, to be scored."""

    chat: Chat
    reply: str


class Job(msgspec.Struct, frozen=True):
    """A training to be done: where it starts, what it must stay close to, and how."""

    name: str  # GROUP-ITERATION, unique in the run
    group: str
    iteration: int
    model: str
    start: str | None  # the adapter to go on from; None: the base model
    reference: str | None  # the reference policy; None: the base model
    learning_rate: float
    num_epochs: int
    loss: Loss
    lora_rank: int
    lora_alpha: int
    lora_dropout: float
    batch_size: int
    seed: int
    rows: tuple[Row, ...]
    use_lora: bool = True  # false: all weights are trained
    # Later fields have defaults: a job is also what a language-model server is sent, and what
    # stands in its queue while a newer server takes over.
    stack: bool = False  # a new adapter on top of `start`, which stays as it is
    gradient_checkpointing: Checkpointing = "auto"
    base_precision: Literal["auto", Precision] = "auto"

    @property
    def data_hash(self) -> str:
        """A hash of the rows in their order (16 hexadecimal digits)."""
        # The order counts, since a training goes through the rows in an order that depends on it.
        # Of log-probabilities the last bits depend on what was sampled together: two runs of one
        # seed would have two hashes, so they count only where the training reads them.
        rows = self.rows if self.loss.reads_sampler else tuple(map(_without_scores, self.rows))
        return blake2b(msgspec.msgpack.encode(rows), digest_size=8).hexdigest()

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Replies of its data whose log-probability tells one model from another."""
        # The first distinct ones, a function of the rows alone: trainer and publisher score the
        # same replies without having to agree on them.
        # The reply that weighs most: the one whose probability the training moves up.
        probes = dict.fromkeys(
            Probe(row.prompt, row.replies[row.weights.index(max(row.weights))]) for row in self.rows
        )
        return tuple(probes)[:NUM_PROBES]


def _without_scores(row: Row) -> Row:
    tokens = (t and replace(t, log_probability_bytes=b"") for t in row.tokens)
    return replace(row, tokens=tuple(tokens))


FELL = 10.0  # nats by which a chosen reply may become less likely without a word


def fall_of_a_chosen_reply(report: Mapping[str, float]) -> str:
    """A warning, if a training made one of its chosen replies much less likely; else ""."""
    least = report.get("chosen_log_ratio_min", 0.0)
    if least >= -FELL:
        return ""
    return (
        f"a chosen reply's log-probability fell by {-least:,.0f} nats; if replies get worse, lower "
        "rl.lr or rl.num_epochs, or raise agents._default.dpo_sft_weight"
    )
