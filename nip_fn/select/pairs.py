"""Preference pairs: which of two sibling replies an agent should prefer, as composable selectors.

A selector adds pairs to those that it is given, or leaves some of them out.  A *rule* adds the
pairs that it proposes at each decision point, a *filter* (see `filters`) only leaves some out, and
`chain` composes them:

    select = chain(interval(0.5), margin(0.1), dedupe(), one_per_node(), cap(64))
    pairs = select(candidates(trees, protocol, mean_children), key)

`chain` is associative and `chain()` is the identity, because every selector gets the same key and
folds its own name into it: how a chain was put together cannot change what it draws.

Letters for dimensions: N nodes, A agents, C replies of one agent at one node.
"""

import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import fsum, inf, isnan
from typing import NamedTuple

import msgspec

from nip_fn.game.bounds import reward_bounds
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in
from nip_fn.trees.backup import Backup, Values, mean_children
from nip_fn.trees.tree import Tree, children_of

# Values are rounded means of rounded rewards, so what is equal may differ in its last bits, about
# 1e-16 of the greatest reward: -5/9 comes out one bit apart by two ways of adding thirds up.
# Values that do differ are farther apart: with k replies at each of d rounds and rewards in steps
# of s, by s / k^d at least.  A billionth of a thousandth lies between.  The alternative, sums of
# fractions, would only hold as long as rewards of one's own were fractions, too.
TOLERANCE = 1e-12


# Nodes and not texts: a trainer builds the row on the very chat that both replies were given to,
# and a viewer marks the places in the tree.
class Pair(msgspec.Struct, frozen=True, array_like=True):
    """Two replies of one agent at one node, of which the agent should prefer the first.

    tree, parent: the index of the tree, and in it of the node at which both were given.
    chosen, rejected: the nodes that they led to (the first, where siblings share a reply).
    chosen_value, rejected_value: the agent's expected reward after each.
    """

    tree: int
    parent: int
    agent: int
    chosen: int
    rejected: int
    chosen_value: float
    rejected_value: float


class DecisionPoint(NamedTuple):
    """A node at which an agent gave replies that have words, two or more unless fewer will do.

    tree, parent: the index of the tree, and in it of the node.
    agent: the agent.
    bounds: the least and the most that the agent can receive in a game.
    nodes_C: `[C]` the nodes that each reply led to; several where siblings share it.
    usable_C: `[C]` true if the reply was a message or a decision, not invalid.
    value_C: `[C]` the agent's expected reward after each reply.
    """

    tree: int
    parent: int
    agent: int
    bounds: tuple[float, float]
    nodes_C: tuple[tuple[int, ...], ...]
    usable_C: tuple[bool, ...]
    value_C: tuple[float, ...]

    @property
    def slack(self) -> float:
        """The difference up to which two values are equal, and a value equals a threshold."""
        return _slack(self.bounds)


class Candidates(NamedTuple):
    """All that selectors choose from.

    trees: the grown trees; `Pair.tree` and `DecisionPoint.tree` are indices into them.
    protocol: the game.
    values: `[N, A]` expected rewards for each tree.
    points: the decision points of the agents to select for, tree by tree and node by node.
    """

    trees: tuple[Tree, ...]
    protocol: Protocol
    values: tuple[Values, ...]
    points: tuple[DecisionPoint, ...]

    def __repr__(self) -> str:
        """The candidates in a line."""
        counts = f"{len(self.trees)} trees, {len(self.points)} decision points"
        return f"Candidates({self.protocol.name}: {counts})"

    def utterance(self, pair: "Pair | DecisionPoint", node: int) -> Utterance:
        """The reply of the pair's agent on the way to `node`."""
        turn = self.trees[pair.tree].utterances_N[node]
        return next(utterance for utterance in turn if utterance.agent == pair.agent)

    def replies(self, point: DecisionPoint) -> tuple[Utterance, ...]:
        """`[C]` the replies at a decision point."""
        return tuple(self.utterance(point, nodes[0]) for nodes in point.nodes_C)

    def key_of(self, pair: "Pair | DecisionPoint", key: Key) -> Key:
        """The key of a draw about the agent at the node, whatever other branches hold."""
        # By path, not by the number of the node, which depends on the size of other branches.
        path = self.trees[pair.tree].path_N[pair.parent]
        return fold_in(key, pair.tree, *path, "agent", pair.agent)

    def equal_within(self, agent: int) -> float:
        """The difference up to which two values of the agent are equal."""
        return _slack(reward_bounds(self.protocol, agent))

    def with_values(self, values: Sequence[Values]) -> "Candidates":
        """The same candidates by other expected rewards."""
        rows = [value_NA.tolist() for value_NA in values]
        # By position: `_replace` takes twice as long, and there may be a million points.
        points = (
            DecisionPoint(*point[:-1], _values_of(point.nodes_C, rows[point.tree], point.agent))
            for point in self.points
        )
        return self._replace(values=tuple(values), points=tuple(points))


