"""What is trained: shared model groups, their adapter lineage, and the rows of a training job."""

from hashlib import blake2b
from itertools import groupby

import msgspec

from nip_fn.agent_params import AgentParameters, agent_group, is_updated, lora_alpha, lr_factor
from nip_fn.chat import Chat
from nip_fn.keys import Key, fold_in, seed_of
from nip_fn.params import HyperParameters

# Fewer examples than this and a group is not trained in that iteration (as at OpenAI's API).
MIN_EXAMPLES = 10


class Adapter(msgspec.Struct, frozen=True, array_like=True):
    """One trained LoRA adapter.  Its name is never used twice: servers cache by name."""

    name: str  # GROUP-ITERATION-HASH
    iteration: int
    parent: str | None  # the adapter that the training started from; None: the base model
    reference: str | None  # the DPO reference policy; None: the base model
    data_hash: str  # of the rows that it was trained on


class Group(msgspec.Struct, frozen=True):
    """Agents that share one model: a base model and the adapters trained on it, oldest first."""

    name: str
    agents: tuple[int, ...]
    model: str
    trainable: bool
    lineage: tuple[Adapter, ...] = ()
    serving: str | None = None  # the adapter that samples; None: the base model

    @property
    def latest(self) -> str | None:
        """The last adapter trained, whether or not it samples; None before the first."""
        return self.lineage[-1].name if self.lineage else None


def make_groups(params: HyperParameters) -> tuple[Group, ...]:
    """The groups of a run before any training, sorted by name."""
    members = sorted(
        ((agent_group(agent), index) for index, agent in enumerate(params.agents)),
    )
    groups = []
    for name, pairs in groupby(members, key=lambda member: member[0]):
        agents = tuple(index for _, index in pairs)
        lead = params.agents[agents[0]]
        groups.append(Group(name, agents, lead.model_name, trainable=not lead.freeze_agent))
    return tuple(groups)


def group_of(groups: tuple[Group, ...], agent: int) -> Group:
    """The group that the agent belongs to."""
    return next(group for group in groups if agent in group.agents)


def is_due(params: HyperParameters, group: Group, iteration: int) -> bool:
    """Whether the group is to be trained in that iteration, if there is enough to train on."""
    schedule = params.agents[group.agents[0]].update_schedule
    return group.trainable and is_updated(schedule, iteration)


def trained_agents(params: HyperParameters) -> tuple[int, ...]:
    """The agents that are not frozen."""
    return tuple(i for i, agent in enumerate(params.agents) if not agent.freeze_agent)


class PreferenceRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One DPO example: a chat, the reply to prefer after it, and the one to avoid."""

    prompt: Chat
    chosen: str
    rejected: str


class Job(msgspec.Struct, frozen=True):
    """A training to be done: where it starts, what it must stay close to, and how."""

    name: str  # GROUP-ITERATION, unique in the run
    group: str
    iteration: int
    model: str
    start: str | None  # the adapter to train further; None: a fresh one on the base model
    reference: str | None  # the DPO reference policy; None: the base model
    learning_rate: float
    num_epochs: int
    beta: float
    lora_rank: int
    lora_alpha: int
    lora_dropout: float
    batch_size: int
    seed: int
    rows: tuple[PreferenceRow, ...]

    @property
    def data_hash(self) -> str:
        """A hash of the rows in their order (16 hexadecimal digits)."""
        return blake2b(msgspec.msgpack.encode(self.rows), digest_size=8).hexdigest()


def make_job(
    params: HyperParameters, group: Group, iteration: int, rows: tuple[PreferenceRow, ...], key: Key
) -> Job:
    """The training that follows an iteration; `key` is consumed by its seed.

    The reference is named, never implied: the policy that the training starts from ("previous"), or
    the base model.
    """
    agent: AgentParameters = params.agents[group.agents[0]]
    start = None if agent.fine_tune_from_scratch else group.latest
    return Job(
        name=f"{group.name}-{iteration}",
        group=group.name,
        iteration=iteration,
        model=group.model,
        start=start,
        reference=group.latest if agent.dpo_reference == "previous" else None,
        learning_rate=params.rl.lr * lr_factor(agent),
        num_epochs=agent.num_epochs or params.rl.num_epochs,
        beta=agent.dpo_beta or 0.1,
        lora_rank=agent.lora_rank,
        lora_alpha=lora_alpha(agent),
        lora_dropout=agent.lora_dropout,
        batch_size=agent.per_device_train_batch_size,
        seed=seed_of(fold_in(key, "train", group.name), 31),
        rows=rows,
    )
