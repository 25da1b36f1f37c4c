"""Forecast of a run: the requests, tokens and trainings of each stage, before anything is sent.

Trees are counted, not grown.  A position after a round is like any other after that round but for
the words spoken, so one dialogue of replies of the assumed length, grown by the functions that grow
trees, shows every prompt; the number of positions follows from the branching.  Trees whose games
have the same schedule are alike, so a few of each kind are enough.

    most       no verifier decides before its last turn, all replies have the longest length
    expected   verifiers decide at a share of their turns (`dummy.decision_rate`), replies have the
               length that prompts ask for, half of the possible examples are selected

Retries of unusable replies and the discount on cached prompts are left out: neither is known
before.  Tokens are estimated from characters (`nip_fn.training.tokens`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from math import ceil, fsum
from typing import NamedTuple

from msgspec.structs import replace

from nip_fn.config.groups import is_due
from nip_fn.config.trainers import replacement_of
from nip_fn.game.answer import MARKER
from nip_fn.game.protocol import Move, Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, key
from nip_fn.params.agent import AgentParameters, agent_group, max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.run.events import BatchFetched, FetchBatch, RunStarted
from nip_fn.run.opponents import Script, is_learnt_from, learner
from nip_fn.run.ports import Source
from nip_fn.run.stages import Fetching, Growing, StageName
from nip_fn.run.state import EMPTY, RunState, episode_of, is_tested, player, rules
from nip_fn.run.step import pending, step
from nip_fn.training.groups import Adapter, Group, group_of
from nip_fn.training.rows import MIN_EXAMPLES
from nip_fn.training.tokens import CHARACTERS_A_TOKEN, estimated_prompt
from nip_fn.training.trainer import SampleBatch, trained_agents
from nip_fn.trees.grow import Turn, insert, insert_label, new_tree
from nip_fn.trees.node import ReplyArrival, node_at, pending_checks, pending_requests
from nip_fn.trees.size import levels
from nip_fn_adapters.costs.prices import Tokens

SAMPLED_TREES = 24  # of each kind in a stage; their prompts are rendered
TOKENS_A_WORD = 4 / 3
SELECTED_SHARE = 0.5  # expected, of the pairs and dialogues that could be learnt from


class Workload(NamedTuple):
    """Counts of requests, replies and tokens; fractions are possible in an expectation."""

    requests: float = 0
    replies: float = 0
    prompt: float = 0  # tokens
    completion: float = 0  # tokens
    trained: float = 0  # tokens, times epochs

    @property
    def tokens(self) -> Tokens:
        """The tokens, none of them cached."""
        return Tokens(self.prompt, 0, self.completion, self.trained)

    def rounded(self) -> "Workload":
        """The nearest whole numbers."""
        return Workload(*map(round, self))


class StageForecast(NamedTuple):
    """The workload of one stage for an agent's model, or for the training of a group."""

    iteration: int
    stage: StageName
    name: str  # of the agent, or of the group that is trained
    agent: int  # of a group the first
    tuned: bool  # the model that answers, or that is trained, has been fine-tuned
    expected: Workload
    most: Workload


class Assumptions(NamedTuple):
    """Assumed values of quantities that are unknown before a run."""

    decides: float  # share of a verifier's turns at which it decides, where it may
    tokens: Callable[[AgentParameters], int]  # of a reply
    single: bool  # siblings are requested one by one wherever that is possible
    selected: float  # share of the possible examples
    is_most: bool  # nothing that may be trained on is left out


class DecisionPoints(NamedTuple):
    """The nodes of a tree at which an agent speaks after the same number of rounds."""

    agent: int
    number: float
    k: int  # replies at each
    prompt: int  # tokens of each


class _StageTrees(NamedTuple):
    state: RunState
    grown: Growing  # the roots of all trees
    samples: tuple[tuple[float, int], ...]  # (number of trees like it, index of the tree)


class _Examples(NamedTuple):
    number: float = 0.0
    tokens: float = 0.0


_Both = tuple[_Examples, _Examples]  # expected, most
_Past = dict[tuple[bool, str], _Both]  # (true if imitated, group) -> the examples so far


