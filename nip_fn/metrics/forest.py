"""One walk through a grown forest: all that its measures are made of."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import fsum
from typing import NamedTuple

from nip_fn.game.decision import Decision
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import End
from nip_fn.trees.grow import Node

Rewards = tuple[tuple[float, ...], ...]  # [rounds, A] received on the way from the root


class Game(NamedTuple):
    """One game, from the root of a tree to one of its leaves."""

    tree: int
    end: End
    decision: Decision | None  # in which it ended; None where it ended otherwise
    rounds: int
    reward: tuple[float, ...]  # [A] in all rounds together


class ForestStats(NamedTuple):
    """What there is in a forest.

    games: one for each leaf, tree by tree.
    ends: for each tree and depth, how many nodes lie there or above: the breadth-first index at
          which the nodes of the next depth begin.
    said: the replies of each agent that gave any, each once however many siblings share it.
    turns: for each agent, at how many nodes it was asked.
    positions: for each agent and round, at how many nodes it gave two replies or more with words.
    """

    games: tuple[Game, ...]
    ends: tuple[tuple[int, ...], ...]
    said: Mapping[int, Sequence[Utterance]]
    turns: Mapping[int, int]
    positions: Mapping[tuple[int, int], int]  # (agent, round) -> nodes

    @property
    def num_nodes(self) -> int:
        """The nodes of all trees, roots included."""
        return sum(of_tree[-1] for of_tree in self.ends)

    def round_at(self, tree: int, node: int) -> int:
        """How many rounds have been played at a node, given by its index in `flatten`'s tree."""
        return bisect_right(self.ends[tree], node)


def forest_stats(forest: Sequence[Node]) -> ForestStats:
    """The survey of a forest, breadth first, each node visited once."""
    games: list[Game] = []
    ends: list[tuple[int, ...]] = []
    said: defaultdict[int, list[Utterance]] = defaultdict(list)
    turns: Counter[int] = Counter()
    positions: Counter[tuple[int, int]] = Counter()
    for tree, root in enumerate(forest):
        widths: list[int] = []
        level: list[tuple[Node, Rewards]] = [(root, (root.reward,))]  # the nodes of one depth
        while level:
            depth = len(widths)
            widths.append(len(level))
            below: list[tuple[Node, Rewards]] = []
            for node, rewards in level:
                if node.children:
                    below += [(child, (*rewards, child.reward)) for child in node.children]
                    replies = _replies(node)
                    for reply in replies:
                        said[reply.agent].append(reply)
                    turns.update({reply.agent for reply in replies})
                    for agent in _choosers(replies):
                        positions[agent, depth] += 1
                else:
                    reward = tuple(map(fsum, zip(*rewards, strict=True)))
                    games.append(Game(tree, node.end, decision_of(node), depth, reward))
            level = below
        ends.append(tuple(accumulate(widths)))
    return ForestStats(tuple(games), tuple(ends), said, turns, positions)


def decision_of(leaf: Node) -> Decision | None:
    """The decision in which the game ended; None where it ended otherwise."""
    if leaf.end != "decided":
        return None
    return next((said.decision for said in leaf.turn if said.decision is not None), None)


def _replies(node: Node) -> list[Utterance]:
    """The replies that led to the node's children, each once however many siblings share it.

    A node without slots, made by hand, is taken to have had one for each child.
    """
    if node.slots:
        return [slot.said for slot in node.slots if slot.said is not None]
    return [said for child in node.children for said in child.turn]


def _choosers(replies: Sequence[Utterance]) -> list[int]:
    """The agents with two or more replies that hold words, as `pairs.positions` has it."""
    words = [said.agent for said in replies if said.raw.strip()]
    return [agent for agent in set(words) if words.count(agent) >= 2]
