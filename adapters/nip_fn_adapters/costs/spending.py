"""The cost of a run: a function of its state, or of its events, and of the prices.

Tokens are recorded; dollars are derived from them wherever they are shown, so that a corrected
price table corrects old runs, too.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.run.events import Event, JobFinished, Replied
from nip_fn.run.stages import Training
from nip_fn.run.state import RunState, StageMetrics, adapter_of, episode_of
from nip_fn.training.tokens import (
    estimated_prompt,
    estimated_tokens,
    estimated_training,
    trained_tokens,
)
from nip_fn.training.tuning import Job
from nip_fn.trees.node import GameTree, Node, episode_after
from nip_fn_adapters.costs.prices import Prices, Tokens, cost, price_of, sum_known, total


class Expense(NamedTuple):
    """The tokens and the cost of an agent's replies, or of a group's trainings."""

    name: str
    model: str
    tokens: Tokens
    dollars: float | None  # None: the price is unknown


def stage_expenses(
    params: HyperParameters, row: StageMetrics, prices: Prices
) -> tuple[Expense, ...]:
    """The expenses of a stage that has ended: one for each agent, or group after a training."""
    # An agent that played several models, or a group that had several trainings, has one of each.
    by_name: dict[str, list[Expense]] = {}
    for usage in row.usage:
        agent, trains = params.agents[usage.agent], row.stage == "train"
        name = agent_group(agent) if trains else agent.name
        tokens = Tokens(usage.prompt, usage.cached, usage.completion, usage.trained)
        tuned = trains or usage.adapter is not None
        by_name.setdefault(name, []).append(_expense(name, agent, tuned, tokens, prices))
    return tuple(map(_summed, by_name.values()))


def run_expenses(state: RunState, prices: Prices) -> tuple[Expense, ...]:
    """All expenses of a run, stage by stage, those of the stage under way included."""
    ended = (expense for row in state.rows for expense in stage_expenses(state.params, row, prices))
    return (*ended, *_under_way(state, prices))


def run_cost(state: RunState, prices: Prices) -> float | None:
    """The cost of a run so far; None if tokens of unknown price were used."""
    return sum_known(expense.dollars for expense in run_expenses(state, prices))


def dollars_of(state: RunState, event: Event, prices: Prices) -> float | None:
    """The cost that an event adds; `state` is the one before or after it."""
    match event:
        case Replied(tree=tree, agent=index):
            tokens = total(
                Tokens(reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens)
                for _, reply in event.completions
            )
            agent, tuned = state.params.agents[index], _is_tuned(state, state.forest[tree], index)
            return cost(tokens, price_of(prices, agent, tuned=tuned))
        case JobFinished():
            job = next(entry.job for entry in state.jobs if entry.job.name == event.job)
            tokens = Tokens(trained=trained_tokens(job, event.adapter, event.report))
            lead = _leads(state.params)[job.group]
            return cost(tokens, price_of(prices, lead, tuned=True))
    return 0.0


# A training is expected to be billed for at most so much more than its rows' estimate.
MARGIN = 1.05
UNCOUNTED = 2.0  # times the guess, where the provider has counted nothing
COUNTED_TREES = 24  # of the stage; enough for a mean


def expected_training(state: RunState, job: Job) -> float:
    """The tokens that a training is expected to be billed for, with a small margin.

    Its rows are made of chats and replies like those of the sampled trees, whose tokens the
    provider has counted: the guess that needs no tokenizer is scaled by these counts.
    """
    prompts, replies = _Ratio(), _Ratio()
    group = next(group for group in state.groups if group.name == job.group)
    stride = ceil(len(state.forest) / COUNTED_TREES)
    for tree in range(0, len(state.forest), stride):
        for agent, prompt, reply in _counted(state, tree):
            if agent in group.agents:
                prompts, replies = prompts.plus(prompt), replies.plus(reply)
    return MARGIN * estimated_training(job, prompts.value, replies.value)


class _Ratio(NamedTuple):
    """Tokens as a provider counted them, and as they were guessed."""

    counted: float = 0.0
    guessed: float = 0.0

    def plus(self, ratio: "_Ratio") -> "_Ratio":
        return _Ratio(self.counted + ratio.counted, self.guessed + ratio.guessed)

    @property
    def value(self) -> float:
        return self.counted / self.guessed if self.counted and self.guessed else UNCOUNTED


def _counted(state: RunState, tree: int) -> Iterator[tuple[int, _Ratio, _Ratio]]:
    """The agent of each move of a tree, with its prompt and its replies."""
    grown = state.sampled
    if grown is None:
        return
    datapoint = grown.datapoints[grown.forest[tree].datapoint_index]
    waiting = [(grown.forest[tree].root, episode_of(grown, tree))]
    while waiting:
        node, episode = waiting.pop()
        waiting += [(child, episode_after(episode, child)) for child in node.children]
        for agent in {slot.agent for slot in node.slots}:
            # Utterances of several attempts hold the tokens of all of them together.
            utterances = [
                slot.said
                for slot in node.slots
                if slot.agent == agent and slot.said and slot.said.attempts == 1
            ]
            # One request for all siblings is counted at the first of them.
            prompt = max((utterance.prompt_tokens for utterance in utterances), default=0)
            if prompt:
                chat = build_chat(state.params, state.protocol, datapoint, episode, agent)
                written = sum(utterance.completion_tokens for utterance in utterances)
                guessed = sum(estimated_tokens(utterance.raw) for utterance in utterances)
                yield agent, _Ratio(prompt, estimated_prompt(chat)), _Ratio(written, guessed)


def _under_way(state: RunState, prices: Prices) -> Iterator[Expense]:
    """The expenses of the stage that has no row yet."""
    current = (state.iteration, state.stage.name)
    # Between the end of a stage and the next one, its tokens are in its row already.
    if any((row.iteration, row.stage) == current for row in state.rows):
        return
    if isinstance(state.stage, Training):
        leads = _leads(state.params)
        for entry in state.jobs:
            if entry.ended:
                group = entry.job.group
                tokens = Tokens(trained=trained_tokens(entry.job, entry.adapter, entry.report))
                yield _expense(group, leads[group], True, tokens, prices)
        return  # the forest is still there, but its tokens are in the row of the sampling
    used: dict[tuple[int, bool], list[Tokens]] = {}
    for game in state.forest:
        for index, tokens in _used(game.root):
            used.setdefault((index, _is_tuned(state, game, index)), []).append(tokens)
    for (index, tuned), amounts in sorted(used.items()):
        agent = state.params.agents[index]
        yield _expense(agent.name, agent, tuned, total(amounts), prices)


def _used(node: Node) -> Iterator[tuple[int, Tokens]]:
    """The agent of each slot of a tree, and the tokens of all attempts to fill it."""
    for slot in node.slots:
        # Replies that could not be used were paid for as well, and are summed up in the same
        # fields.
        counted = slot.said or slot.answered or slot
        yield (
            slot.agent,
            Tokens(counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens),
        )
    for child in node.children:
        yield from _used(child)


def _is_tuned(state: RunState, game: GameTree, agent: int) -> bool:
    return adapter_of(state, game.key, agent) is not None


def _leads(params: HyperParameters) -> dict[str, AgentParameters]:
    """One agent of each group, by the group's name; a group's agents share the model."""
    return {agent_group(agent): agent for agent in params.agents}


def _summed(expenses: Sequence[Expense]) -> Expense:
    return expenses[0]._replace(
        tokens=total(expense.tokens for expense in expenses),
        dollars=sum_known(expense.dollars for expense in expenses),
    )


def _expense(
    name: str, agent: AgentParameters, tuned: bool, tokens: Tokens, prices: Prices
) -> Expense:
    """The expense of tokens of an agent's model, or if `tuned` of one that is trained from it."""
    price = price_of(prices, agent, tuned=tuned)
    return Expense(name, agent.model_name, tokens, cost(tokens, price))