def forecast_stages(start: RunStarted, source: Source) -> tuple[StageForecast, ...]:
    """The workload of a run: stage by stage, first each agent's, then each trained group's."""
    params, (state, _) = start.params, step(EMPTY, start)
    tuned = {group.name for group in state.groups if group.serving is not None}
    past: _Past = {}
    trainer = state.trainer
    rows: list[StageForecast] = []
    for iteration in range(params.rl.num_iterations + 1):
        if is_tested(params, iteration):
            tested = replace(state, iteration=iteration, stage=Fetching("test"))
            rows += _sampling(_stage_trees(tested, source), tuned)
        if iteration == params.rl.num_iterations:
            break
        sampling = replace(state, iteration=iteration, stage=Fetching("sample"))
        trees = _stage_trees(sampling, source)
        rows += _sampling(trees, tuned)
        trained = tuple(_training(trees, past))
        rows += trained
        groups = state.groups
        if params.text_rl.switch_adapters:
            names = {row.name for row in trained}
            tuned |= names
            groups = tuple(
                _grown(group, iteration) if group.name in names else group for group in groups
            )
        # An update on no trees at all: its state is that of the next iteration.
        chat = partial(build_chat, params, state.protocol)
        nothing = SampleBatch(state.protocol, chat, state.groups, (), (), iteration)
        state = replace(
            state,
            groups=groups,
            trainer_state=trainer.update(nothing, state.trainer_state, key(0)).state,
            num_drawn=state.num_drawn + len(trees.grown.datapoints),
        )
    return tuple(rows)


def _grown(group: Group, iteration: int) -> Group:
    """The group after a training: later trees may be played by the model that it had before."""
    adapter = Adapter(f"{group.name}-{iteration}", iteration, None, None, "")
    return replace(group, lineage=(*group.lineage, adapter), serving=adapter.name)


def _assumptions(params: HyperParameters) -> tuple[Assumptions, Assumptions]:
    """The expected values, and those that cost the most."""

    def as_prompted(agent: AgentParameters) -> int:
        return min(max_tokens(agent), ceil(TOKENS_A_WORD * agent.max_response_words))

    expected = Assumptions(params.dummy.decision_rate, as_prompted, False, SELECTED_SHARE, False)
    return expected, Assumptions(0.0, max_tokens, True, 1.0, True)


def _stage_trees(state: RunState, source: Source) -> _StageTrees:
    """The trees of the stage, and up to `SAMPLED_TREES` of each kind, evenly spaced."""
    (fetch,) = pending(state)
    if not isinstance(fetch, FetchBatch):
        raise ValueError(f"stage {state.stage.name!r} fetches no datapoints")
    state, _ = step(state, BatchFetched(source(fetch.split, fetch.indices)))
    grown = state.stage
    if not isinstance(grown, Growing):
        raise ValueError(f"no trees grow in stage {state.stage.name!r}")
    protocol, by_likeness = state.protocol, dict[tuple[object, ...], list[int]]()
    for tree, game in enumerate(grown.forest):
        rounds = range(protocol.max_message_rounds)
        moves = (protocol.schedule(number, game.key) for number in rounds)
        # An agent that meets earlier models is the only one whose replies are compared there.
        likeness = learner(state.params, game.key), _scripted(state, game.key), *moves
        by_likeness.setdefault(likeness, []).append(tree)
    samples = []
    for alike in by_likeness.values():
        sampled = alike[:: ceil(len(alike) / SAMPLED_TREES)]
        samples += [(len(alike) / len(sampled), tree) for tree in sampled]
    return _StageTrees(state, grown, tuple(samples))


def _scripted(state: RunState, game: Key) -> frozenset[int]:
    """The agents whose part a script plays in a game."""
    agents = range(len(state.params.agents))
    return frozenset(agent for agent in agents if isinstance(player(state, game, agent), Script))


# ---------------------------------------------------------------------------------------- sampling


