"""What a run will ask for, before it does: requests, tokens and trainings, stage by stage.

Trees are not grown but counted.  A position after a round is like any other after that round, but
for what was said, so one dialogue of replies of the assumed length, grown by the functions that
grow trees, shows every prompt; how many positions there are follows from how the tree branches.
Trees whose games have the same schedule are alike, and a few of each kind are looked at.

    at most    no verifier decides before its last turn, all replies are as long as they may be
    expected   verifiers decide at a share of their turns (`dummy.decision_rate`), replies are as
               long as the prompt asks for, half of what can be learnt from is selected

Replies that cannot be used are asked for again, and cached prompts are cheaper: neither is known
before.  Tokens are guessed from characters (`money.estimated_tokens`).
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from nip_fn.game.episode import may_decide, movers
from nip_fn.game.protocol import Move, Protocol
from nip_fn.game.reply import Completion
from nip_fn.params.agent import AgentParameters, agent_group, max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import BatchFetched, FetchBatch, RunStarted
from nip_fn.run.ports import Source
from nip_fn.run.state import (
    EMPTY,
    RunState,
    Stage,
    datapoint_of,
    episode_of,
    is_tested,
    rules,
    tree_key,
)
from nip_fn.run.step import pending, step
from nip_fn.select.rollouts import replacement_share
from nip_fn.training.groups import Group, is_due, trained_agents
from nip_fn.training.jobs import MIN_EXAMPLES
from nip_fn.training.registry import trainer_of
from nip_fn.training.tokens import CHARACTERS_A_TOKEN, estimated_prompt
from nip_fn.trees.grow import (
    ReplyArrival,
    insert,
    new_tree,
    node_at,
    pending_requests,
    reply_combinations,
)
from nip_fn_adapters.costs.prices import Usage

SAMPLED_TREES = 24  # of each kind and stage, whose prompts are rendered
TOKENS_A_WORD = 4 / 3
SELECTED_SHARE = 0.5  # expected, of the pairs and dialogues that could be learnt from


class Amount(NamedTuple):
    """So much is asked for."""

    requests: float = 0
    replies: float = 0
    usage: Usage = Usage()

    def plus(self, other: "Amount", times: float = 1.0) -> "Amount":
        """This and so many times the other."""
        usage = Usage(*(a + times * b for a, b in zip(self.usage, other.usage, strict=True)))
        return Amount(
            self.requests + times * other.requests, self.replies + times * other.replies, usage
        )

    def rounded(self) -> "Amount":
        """In whole numbers."""
        return Amount(
            round(self.requests), round(self.replies), Usage(*(round(n) for n in self.usage))
        )


class Line(NamedTuple):
    """What a stage asks of an agent's model, or of the training of a group's."""

    iteration: int
    stage: Stage
    name: str  # of the agent; of the group that is trained
    agent: int  # of the group the first
    tuned: bool  # whether what answers, or comes of it, has been fine-tuned
    expected: Amount
    most: Amount


class Assumption(NamedTuple):
    """What is not known before a run."""

    decides: float  # at how many of a verifier's turns that count it decides, as a share
    tokens: Callable[[AgentParameters], int]  # of a reply
    single: bool  # siblings are asked for one by one where that is possible
    selected: float  # of what could be learnt from, as a share


class Level(NamedTuple):
    """Where an agent speaks: all positions of a tree after the same rounds."""

    agent: int
    positions: float
    k: int  # replies at each
    prompt: int  # tokens


class Planned(NamedTuple):
    """The trees of a stage."""

    state: RunState  # with all of them planted
    kinds: tuple[tuple[float, int], ...]  # (how many trees are like it, a tree)


def forecast(start: RunStarted, source: Source) -> tuple[Line, ...]:
    """All that a run will ask for, stage by stage and agent by agent, then trained groups."""
    params, (state, _) = start.params, step(EMPTY, start)
    tuned = {group.name for group in state.groups if group.serving is not None}
    banked: dict[tuple[str, str, str], _Rows] = {}
    lines: list[Line] = []
    for iteration in range(params.rl.num_iterations + 1):
        if is_tested(params, iteration):
            planned = _plan(replace(state, iteration=iteration, stage="test"), source)
            lines += _played(planned, tuned)
        if iteration == params.rl.num_iterations:
            break
        planned = _plan(replace(state, iteration=iteration, stage="sample"), source)
        lines += _played(planned, tuned)
        trained = tuple(_trained(planned, banked))
        lines += trained
        if params.text_rl.switch_adapters:
            tuned |= {line.name for line in trained}
    return tuple(lines)


def _assumptions(params: HyperParameters) -> tuple[Assumption, Assumption]:
    """What is expected, and the most that can be."""

    def asked_for(agent: AgentParameters) -> int:
        return min(max_tokens(agent), ceil(TOKENS_A_WORD * agent.max_response_words))

    expected = Assumption(params.dummy.decision_rate, asked_for, False, SELECTED_SHARE)
    return expected, Assumption(0.0, max_tokens, True, 1.0)


def _plan(state: RunState, source: Source) -> Planned:
    """The trees of the stage, and a few of each kind of them."""
    (draw,) = pending(state)
    if not isinstance(draw, FetchBatch):
        raise ValueError(f"stage {state.stage!r} draws no datapoints")
    state, _ = step(state, BatchFetched(source(draw.split, draw.indices)))
    protocol, kinds = protocol_of(state.params), dict[tuple[tuple[Move, ...], ...], list[int]]()
    for tree in range(len(state.forest)):
        kinds.setdefault(_schedule(protocol, state, tree), []).append(tree)
    return Planned(
        state,
        tuple(
            (len(alike) / len(some), tree)
            for alike in kinds.values()
            for some in [alike[:: ceil(len(alike) / SAMPLED_TREES)]]
            for tree in some
        ),
    )


def _schedule(protocol: Protocol, state: RunState, tree: int) -> tuple[tuple[Move, ...], ...]:
    key = tree_key(state, tree)
    return tuple(protocol.schedule(number, key) for number in range(protocol.max_message_rounds))


# ----------------------------------------------------------------------------------------- replies


def _played(planned: Planned, tuned: set[str]) -> Iterator[Line]:
    """A line for each agent."""
    params, stage = planned.state.params, planned.state.stage
    amounts = [_amounts(planned, assumed) for assumed in _assumptions(params)]
    for index, agent in enumerate(params.agents):
        expected, most = (found[index].rounded() for found in amounts)
        is_tuned = agent_group(agent) in tuned
        yield Line(planned.state.iteration, stage, agent.name, index, is_tuned, expected, most)


def _amounts(planned: Planned, assumed: Assumption) -> list[Amount]:
    """`[A]` what the stage asks of each agent."""
    agents = planned.state.params.agents
    found = [Amount()] * len(agents)
    for weight, tree in planned.kinds:
        for level in levels(planned.state, tree, assumed):
            agent = agents[level.agent]
            requests = level.k if asks_singly(agent, surely=not assumed.single) else 1
            written = level.k * assumed.tokens(agent)
            usage = Usage(prompt=requests * level.prompt, completion=written)
            once = Amount(requests, level.k, usage)
            found[level.agent] = found[level.agent].plus(once, weight * level.positions)
    return found


def asks_singly(agent: AgentParameters, *, surely: bool) -> bool:
    """Whether siblings are requests of their own: for sure, or else perhaps."""
    if agent.use_dummy_api or agent.model_provider == "local":
        return False
    if agent.replies_per_request == "auto":
        return agent.model_provider == "OpenRouter" if surely else not _is_openai(agent)
    return agent.replies_per_request == "one"


def _is_openai(agent: AgentParameters) -> bool:
    return agent.model_provider == "OpenAI" and agent.api_base_url is None


def levels(state: RunState, tree: int, assumed: Assumption) -> Iterator[Level]:
    """Where agents speak in a tree, round by round."""
    how, start = rules(state), episode_of(state, tree)
    single = how._replace(branching=lambda moves: 1)
    root, positions = new_tree(single, start), 1.0
    while asks := tuple(pending_requests(root)):
        _, episode = node_at(root, start, asks[0].path)
        moves = movers(how.protocol, episode)
        k = how.branching(moves)
        for move in moves:
            chat = build_chat(state.params, datapoint_of(state, tree), episode, move.agent)
            yield Level(move.agent, positions, k, estimated_prompt(chat))
        positions *= len(reply_combinations(len(moves), k, how.simultaneous_branching))
        number = len(episode.turns)
        if any(may_decide(how.protocol, number, move.agent) for move in moves):
            positions *= 1 - assumed.decides
        for ask, move in zip(asks, moves, strict=True):
            said = _filler(how.protocol, move, assumed.tokens(state.params.agents[move.agent]))
            root, _ = insert(single, root, start, ReplyArrival(ask.path, ask.agent, 0, 0, said))


def _filler(protocol: Protocol, move: Move, tokens: int) -> Completion:
    """A reply of so many tokens, with whatever headers it needs, that decides nothing."""
    headers = protocol.headers(move) or ("",)
    words = "x" * (CHARACTERS_A_TOKEN * tokens // len(headers))
    text = "\n".join(f"{header} {words}".strip() for header in headers)
    return Completion(text, "stop", "", completion_tokens=tokens)


# --------------------------------------------------------------------------------------- trainings


class _Rows(NamedTuple):
    """Examples to train on: how many, and how many tokens in all."""

    number: float = 0.0
    tokens: float = 0.0

    def plus(self, other: "_Rows", times: float = 1.0) -> "_Rows":
        return _Rows(self.number + times * other.number, self.tokens + times * other.tokens)


def _trained(planned: Planned, banked: dict[tuple[str, str, str], _Rows]) -> Iterator[Line]:
    """A line for each group that is trained, if it has enough examples at most."""
    state = planned.state
    params = state.params
    trainer = trainer_of(params, state.iteration).name
    assumptions = _assumptions(params)
    found = [_examples(planned, assumed) for assumed in assumptions]
    for group in state.groups:
        totals = []
        for name, rows in zip(("expected", "most"), found, strict=True):
            whole = _of_group(rows, group)
            place = (trainer, group.name, name)
            if params.text_rl.fine_tune_on_all_previous_rollouts:
                whole = banked[place] = banked.get(place, _Rows()).plus(whole)
            totals.append(whole)
        if not is_due(params, group, state.iteration) or totals[1].number < MIN_EXAMPLES:
            continue
        lead = params.agents[group.agents[0]]
        epochs = lead.num_epochs or params.rl.num_epochs
        expected, most = (Amount(usage=Usage(trained=epochs * one.tokens)) for one in totals)
        yield Line(
            state.iteration,
            "train",
            group.name,
            group.agents[0],
            True,
            expected.rounded(),
            most.rounded(),
        )


def _of_group(rows: Sequence[_Rows], group: Group) -> _Rows:
    whole = _Rows()
    for agent in group.agents:
        whole = whole.plus(rows[agent])
    return whole


def _examples(planned: Planned, assumed: Assumption) -> list[_Rows]:
    """`[A]` what the stage gives each agent to learn from."""
    state = planned.state
    found = [_Rows()] * len(state.params.agents)
    imitates = trainer_of(state.params, state.iteration).name == "ei"
    for weight, tree in planned.kinds:
        own: dict[int, list[Level]] = {}
        for level in levels(state, tree, assumed):
            own.setdefault(level.agent, []).append(level)
        for agent in trained_agents(state.params):
            reached = own.get(agent, [])
            of_tree = (_imitated if imitates else _compared)(state, agent, reached, assumed)
            found[agent] = found[agent].plus(of_tree, weight)
    return found


def _compared(state: RunState, agent: int, reached: Sequence[Level], assumed: Assumption) -> _Rows:
    """The preference pairs of an agent in a tree: a prompt and two replies each."""
    malt = state.params.malt
    reply = assumed.tokens(state.params.agents[agent])
    rows = _Rows()
    for level in reached:
        most = level.k * (level.k - 1) // 2
        pairs = most if malt.pair_selection_method == "all" else min(most, 1)
        once = _Rows(pairs, pairs * (level.prompt + 2 * reply))
        rows = rows.plus(once, level.positions * assumed.selected)
    limit = malt.max_pairs_per_datapoint
    if limit is not None and rows.number > limit:
        return _Rows(limit, rows.tokens * limit / rows.number)
    return rows


def _imitated(state: RunState, agent: int, reached: Sequence[Level], assumed: Assumption) -> _Rows:
    """The replies of an agent in a dialogue that it is to imitate: a prompt and a reply each."""
    params, protocol = state.params, protocol_of(state.params)
    share = assumed.selected
    if params.ei.rollout_selection_method == "weighted_sampling":
        share = params.ei.weighting_sample_size_factor
    if protocol.is_verifier(agent):
        replaced = replacement_share(params.text_rl, state.iteration)
        share = replaced + (1 - replaced) * share
    reply = assumed.tokens(params.agents[agent])
    rows = _Rows()
    for level in reached:
        rows = rows.plus(_Rows(1.0, level.prompt + reply), level.positions * share)
    return rows
