"""The cost of a run: a function of its state, or of its events, and of the prices.

Tokens are recorded; dollars are derived from them wherever they are shown, so that a corrected
price table corrects old runs, too.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Event, JobFinished, Replied
from nip_fn.run.stages import Training
from nip_fn.run.state import Row, RunState, adapter_of
from nip_fn.training.tokens import trained_tokens
from nip_fn.trees.grow import GameTree, Node
from nip_fn_adapters.costs.prices import Prices, Tokens, cost, price_of, sum_known, total


class Expense(NamedTuple):
    """The tokens and the cost of an agent's replies, or of a group's trainings."""

    name: str
    model: str
    tokens: Tokens
    dollars: float | None  # None: the price is unknown


class _Use(NamedTuple):
    """Tokens taken from a model."""

    name: str  # of the agent, or of the group that was trained
    agent: AgentParameters  # one that has the model
    tuned: bool  # the model, or what becomes of it, is fine-tuned
    tokens: Tokens


def stage_expenses(params: HyperParameters, row: Row, prices: Prices) -> tuple[Expense, ...]:
    """The expenses of a stage that has ended: by agent, or by group after a training."""
    return tuple(_priced(use, prices) for use in _recorded(params, row))


def run_expenses(state: RunState, prices: Prices) -> tuple[Expense, ...]:
    """All expenses of a run, stage by stage, those of the stage under way included."""
    ended = (one for row in state.rows for one in stage_expenses(state.params, row, prices))
    return (*ended, *(_priced(use, prices) for use in _under_way(state)))


def dollars(state: RunState, prices: Prices) -> float | None:
    """The cost of a run so far; None if tokens of unknown price were used."""
    return sum_known(expense.dollars for expense in run_expenses(state, prices))


def dollars_of(state: RunState, event: Event, prices: Prices) -> float | None:
    """The cost that an event adds; `state` is the one before or after it."""
    match event:
        case Replied(tree=tree, agent=index, completion=done):
            tokens = Tokens(done.prompt_tokens, done.cached_tokens, done.completion_tokens)
            agent, tuned = state.params.agents[index], _is_tuned(state, state.forest[tree], index)
            return cost(tokens, price_of(prices, agent, tuned=tuned))
        case JobFinished():
            job = next(one.job for one in state.jobs if one.job.name == event.job)
            tokens = Tokens(trained=trained_tokens(job, event.adapter, event.report))
            lead = _leads(state.params)[job.group]
            return cost(tokens, price_of(prices, lead, tuned=True))
    return 0.0


def _recorded(params: HyperParameters, row: Row) -> Iterator[_Use]:
    """The tokens that the row of a stage records."""
    for usage in row.usage:
        agent = params.agents[usage.agent]
        name = agent_group(agent) if row.stage == "train" else agent.name
        tokens = Tokens(usage.prompt, usage.cached, usage.completion, usage.trained)
        yield _Use(name, agent, row.stage == "train" or usage.adapter is not None, tokens)


def _under_way(state: RunState) -> Iterator[_Use]:
    """The tokens of the stage that has no row yet."""
    here = (state.iteration, state.stage.name)
    # Between the end of a stage and the next one, its tokens are in its row already.
    if any((row.iteration, row.stage) == here for row in state.rows):
        return
    if isinstance(state.stage, Training):
        leads = _leads(state.params)
        for one in state.jobs:
            if one.ended:
                trained = trained_tokens(one.job, one.adapter, one.report)
                yield _Use(one.job.group, leads[one.job.group], True, Tokens(trained=trained))
        return  # the forest is still there, but its tokens are in the row of the sampling
    used: dict[tuple[int, bool], list[Tokens]] = {}
    for game in state.forest:
        for index, tokens in _used(game.root):
            used.setdefault((index, _is_tuned(state, game, index)), []).append(tokens)
    for (index, tuned), parts in sorted(used.items()):
        agent = state.params.agents[index]
        yield _Use(agent.name, agent, tuned, total(parts))


def _used(node: Node) -> Iterator[tuple[int, Tokens]]:
    """The agent of each slot of a tree, and the tokens of all attempts to fill it."""
    for slot in node.slots:
        # Replies that could not be used were paid for as well, and are summed up in the same
        # fields.
        one = slot.said or slot
        yield slot.agent, Tokens(one.prompt_tokens, one.cached_tokens, one.completion_tokens)
    for child in node.children:
        yield from _used(child)


def _is_tuned(state: RunState, game: GameTree, agent: int) -> bool:
    return adapter_of(state, game.key, agent) is not None


def _leads(params: HyperParameters) -> dict[str, AgentParameters]:
    """One agent of each group, by the group's name; a group's agents share the model."""
    return {agent_group(agent): agent for agent in params.agents}


def _priced(use: _Use, prices: Prices) -> Expense:
    price = price_of(prices, use.agent, tuned=use.tuned)
    return Expense(use.name, use.agent.model_name, use.tokens, cost(use.tokens, price))
