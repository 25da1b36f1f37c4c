"""One walk through a grown forest: the counts that its metrics are made of."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Utterance
from nip_fn.trees.rollouts import GameWeights, Rollout, leaf_games, leaf_probabilities
from nip_fn.trees.tree import Tree, replies_in


class ForestStats(NamedTuple):
    """The games and replies of a forest.

    games: one for each leaf, tree by tree.
    weights: of the games.
    num_nodes: the nodes of all trees, roots included.
    replies: of each agent that gave any, each once however many siblings share it.
    turns: for each agent, the nodes at which it was asked.
    positions: for each agent and round, the nodes at which it gave two replies or more with words.
    """

    games: tuple[Rollout, ...]
    weights: tuple[float, ...]
    num_nodes: int
    replies: Mapping[int, Sequence[Utterance]]
    turns: Mapping[int, int]
    positions: Mapping[tuple[int, int], int]


def forest_stats(
    datapoints: Sequence[Datapoint], trees: Sequence[Tree], weigh: GameWeights = leaf_probabilities
) -> ForestStats:
    """The counts of a forest whose trees are about these datapoints."""
    replies: defaultdict[int, list[Utterance]] = defaultdict(list)
    turns: Counter[int] = Counter()
    positions: Counter[tuple[int, int]] = Counter()
    for tree in trees:
        words: Counter[tuple[int, int]] = Counter()  # (node, agent) -> replies with words
        for parent, said in replies_in(tree):
            replies[said.agent].append(said)
            # Adding False makes the entry all the same: an agent that was asked and wrote nothing
            # has had its turn, which the next line counts.
            words[parent, said.agent] += bool(said.raw.strip())
        turns.update(agent for _, agent in words)
        depths = tree.depth_N.tolist()
        positions.update((agent, depths[node]) for (node, agent), num in words.items() if num >= 2)
    return ForestStats(
        games=tuple(
            game for tree in trees for game in leaf_games(tree, datapoints[tree.datapoint])
        ),
        weights=tuple(weight for tree in trees for weight in weigh(tree)),
        num_nodes=sum(tree.num_nodes for tree in trees),
        replies=replies,
        turns=turns,
        positions=positions,
    )
