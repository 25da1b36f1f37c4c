"""Preference pairs: which of two sibling replies an agent should prefer, as composable selectors.

A selector takes pairs and returns pairs.  A *rule* adds the pairs that it proposes among siblings,
a *filter* (see `filters`) only leaves some out, and `chain` composes them:

    select = chain(interval(0.5), margin(0.1), dedupe(), one_per_node(), cap(64))
    pairs = select((), candidates(trees, protocol, mean_children), key)

`chain` is associative and `chain()` is the identity, because every selector gets the same key and
folds its own name into it: how a chain was put together cannot change what it draws.

Letters for dimensions: N nodes, A agents, C replies of one agent at one node.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import fsum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key
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


class Siblings(NamedTuple):
    """The replies that an agent gave at one node, two or more of them with words.

    parent: the node.
    agent: the agent.
    children_C: `[C]` the first node that each reply led to.
    value_C: `[C]` the agent's expected reward after each reply.
    usable_C: `[C]` true if the reply was a message or a decision, not invalid.
    bounds: the least and the most that the agent can receive in a game.
    tolerance: values that differ by no more are equal, and so is a value to a threshold.
    """

    parent: int
    agent: int
    children_C: NDArray[np.int64]
    value_C: Values
    usable_C: NDArray[np.bool_]
    bounds: tuple[float, float] = (-1.0, 1.0)
    tolerance: float = TOLERANCE


class Position(NamedTuple):
    """A node at which an agent gave two replies or more that have words.

    parent: the node.
    agent: the agent.
    nodes: the nodes that each reply led to; several where siblings share it.
    usable_C: `[C]` true if the reply was a message or a decision, not invalid.
    """

    parent: int
    agent: int
    nodes: tuple[tuple[int, ...], ...]
    usable_C: NDArray[np.bool_]


class Candidates(NamedTuple):
    """All that selectors choose from.

    trees: the grown trees; `Pair.tree` is an index into them.
    protocol: the game.
    values: `[N, A]` expected rewards for each tree.
    agents: the agents to select for.
    excluded: (tree, agent) where the agent is not selected for after all.
    positions: of each tree, where the agents have siblings; () to look for them each time.
    """

    trees: tuple[Tree, ...]
    protocol: Protocol
    values: tuple[Values, ...]
    agents: tuple[int, ...]
    # Where an agent did not play its own part, the rewards that others got in the tree still count.
    excluded: frozenset[tuple[int, int]] = frozenset()
    # Which replies stand side by side does not depend on values, by which re-estimates differ.
    positions: tuple[tuple[Position, ...], ...] = ()

    def agents_of(self, tree: int) -> tuple[int, ...]:
        """The agents to select for in a tree."""
        return tuple(agent for agent in self.agents if (tree, agent) not in self.excluded)

    def __repr__(self) -> str:
        """The candidates in a line."""
        return f"Candidates({self.protocol.name}: {len(self.trees)} trees, agents {self.agents})"

    def utterance(self, pair: Pair, node: int) -> Utterance:
        """The reply of the pair's agent on the way to `node`."""
        turn = self.trees[pair.tree].utterances_N[node]
        return next(said for said in turn if said.agent == pair.agent)

    def equal_within(self, agent: int) -> float:
        """The difference up to which two values of the agent are equal."""
        return _slack(self.protocol.reward_bounds(agent))


Pairs = tuple[Pair, ...]
Ranks = tuple[tuple[int, int], ...]  # (chosen, rejected) ranks among siblings
Rule = Callable[[Siblings], Ranks]
Selector = Callable[[Pairs, Candidates, Key], Pairs]


def _slack(bounds: tuple[float, float]) -> float:
    # Of the greatest amount and not of the range: rounding errors are in proportion to it, even
    # where all that an agent can receive is one and the same.
    return TOLERANCE * max(map(abs, bounds))