Pairs = tuple[Pair, ...]
Ranks = tuple[tuple[int, int], ...]  # (chosen, rejected) ranks among the C replies
# The key is the selector's: a rule that draws folds the point into it (`Candidates.key_of`).
Rule = Callable[[DecisionPoint, Candidates, Key], Ranks]


class Selector(typing.Protocol):
    """A function of candidates, a key and the pairs so far, that returns the pairs from then on."""

    def __call__(self, among: Candidates, key: Key, pairs: Pairs = (), /) -> Pairs:
        """The pairs of `pairs` and `among` that are selected; the key is consumed."""


@lru_cache(maxsize=256)
def _slack(bounds: tuple[float, float]) -> float:
    # Of the greatest amount and not of the range: rounding errors are in proportion to it, even
    # where all that an agent can receive is one and the same.
    return TOLERANCE * max(map(abs, bounds))


def candidates(
    trees: Sequence[Tree],
    protocol: Protocol,
    backup: Backup = mean_children,
    *,
    agents: Sequence[int] | None = None,
    excluded: Collection[tuple[int, int]] = (),
    least: int = 2,
) -> Candidates:
    """The decision points in `trees` with their expected rewards, ready for selectors.

    Args:
        trees: The grown trees.
        protocol: The game that they are trees of.
        backup: The expected rewards of a tree's nodes.
        agents: The agents to select for; all by default.
        excluded: (tree, agent) where an agent is not selected for after all.
        least: The fewest replies of a decision point.
    """
    # Where an agent did not play its own part, the rewards that others got in the tree still count.
    values = tuple(map(backup, trees))
    points = (
        point
        for index, (tree, value_NA) in enumerate(zip(trees, values, strict=True))
        for point in decision_points(tree, value_NA, protocol, agents, index=index, least=least)
        if (index, point.agent) not in excluded
    )
    return Candidates(tuple(trees), protocol, values, tuple(points))


def decision_points(
    tree: Tree,
    value_NA: Values,
    protocol: Protocol,
    agents: Sequence[int] | None = None,
    *,
    index: int = 0,
    least: int = 2,
) -> Iterator[DecisionPoint]:
    """The decision points of a tree, node by node and at each in the order of agents.

    A reply without words cannot be compared: nothing in it could be preferred or avoided.

    Args:
        tree: The grown tree.
        value_NA: Its expected rewards.
        protocol: The game.
        agents: The agents to look at; all by default.
        index: The tree's, among the candidates.
        least: The fewest replies of a decision point.
    """
    acted, reply = tree.acted_NA.tolist(), tree.reply_NA.tolist()
    usable, values = tree.usable_NA.tolist(), value_NA.tolist()
    agents = range(tree.num_agents) if agents is None else agents
    bounds = {agent: reward_bounds(protocol, agent) for agent in agents}
    for parent, children in enumerate(children_of(tree)):
        for agent in agents if len(children) >= least else ():
            # Where several agents move at once, siblings may differ in another agent's words only.
            sharing: dict[int, list[int]] = {}
            for child in children:
                if acted[child][agent]:
                    sharing.setdefault(reply[child][agent], []).append(child)
            if len(sharing) >= least:
                nodes_C = tuple(map(tuple, sharing.values()))
                yield DecisionPoint(
                    tree=index,
                    parent=parent,
                    agent=agent,
                    bounds=bounds[agent],
                    nodes_C=nodes_C,
                    usable_C=tuple(usable[nodes[0]][agent] for nodes in nodes_C),
                    value_C=_values_of(nodes_C, values, agent),
                )


def _values_of(
    nodes_C: tuple[tuple[int, ...], ...], values: list[list[float]], agent: int
) -> tuple[float, ...]:
    # What the other agents said in the same round is chance from this agent's point of view, so it
    # is averaged out as chance further down the tree is: the value of a reply is the mean over the
    # siblings that share it.  Exactly rounded, so that the order of the other agents' replies
    # cannot change it.
    return tuple(
        fsum([values[node][agent] for node in nodes]) / len(nodes)
        if len(nodes) > 1
        else values[nodes[0]][agent]
        for nodes in nodes_C
    )


