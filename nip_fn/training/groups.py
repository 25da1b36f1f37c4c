"""Shared model groups and their adapter lineage."""

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import msgspec

from nip_fn.params.agent import agent_group, is_frozen, is_updated
from nip_fn.params.run import HyperParameters

Method = Literal["dpo", "sft"]


class Adapter(msgspec.Struct, frozen=True, array_like=True):
    """One trained LoRA adapter.  Its name is never used twice: servers cache by name."""

    name: str  # GROUP-ITERATION-HASH
    iteration: int
    parent: str | None  # the adapter that the training started from; None: the base model
    # Named in the record: left to a library's default, a run would not say towards what its policy
    # was pulled.
    reference: str | None  # the DPO reference policy; None: the base model
    data_hash: str  # of the rows that it was trained on
    method: Method = "dpo"


class Group(msgspec.Struct, frozen=True):
    """Agents that share one model: a base model and the adapters trained on it, oldest first."""

    name: str
    agents: tuple[int, ...]
    model: str
    trainable: bool
    lineage: tuple[Adapter, ...] = ()
    # Apart from the end of the lineage: an adapter that is trained need not be sampled with.
    serving: str | None = None  # the adapter that samples; None: the base model

    @property
    def latest(self) -> str | None:
        """The last adapter trained, whether or not it samples; None before the first."""
        return self.lineage[-1].name if self.lineage else None


def make_groups(params: HyperParameters) -> tuple[Group, ...]:
    """The groups of a run before any training, sorted by name."""
    # By name, which `groupby` needs, and which gives the groups one order in every process.
    members = sorted(
        ((agent_group(agent), index) for index, agent in enumerate(params.agents)),
    )
    groups = []
    for name, pairs in groupby(members, key=lambda member: member[0]):
        agents = tuple(index for _, index in pairs)
        # Any member would do: the checks refuse agents of one group that differ in what describes
        # the model (`config.checks.group_problems`).
        lead = params.agents[agents[0]]
        groups.append(Group(name, agents, lead.model_name, trainable=not is_frozen(lead)))
    return tuple(groups)


def group_of(groups: Sequence[Group], agent: int) -> Group:
    """The group that the agent belongs to."""
    return next(group for group in groups if agent in group.agents)


def is_due(params: HyperParameters, group: Group, iteration: int) -> bool:
    """True if the group is to be trained in that iteration, given enough rows."""
    schedule = params.agents[group.agents[0]].update_schedule
    return group.trainable and is_updated(schedule, iteration)
