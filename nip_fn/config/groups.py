"""Model groups as the parameters of their agents describe them."""

from itertools import groupby

from nip_fn.params.agent import agent_group, is_frozen
from nip_fn.params.run import HyperParameters
from nip_fn.params.update_schedule import is_updated
from nip_fn.training.groups import Group


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


def is_due(params: HyperParameters, group: Group, iteration: int) -> bool:
    """True if the group is to be trained in that iteration, given enough rows."""
    schedule = params.agents[group.agents[0]].update_schedule
    return group.trainable and is_updated(schedule, iteration)
