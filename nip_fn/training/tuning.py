"""Training jobs: rows, settings, and probes."""

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from nip_fn.errors import Problem
from nip_fn.keys import Key, fold_in, seed_of
from nip_fn.params.agent import (
    AgentParameters,
    Checkpointing,
    Precision,
    lora_alpha,
)
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import Chat
from nip_fn.training.canary import NUM_PROBES
from nip_fn.training.groups import Group, Method

# A group with fewer rows than this is not trained in that iteration: OpenAI's API refuses them, and
# all providers are held to the same rule, so that their runs can be compared.
MIN_EXAMPLES = 10


class Probe(NamedTuple):
    """A reply to a chat, to be scored."""

    chat: Chat
    reply: str


class PreferenceRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="preference"):
    """One DPO example: a chat, the reply to prefer after it, and the one to avoid."""

    prompt: Chat
    chosen: str
    rejected: str


class SupervisedRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="supervised"):
    """One example of supervised fine-tuning: a chat, and the reply to give after it."""

    prompt: Chat
    reply: str


TrainingRow = PreferenceRow | SupervisedRow


def method_of(rows: tuple[TrainingRow, ...]) -> Method:
    """The training method for rows of that kind."""
    return "sft" if rows and isinstance(rows[0], SupervisedRow) else "dpo"


def rows_problem(trainer: str, group: str, rows: tuple[TrainingRow, ...]) -> Problem | None:
    """The reason why no training can take a trainer's rows for a group; None if one can."""
    # Whoever is trained on both kinds by one loss learns to imitate the rejected replies, too.
    counts = Counter(type(row).__name__ for row in rows)
    if len(counts) <= 1:
        return None
    kinds = " and ".join(f"{number:,} {kind}" for kind, number in counts.items())
    return Problem(
        f"its update has {kinds} for the group {group!r}, and a training takes rows of one kind",
        f"trainer {trainer}",
        "let it make one kind in an iteration (nip_fn.sequence)",
        lasting=True,
    )


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


def row_metrics(rows: tuple[TrainingRow, ...]) -> tuple[tuple[str, float], ...]:
    """Counts of repeated and contradictory training rows.

    duplicates: rows that are the same as an earlier one
    contradictory: preferences whose reverse is among the rows, too
    """
    # Identical rows weigh double and opposite ones cancel: neither is an error, but both explain a
    # training that does not go as its number of rows suggests.
    preferences = {
        (row.prompt, row.chosen, row.rejected) for row in rows if isinstance(row, PreferenceRow)
    }
    contradictory = sum(
        (row.prompt, row.rejected, row.chosen) in preferences
        for row in rows
        if isinstance(row, PreferenceRow)
    )
    return (
        ("duplicates", float(len(rows) - len(set(rows)))),
        ("contradictory", float(contradictory)),
    )


class Job(msgspec.Struct, frozen=True):
    """A training to be done: where it starts, what it must stay close to, and how."""

    name: str  # GROUP-ITERATION, unique in the run
    group: str
    iteration: int
    model: str
    start: str | None  # the adapter to go on from; None: the base model
    reference: str | None  # the DPO reference policy; None: the base model
    learning_rate: float
    num_epochs: int
    beta: float
    lora_rank: int
    lora_alpha: int
    lora_dropout: float
    batch_size: int
    seed: int
    rows: tuple[TrainingRow, ...]  # all of one kind
    use_lora: bool = True  # false: all weights are trained
    # Later fields have defaults: a job is also what a language-model server is sent, and what
    # stands in its queue while a newer server takes over.
    stack: bool = False  # a new adapter on top of `start`, which stays as it is
    sft_weight: float = 0.0  # of the chosen replies' supervised loss, added to that of DPO
    gradient_checkpointing: Checkpointing = "auto"
    base_precision: Literal["auto", Precision] = "auto"

    @property
    def method(self) -> Method:
        """Direct preference optimisation, or supervised fine-tuning."""
        return method_of(self.rows)

    @property
    def data_hash(self) -> str:
        """A hash of the rows in their order (16 hexadecimal digits)."""
        # The order counts, since a training goes through the rows in an order that depends on it.
        return blake2b(msgspec.msgpack.encode(self.rows), digest_size=8).hexdigest()

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Replies of its data whose log-probability tells one model from another."""
        # The first distinct ones, a function of the rows alone: trainer and publisher score the
        # same replies without having to agree on them.
        found = dict.fromkeys(
            Probe(row.prompt, row.reply if isinstance(row, SupervisedRow) else row.chosen)
            for row in self.rows
        )
        return tuple(found)[:NUM_PROBES]


def make_job(
    params: HyperParameters, group: Group, iteration: int, rows: tuple[TrainingRow, ...], key: Key
) -> Job:
    """The training that follows an iteration; `key` is consumed by its seed."""
    agent: AgentParameters = params.agents[group.agents[0]]
    # Expert Iteration has a rate of its own, because imitation moves a model less than preferences
    # do at the same one.
    own_rate = params.ei.lr if method_of(rows) == "sft" else None
    rate = params.rl.lr if own_rate is None else own_rate
    start = None if agent.fine_tune_from_scratch else group.latest
    return Job(
        name=f"{group.name}-{iteration}",
        group=group.name,
        iteration=iteration,
        model=group.model,
        start=start,
        reference=_reference(agent, group, start),
        learning_rate=rate * (agent.agent_lr_factor or 1.0),
        num_epochs=agent.num_epochs or params.rl.num_epochs,
        # Resolved here for every provider: the *nip* library passes None on, which its server
        # rejects.
        beta=agent.dpo_beta or 0.1,
        lora_rank=agent.lora_rank,
        lora_alpha=lora_alpha(agent),
        lora_dropout=agent.lora_dropout,
        batch_size=agent.per_device_train_batch_size,
        # 31 bits fit a signed 32-bit integer, so every trainer can take the seed as it is.
        seed=seed_of(fold_in(key, "train", group.name), 31),
        rows=rows,
        use_lora=agent.use_lora,
        # The first training of a lineage has nothing to stack on.
        stack=agent.stack_lora_adapters and start is not None,
        sft_weight=agent.dpo_sft_weight if method_of(rows) == "dpo" else 0.0,
        gradient_checkpointing=agent.gradient_checkpointing,
        base_precision=agent.base_precision,
    )


def _reference(agent: AgentParameters, group: Group, start: str | None) -> str | None:
    """The reference, named and never implied: the last adapter ("previous"), or the base model.

    OpenAI's API takes none: there it is always what the training starts from.
    """
    if agent.model_provider == "OpenAI" and not agent.use_dummy_api:
        return start
    return group.latest if agent.dpo_reference == "previous" else None