def chain(*selectors: Selector) -> Selector:
    """The selectors one after the other, each given the pairs that the last one left.

    Associative; `chain()` returns the pairs that it is given.
    """

    def chained(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
        for selector in selectors:
            pairs = selector(among, key, pairs)
        return pairs

    return chained


def by_agent(selector_of: Callable[[int], Selector]) -> Selector:
    """Each agent's pairs by a selector of its own, node by node as if one had selected them all."""

    def selected(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
        agents = {point.agent for point in among.points} | {pair.agent for pair in pairs}
        by_agents = (
            pair
            for agent in agents
            for pair in selector_of(agent)(
                among._replace(points=tuple(p for p in among.points if p.agent == agent)),
                key,
                tuple(pair for pair in pairs if pair.agent == agent),
            )
        )
        return tuple(sorted(by_agents, key=lambda pair: (pair.tree, pair.parent, pair.agent)))

    return selected


def propose(rule: Rule) -> Selector:
    """The selector that adds the pairs which `rule` proposes at each decision point.

    An unusable reply is never chosen; it may be rejected.
    """

    def proposed(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
        return (
            *pairs,
            *(pair for point in among.points for pair in _pairs_at(point, rule(point, among, key))),
        )

    return proposed


def _pairs_at(point: DecisionPoint, ranks: Ranks) -> Iterator[Pair]:
    for chosen, rejected in ranks:
        # A model that is trained to prefer an invalid reply learns to give one.
        if point.usable_C[chosen]:
            # The first node stands for all that share the reply.
            yield Pair(
                tree=point.tree,
                parent=point.parent,
                agent=point.agent,
                chosen=point.nodes_C[chosen][0],
                rejected=point.nodes_C[rejected][0],
                chosen_value=point.value_C[chosen],
                rejected_value=point.value_C[rejected],
            )


# ------------------------------------------------------------------------------------------- rules


def interval(proportion: float) -> Selector:
    """Every two replies whose values differ by more than a share of the agent's reward range."""
    # A share of the range and not an amount, so that one setting suits agents whose rewards differ
    # in scale.
    return propose(
        lambda point, among, key: farther_apart(
            point, proportion * (point.bounds[1] - point.bounds[0])
        )
    )


def every() -> Selector:
    """Every two replies whose values differ."""
    return propose(lambda point, among, key: farther_apart(point, 0.0))


def about(mid_point: float | None = None) -> Selector:
    """Each reply of at least that value with each one below it; NaN is on neither side.

    MALT's own rule ("positive_negative").  The default is half-way between the least and the most
    that the agent can receive, penalties included: a penalty that moves it past what decisions are
    worth leaves all replies on one side (`about_mean` has none of that).
    """

    def rule(point: DecisionPoint, among: Candidates, key: Key) -> Ranks:
        # The mid-point itself counts as positive, as in the paper and in the *nip* library.
        return _on_two_sides(point, sum(point.bounds) / 2 if mid_point is None else mid_point)

    return propose(rule)


def about_mean() -> Selector:
    """Each reply of at least the mean of its siblings with each one below; NaN is left out.

    The baseline of a group of replies to one prompt, as in GRPO (Shao et al., "DeepSeekMath",
    2024).  It looks at no bounds, so that no penalty can shift it, and there is a pair wherever two
    usable replies differ in value.
    """

    def rule(point: DecisionPoint, among: Candidates, key: Key) -> Ranks:
        values = [value for value in point.value_C if not isnan(value)]
        return _on_two_sides(point, fsum(values) / len(values)) if values else ()

    return propose(rule)


def _on_two_sides(point: DecisionPoint, middle: float) -> Ranks:
    # A comparison with NaN is false, so a value that is not known is on neither side.
    least = middle - point.slack
    positive = [rank for rank, value in enumerate(point.value_C) if value >= least]
    negative = [rank for rank, value in enumerate(point.value_C) if value < least]
    return tuple((p, n) for p in positive for n in negative)


def best_worst() -> Selector:
    """The best usable reply with the worst one; all such pairs if several are equally good."""
    return propose(_best_worst)


def farther_apart(point: DecisionPoint, threshold: float) -> Ranks:
    """All (higher, lower) ranks whose values differ by strictly more than `threshold`."""
    # Strictly more: at a threshold of 0, as `every` has it, equal values are no preference.  A
    # comparison with NaN is false, so a value that is not known is in no pair.
    values, least = point.value_C, threshold + point.slack
    return tuple(
        (i, j) if values[i] > values[j] else (j, i)
        for i, j in combinations(range(len(values)), 2)
        if abs(values[i] - values[j]) > least
    )


def _best_worst(point: DecisionPoint, among: Candidates, key: Key) -> Ranks:
    values, slack = point.value_C, point.slack
    ranks = [rank for rank, value in enumerate(values) if not isnan(value)]
    # The best must be usable, the worst need not be.
    usable = [rank for rank in ranks if point.usable_C[rank]]
    most = max((values[rank] for rank in usable), default=-inf)
    least = min((values[rank] for rank in ranks), default=inf)
    if most - least <= slack:
        return ()
    best = [rank for rank in usable if values[rank] >= most - slack]
    worst = [rank for rank in ranks if values[rank] <= least + slack]
    return tuple((chosen, rejected) for chosen in best for rejected in worst)