def _sampling(trees: _StageTrees, tuned: set[str]) -> Iterator[StageForecast]:
    """The forecast of a test or sample stage for each agent."""
    params, stage = trees.state.params, trees.grown.name
    estimates = [_workloads(trees, assumed) for assumed in _assumptions(params)]
    for index, agent in enumerate(params.agents):
        expected, most = (workloads[index].rounded() for workloads in estimates)
        is_tuned = agent_group(agent) in tuned
        yield StageForecast(
            trees.state.iteration, stage, agent.name, index, is_tuned, expected, most
        )


def _workloads(trees: _StageTrees, assumed: Assumptions) -> list[Workload]:
    """`[A]` each agent's share of the stage."""
    agents = trees.state.params.agents
    by_agent: list[list[Workload]] = [[] for _ in agents]
    for weight, tree in trees.samples:
        scripted = _scripted(trees.state, trees.grown.forest[tree].key)
        for points in decision_points(trees.state, trees.grown, tree, assumed):
            agent, times = agents[points.agent], weight * points.number
            requests = points.k if asks_singly(agent, surely=not assumed.single) else 1
            tokens = requests * points.prompt, points.k * assumed.tokens(agent)
            once = (requests, points.k, *((0, 0) if points.agent in scripted else tokens))
            by_agent[points.agent].append(Workload(*(times * count for count in once)))
    return [Workload(*map(fsum, zip(*workloads, strict=True))) for workloads in by_agent]


def asks_singly(agent: AgentParameters, *, surely: bool) -> bool:
    """True if siblings are requested one by one: certainly if `surely`, else possibly."""
    if agent.use_dummy_api or agent.model_provider in ("local", "scripted"):
        return False
    if agent.replies_per_request == "auto":
        is_openai = agent.model_provider == "OpenAI" and agent.api_base_url is None
        return agent.model_provider == "OpenRouter" if surely else not is_openai
    return agent.replies_per_request == "one"


def decision_points(
    state: RunState, grown: Growing, tree: int, assumed: Assumptions
) -> Iterator[DecisionPoints]:
    """The nodes of a tree at which agents speak, round by round."""
    growth, start = rules(state), episode_of(grown, tree)
    datapoint = grown.datapoints[grown.forest[tree].datapoint_index]
    # One path stands for the whole tree, since siblings differ in nothing but their words.
    single = growth._replace(branching=1)
    root = new_tree(single, start)
    for moves, number, k in levels(growth, start.key, assumed.decides):
        requests = tuple(pending_requests(root))
        _, episode = node_at(root, start, requests[0].path)
        for move in moves:
            chat = build_chat(state.params, state.protocol, datapoint, episode, move.agent)
            yield DecisionPoints(move.agent, number, k, estimated_prompt(chat))
        for request, move in zip(requests, moves, strict=True):
            tokens = assumed.tokens(state.params.agents[move.agent])
            reply = ReplyArrival(
                request.path, request.agent, 0, 0, _filler(state.protocol, move, tokens)
            )
            root, _ = insert(single, root, start, reply)
        for answer in pending_checks(root):
            root, _ = insert_label(single, root, start, answer, 1)