def candidates(
    trees: Sequence[Tree],
    protocol: Protocol,
    backup: Backup = mean_children,
    *,
    agents: tuple[int, ...] | None = None,
) -> Candidates:
    """The replies in `trees` with their expected rewards, ready for selectors.

    Args:
        trees: The grown trees.
        protocol: The game that they are trees of.
        backup: The expected rewards of a tree's nodes.
        agents: The agents to select for; all by default.
    """
    every = tuple(range(len(protocol.agents))) if agents is None else agents
    values, places = tuple(map(backup, trees)), tuple(map(positions_of, trees))
    return Candidates(tuple(trees), protocol, values, every, positions=places)


def positions_of(tree: Tree) -> tuple[Position, ...]:
    """The positions of all agents, node by node.

    A reply without words cannot be compared: nothing in it could be preferred or avoided.
    """
    acted, reply = tree.acted_NA.tolist(), tree.reply_NA.tolist()
    found = []
    for parent, children in enumerate(children_of(tree)):
        for agent in range(tree.num_agents):
            sharing: dict[int, list[int]] = {}
            for child in children:
                if acted[child][agent]:
                    sharing.setdefault(reply[child][agent], []).append(child)
            # Where several agents move at once, siblings may differ in another agent's words only.
            if len(sharing) >= 2:
                nodes = tuple(map(tuple, sharing.values()))
                firsts = [own[0] for own in nodes]
                found.append(Position(parent, agent, nodes, tree.usable_NA[firsts, agent]))
    return tuple(found)


def decision_points(
    tree: Tree,
    value_NA: Values,
    protocol: Protocol,
    agents: Sequence[int],
    positions: Sequence[Position] | None = None,
) -> Iterator[Siblings]:
    """The siblings of every node at which an agent has two comparable replies, node by node.

    Args:
        tree: The grown tree.
        value_NA: Its expected rewards.
        protocol: The game.
        agents: The agents to look at.
        positions: Those of the tree, if they are known.
    """
    bounds = {agent: protocol.reward_bounds(agent) for agent in agents}
    slack = {agent: _slack(own) for agent, own in bounds.items()}
    values = value_NA.tolist()
    for at in positions_of(tree) if positions is None else positions:
        if at.agent in bounds:
            # What the other agents said in the same round is chance from this agent's point of
            # view, so it is averaged out as chance further down the tree is: the value of a reply
            # is the mean over the siblings that share it.  Exactly rounded, so that the order of
            # the other agents' replies cannot change it.
            shared = ([values[node][at.agent] for node in nodes] for nodes in at.nodes)
            yield Siblings(
                parent=at.parent,
                agent=at.agent,
                # The first node stands for all that share the reply.
                children_C=np.array([nodes[0] for nodes in at.nodes], dtype=np.int64),
                value_C=np.array([fsum(own) / len(own) for own in shared]),
                usable_C=at.usable_C,
                bounds=bounds[at.agent],
                tolerance=slack[at.agent],
            )


def chain(*selectors: Selector) -> Selector:
    """The selectors one after the other, each given the pairs that the last one left.

    Associative; `chain()` returns the pairs that it is given.
    """

    def chained(pairs: Pairs, among: Candidates, key: Key) -> Pairs:
        for selector in selectors:
            pairs = selector(pairs, among, key)
        return pairs

    return chained


def by_agent(selector_of: Callable[[int], Selector]) -> Selector:
    """Each agent's pairs by a selector of its own, node by node as if one had selected them all."""

    def selected(pairs: Pairs, among: Candidates, key: Key) -> Pairs:
        places = {agent: place for place, agent in enumerate(among.agents)}
        found = (
            pair
            for agent in among.agents
            for pair in selector_of(agent)(
                tuple(pair for pair in pairs if pair.agent == agent),
                among._replace(agents=(agent,)),
                key,
            )
        )
        return tuple(sorted(found, key=lambda pair: (pair.tree, pair.parent, places[pair.agent])))

    return selected


def propose(rule: Rule) -> Selector:
    """The selector that adds the pairs which `rule` proposes at each node, in the order of nodes.

    An unusable reply is never chosen; it may be rejected.
    """

    def proposed(pairs: Pairs, among: Candidates, key: Key) -> Pairs:
        return (
            *pairs,
            *(
                pair
                for index, (tree, value_NA) in enumerate(
                    zip(among.trees, among.values, strict=True)
                )
                for at in decision_points(
                    tree,
                    value_NA,
                    among.protocol,
                    among.agents_of(index),
                    among.positions[index] if among.positions else None,
                )
                for pair in _pairs_at(index, at, rule)
            ),
        )

    return proposed


