"""One walk through each grown tree: the counts that the metrics of a forest are made of."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import Decision
from nip_fn.game.episode import Utterance, was_empty_at_limit
from nip_fn.game.protocol import Status
from nip_fn.trees.rollouts import Rollout, leaf_games, leaf_probabilities
from nip_fn.trees.tree import Tree, replies_in


# Without the words: they are unpacked tree by tree, and those of all trees may fit no memory.
class GameEnd(NamedTuple):
    """The end of a game.

    datapoint: the problem and solution that the game was about.
    status: the status of the game.
    decision: the decision that ended it; None if it ended otherwise.
    label: 1 if the solution, or the answer that was written, is right, 0 if it is wrong; None if
        that could not be checked.
    num_rounds: the rounds that were played.
    returns: `[A]` the sum of each agent's rewards, exactly rounded.
    was_cut: true if a reply was cut at its token limit.
    """

    datapoint: Datapoint
    status: Status
    decision: Decision | None
    label: int | None
    num_rounds: int
    returns: tuple[float, ...]
    was_cut: bool


class Effort(NamedTuple):
    """Sums over an agent's replies, each taken once however many siblings share it.

    Tokens are those of all attempts; `invalid` replies stayed unusable, those of `token_limit` were
    cut there, and those `empty_at_limit` before a word.  Of its answers, those that are wrong are
    neither `right` nor `unchecked`.
    """

    replies: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    invalid: int = 0
    token_limit: int = 0
    empty_at_limit: int = 0
    answers: int = 0
    right: int = 0
    unchecked: int = 0


class ForestStats(NamedTuple):
    """The games and replies of a forest, which are those of its trees together.

    games: one for each leaf, tree by tree.
    weights: of the games.
    num_nodes: the nodes of all trees, roots included.
    efforts: of each agent that gave a reply.
    requests: for each agent, one for each attempt at any of its replies at a node.
    decision_points: for each agent and round, the nodes at which it gave two replies or more with
        words.
    """

    games: tuple[GameEnd, ...]
    weights: tuple[float, ...]
    num_nodes: int
    efforts: Mapping[int, Effort]
    requests: Mapping[int, int]
    decision_points: Mapping[tuple[int, int], int]


def forest_stats(datapoints: Sequence[Datapoint], trees: Sequence[Tree]) -> ForestStats:
    """The counts of a forest whose trees are about these datapoints."""
    return total_stats([tree_stats(datapoints[tree.datapoint_index], tree) for tree in trees])


def total_stats(stats: Sequence[ForestStats]) -> ForestStats:
    """The counts of a forest from those of its trees, or of its parts."""
    efforts: defaultdict[int, list[Effort]] = defaultdict(list)
    requests: Counter[int] = Counter()
    decision_points: Counter[tuple[int, int]] = Counter()
    for part in stats:
        for agent, effort in part.efforts.items():
            efforts[agent].append(effort)
        requests.update(part.requests)
        decision_points.update(part.decision_points)
    return ForestStats(
        games=tuple(chain.from_iterable(part.games for part in stats)),
        weights=tuple(chain.from_iterable(part.weights for part in stats)),
        num_nodes=sum(part.num_nodes for part in stats),
        efforts={agent: total_effort(agent_efforts) for agent, agent_efforts in efforts.items()},
        requests=requests,
        decision_points=decision_points,
    )


def tree_stats(datapoint: Datapoint, tree: Tree) -> ForestStats:
    """The counts of one tree about the datapoint."""
    efforts: dict[int, list[Effort]] = {}
    words: dict[tuple[int, int], int] = {}  # (node, agent) -> replies with words
    attempts: dict[tuple[int, int], int] = {}  # (node, agent) -> the most at a reply
    for parent, utterance in replies_in(tree):
        turn = (parent, utterance.agent)
        efforts.setdefault(utterance.agent, []).append(_effort(utterance))
        words[turn] = words.get(turn, 0) + bool(utterance.raw.strip())
        attempts[turn] = max(attempts.get(turn, 0), utterance.attempts)
    requests: Counter[int] = Counter()
    for (_, agent), number in attempts.items():
        requests[agent] += number
    depths = tree.depth_N.tolist()
    return ForestStats(
        games=tuple(map(_ending, leaf_games(tree, datapoint))),
        weights=leaf_probabilities(tree),
        num_nodes=tree.num_nodes,
        efforts={agent: total_effort(agent_efforts) for agent, agent_efforts in efforts.items()},
        requests=requests,
        decision_points=Counter(
            (agent, depths[node]) for (node, agent), number in words.items() if number >= 2
        ),
    )


def total_effort(efforts: Iterable[Effort]) -> Effort:
    """The sum of efforts."""
    return Effort(*map(sum, zip(*efforts, strict=True)))


def _effort(utterance: Utterance) -> Effort:
    return Effort(
        1,
        utterance.attempts,
        utterance.prompt_tokens,
        utterance.cached_tokens,
        utterance.completion_tokens,
        utterance.error is not None,
        utterance.token_limit,
        was_empty_at_limit(utterance),
        utterance.answer is not None or utterance.label is not None,
        utterance.label == 1,
        utterance.is_unchecked,
    )


def _ending(game: Rollout) -> GameEnd:
    return GameEnd(
        datapoint=game.datapoint,
        status=game.status,
        decision=game.decision,
        label=game.label,
        num_rounds=len(game.rounds),
        returns=game.returns,
        was_cut=game.was_cut,
    )