def _filler(protocol: Protocol, move: Move, tokens: int) -> Completion:
    """A reply of that length with the required headers and without a decision."""
    headers = protocol.headers(move) or ("",)
    words = "x" * (CHARACTERS_A_TOKEN * tokens // len(headers))
    text = "\n".join(f"{header} {words}".strip() for header in headers)
    text = f"{text}\n{MARKER} x" if move.answers else text
    return Completion(text, "stop", "", completion_tokens=tokens)


# --------------------------------------------------------------------------------------- trainings


def _training(trees: _StageTrees, past: _Past) -> Iterator[StageForecast]:
    """The forecast for each group that is trained, if at most it has enough examples.

    `past` holds the examples of earlier iterations, for groups that train on them again.
    """
    state, params = trees.state, trees.state.params
    imitates = _imitates(state)
    estimates = [_examples(trees, assumed) for assumed in _assumptions(params)]
    for group in state.groups:
        expected, most = (_sum(by_agent[agent] for agent in group.agents) for by_agent in estimates)
        if params.text_rl.fine_tune_on_all_previous_rollouts:
            before = past.get((imitates, group.name), (_Examples(), _Examples()))
            expected, most = _sum((before[0], expected)), _sum((before[1], most))
            past[imitates, group.name] = expected, most
        # Judged by the most: a training that may take place belongs into the forecast.
        if not is_due(params, group, state.iteration) or most.number < MIN_EXAMPLES:
            continue
        lead = group.agents[0]
        epochs = params.agents[lead].num_epochs or params.rl.num_epochs
        yield StageForecast(
            iteration=state.iteration,
            stage="train",
            name=group.name,
            agent=lead,
            tuned=True,
            expected=Workload(trained=epochs * expected.tokens).rounded(),
            most=Workload(trained=epochs * most.tokens).rounded(),
        )


def _imitates(state: RunState) -> bool:
    """True if agents train by imitation in this iteration rather than on preference pairs."""
    if state.params.trainer in ("malt", "ei"):
        warm_up = state.params.malt.num_initial_ei_iterations
        return state.params.trainer == "ei" or state.iteration < warm_up
    # A trainer of one's own imitates if no agent ever gives replies that could be compared.
    branching, protocol = state.trainer.branching, state.protocol
    turns = product(range(len(protocol.agents)), range(protocol.max_message_rounds))
    game = key(state.params.seed)  # of any game: it is enough that replies can be compared in one
    return all(
        branching(state.trainer_state, (Turn(agent, number, game),)) == 1 for agent, number in turns
    )


def _sum(examples: Iterable[_Examples]) -> _Examples:
    return _Examples(*map(fsum, zip(*examples, strict=True)))


def _examples(trees: _StageTrees, assumed: Assumptions) -> list[_Examples]:
    """`[A]` the training examples that the stage yields for each agent."""
    state = trees.state
    by_agent: list[list[_Examples]] = [[] for _ in state.params.agents]
    count = _imitated if _imitates(state) else _compared
    for weight, tree in trees.samples:
        points = tuple(decision_points(state, trees.grown, tree, assumed))
        game = trees.grown.forest[tree].key
        for agent in trained_agents(state.groups):
            group = group_of(state.groups, agent)
            # A training that is skipped leaves no earlier model, and so every tree to the next one.
            if not (assumed.is_most or is_learnt_from(state.params, group, agent, game)):
                continue
            decisions = [point for point in points if point.agent == agent]
            examples = count(state, agent, decisions, assumed)
            by_agent[agent].append(_Examples(*(weight * value for value in examples)))
    return [_sum(tree_examples) for tree_examples in by_agent]


def _compared(
    state: RunState, agent: int, points: Sequence[DecisionPoints], assumed: Assumptions
) -> _Examples:
    """The preference pairs of an agent in a tree: a prompt and two replies each."""
    malt = state.params.malt
    rule = state.params.agents[agent].pair_selection_method or malt.pair_selection_method
    reply = assumed.tokens(state.params.agents[agent])
    of_points = []
    for point in points:
        pairs = point.k * (point.k - 1) // 2
        if rule != "all":
            pairs = min(pairs, 1)
        number = pairs * point.number * assumed.selected
        of_points.append(_Examples(number, number * (point.prompt + 2 * reply)))
    total = _sum(of_points)
    limit = malt.max_pairs_per_datapoint
    if limit is not None and total.number > limit:
        return _Examples(limit, total.tokens * limit / total.number)
    return total


def _imitated(
    state: RunState, agent: int, points: Sequence[DecisionPoints], assumed: Assumptions
) -> _Examples:
    """The replies of an agent that it imitates: a prompt and a reply each."""
    params, protocol = state.params, state.protocol
    share = assumed.selected
    if params.ei.rollout_selection_method == "weighted_sampling":
        share = params.ei.weighting_sample_size_factor
    if protocol.is_verifier(agent):
        replaced = replacement_of(params)(state.iteration)
        share = replaced + (1 - replaced) * share
    reply = assumed.tokens(params.agents[agent])
    return _sum(
        _Examples(point.number * share, point.number * share * (point.prompt + reply))
        for point in points
    )