def _pairs_at(tree: int, at: Siblings, rule: Rule) -> Pairs:
    children, values, usable = at.children_C.tolist(), at.value_C.tolist(), at.usable_C.tolist()
    return tuple(
        Pair(
            tree=tree,
            parent=at.parent,
            agent=at.agent,
            chosen=children[chosen],
            rejected=children[rejected],
            chosen_value=values[chosen],
            rejected_value=values[rejected],
        )
        for chosen, rejected in rule(at)
        # Whatever a rule proposes: a model that is trained to prefer an invalid reply learns to
        # give one.
        if usable[chosen]
    )


# ------------------------------------------------------------------------------------------- rules


def interval(proportion: float) -> Selector:
    """Every two replies whose values differ by more than a share of the agent's reward range."""
    # A share of the range and not an amount, so that one setting suits agents whose rewards differ
    # in scale.
    return propose(lambda at: farther_apart(at, proportion * (at.bounds[1] - at.bounds[0])))


def every() -> Selector:
    """Every two replies whose values differ."""
    return propose(lambda at: farther_apart(at, 0.0))


def about(mid_point: float | None = None) -> Selector:
    """Each reply of at least that value with each one below it; NaN is on neither side.

    MALT's own rule ("positive_negative").  The default is half-way between the least and the most
    that the agent can receive, penalties included: a penalty that moves it past what decisions are
    worth leaves all replies on one side (`about_mean` has none of that).
    """

    def rule(at: Siblings) -> Ranks:
        # The mid-point itself counts as positive, as in the paper and in the *nip* library.
        return _on_two_sides(at, sum(at.bounds) / 2 if mid_point is None else mid_point)

    return propose(rule)


def about_mean() -> Selector:
    """Each reply of at least the mean of its siblings with each one below; NaN is left out.

    The baseline of a group of replies to one prompt, as in GRPO (Shao et al., "DeepSeekMath",
    2024).  It looks at no bounds, so that no penalty can shift it, and there is a pair wherever two
    usable replies differ in value.
    """

    def rule(at: Siblings) -> Ranks:
        known = at.value_C[~np.isnan(at.value_C)].tolist()
        return _on_two_sides(at, fsum(known) / len(known)) if known else ()

    return propose(rule)


def _on_two_sides(at: Siblings, middle: float) -> Ranks:
    # A comparison with NaN is false, so a value that is not known is on neither side.
    values, least = at.value_C.tolist(), middle - at.tolerance
    positive = [rank for rank, value in enumerate(values) if value >= least]
    negative = [rank for rank, value in enumerate(values) if value < least]
    return tuple((p, n) for p in positive for n in negative)


def best_worst() -> Selector:
    """The best usable reply with the worst one; all such pairs if several are equally good."""
    return propose(_best_worst)


def farther_apart(at: Siblings, threshold: float) -> Ranks:
    """All (higher, lower) ranks whose values differ by strictly more than `threshold`."""
    # Strictly more: at a threshold of 0, as `every` has it, equal values are no preference.  A
    # comparison with NaN is false, so a value that is not known is in no pair.
    values = at.value_C.tolist()
    return tuple(
        (i, j) if values[i] > values[j] else (j, i)
        for i, j in combinations(range(len(values)), 2)
        if abs(values[i] - values[j]) > threshold + at.tolerance
    )


def _best_worst(at: Siblings) -> Ranks:
    known = np.flatnonzero(~np.isnan(at.value_C))
    usable = known[at.usable_C[known]]
    if not len(usable):
        return ()
    # The best must be usable, the worst need not be.
    most, least = at.value_C[usable].max(), at.value_C[known].min()
    return tuple(
        (int(best), int(worst))
        for best in usable[at.value_C[usable] >= most - at.tolerance]
        for worst in known[at.value_C[known] <= least + at.tolerance]
        if most - least > at.tolerance
    )
