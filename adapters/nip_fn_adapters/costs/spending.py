"""What a run has spent: a function of its state, or of its events, and of the prices.

What is recorded is tokens; dollars follow from them, and follow anew wherever they are shown.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Event, JobFinished, Replied
from nip_fn.run.state import Row, RunState
from nip_fn.training.groups import group_of
from nip_fn.training.tokens import trained_tokens
from nip_fn.trees.grow import Node
from nip_fn_adapters.costs.prices import Prices, Usage, cost, price_of, sum_known, total


class Spent(NamedTuple):
    """What an agent's replies, or the trainings of a group, came to."""

    name: str
    model: str
    usage: Usage
    dollars: float | None  # None: the price is unknown


def spent_in(params: HyperParameters, row: Row, prices: Prices) -> tuple[Spent, ...]:
    """What a stage came to: agent by agent, or after a training group by group."""
    numbers = dict(row.metrics)
    if row.stage == "train":
        return tuple(
            _priced(agent_group(lead), lead, True, Usage(trained=tokens), prices)
            for lead in _leads(params)
            if (tokens := numbers.get(f"{agent_group(lead)}.train_tokens")) is not None
        )
    if row.stage not in ("test", "sample"):
        return ()
    return tuple(
        _priced(
            agent.name,
            agent,
            numbers[f"{agent_group(agent)}.serving"] > 0,
            Usage(
                numbers[f"{agent.name}.prompt_tokens"],
                numbers[f"{agent.name}.cached_tokens"],
                numbers[f"{agent.name}.tokens"],
            ),
            prices,
        )
        for agent in params.agents
    )


def spent_of(state: RunState, prices: Prices) -> tuple[Spent, ...]:
    """All that is recorded of a run, stage by stage, also of the stage under way."""
    ended = (spent for row in state.rows for spent in spent_in(state.params, row, prices))
    return (*ended, *_under_way(state, prices))


def dollars(state: RunState, prices: Prices) -> float | None:
    """What a run has cost so far; None where tokens were spent whose price is unknown."""
    return sum_known(spent.dollars for spent in spent_of(state, prices))


def dollars_of(state: RunState, event: Event, prices: Prices) -> float | None:
    """What an event adds to the cost; `state` is the one before it."""
    match event:
        case Replied(agent=index, completion=done):
            usage = Usage(done.prompt_tokens, done.cached_tokens, done.completion_tokens)
            agent, tuned = state.params.agents[index], _is_tuned(state, index)
            return cost(usage, price_of(prices, agent, tuned=tuned))
        case JobFinished():
            job = next(one.job for one in state.jobs if one.job.name == event.job)
            usage = Usage(trained=trained_tokens(job, event.adapter, event.report))
            lead = next(one for one in _leads(state.params) if agent_group(one) == job.group)
            return cost(usage, price_of(prices, lead, tuned=True))
    return 0.0


def _under_way(state: RunState, prices: Prices) -> tuple[Spent, ...]:
    """Of the stage that has no row yet."""
    if any((row.iteration, row.stage) == (state.iteration, state.stage) for row in state.rows):
        return ()
    if state.stage == "train":
        leads = {agent_group(agent): agent for agent in _leads(state.params)}
        return tuple(
            _priced(one.job.group, leads[one.job.group], True, Usage(trained=tokens), prices)
            for one in state.jobs
            if one.ended
            for tokens in [trained_tokens(one.job, one.adapter, one.report)]
        )
    used: dict[int, list[Usage]] = {}
    for root in state.forest:
        for index, usage in _used(root):
            used.setdefault(index, []).append(usage)
    return tuple(
        _priced(agent.name, agent, _is_tuned(state, index), total(used[index]), prices)
        for index, agent in enumerate(state.params.agents)
        if index in used
    )


def _used(node: Node) -> Iterator[tuple[int, Usage]]:
    """For each slot of a tree its agent and what its attempts took, whether or not it is filled."""
    for slot in node.slots:
        one = slot.said or slot
        yield slot.agent, Usage(one.prompt_tokens, one.cached_tokens, one.completion_tokens)
    for child in node.children:
        yield from _used(child)


def _is_tuned(state: RunState, agent: int) -> bool:
    return group_of(state.groups, agent).serving is not None


def _leads(params: HyperParameters) -> tuple[AgentParameters, ...]:
    """One agent of each group; what they share includes the model."""
    return tuple({agent_group(agent): agent for agent in params.agents}.values())


def _priced(name: str, agent: AgentParameters, tuned: bool, usage: Usage, prices: Prices) -> Spent:
    return Spent(name, agent.model_name, usage, cost(usage, price_of(prices, agent, tuned=tuned)))
