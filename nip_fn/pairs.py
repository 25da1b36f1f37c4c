"""Preference pairs: which of two siblings an agent should have preferred to say."""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nip_fn.keys import Key, choice, fold_in
from nip_fn.params import PureTextMaltParameters
from nip_fn.protocols.protocol import Protocol, reward_mid_point
from nip_fn.tree import Tree


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """Two siblings, as node indices of `flatten`'s tree, of which the agent prefers the first."""

    tree: int
    parent: int
    agent: int
    chosen: int
    rejected: int
    chosen_value: float
    rejected_value: float


class Positions(NamedTuple):
    """The nodes at which an agent chose between replies."""

    parent: int
    agent: int
    children_C: NDArray[np.int64]  # [C] those to which its words led, two at least


def positions(tree: Tree, agents: tuple[int, ...]) -> Iterator[Positions]:
    """Where each of the agents has two comparable siblings, in the order of the nodes."""
    order = np.argsort(tree.parent_N, kind="stable")
    starts = np.flatnonzero(np.diff(tree.parent_N[order], prepend=-2))
    for children in np.split(order, starts[1:])[1:]:  # the first group is the root alone
        for agent in agents:
            acted = children[tree.acted_NA[children, agent]]
            if len(acted) >= 2:
                yield Positions(int(tree.parent_N[children[0]]), agent, acted)


def positive_negative(
    values_C: NDArray[np.float64], mid_point: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ranks with value >= mid-point, and those below it; a NaN is in neither."""
    return np.flatnonzero(values_C >= mid_point), np.flatnonzero(values_C < mid_point)


def interval(values_C: NDArray[np.float64], threshold: float) -> tuple[tuple[int, int], ...]:
    """All (higher, lower) ranks whose values differ by strictly more than the threshold."""
    return tuple(
        (i, j) if values_C[i] > values_C[j] else (j, i)
        for i, j in combinations(range(len(values_C)), 2)
        if abs(values_C[i] - values_C[j]) > threshold
    )


def eligible_pairs(
    values_C: NDArray[np.float64], protocol: Protocol, agent: int, malt: PureTextMaltParameters
) -> tuple[tuple[int, int], ...]:
    """All (chosen, rejected) ranks among siblings that the selection method would accept."""
    if malt.pair_selection_method == "positive_negative":
        positive, negative = positive_negative(values_C, reward_mid_point(protocol, agent))
        return tuple((int(p), int(n)) for p in positive for n in negative)
    least, most = protocol.reward_bounds(agent)
    return interval(values_C, malt.interval_threshold_proportion * (most - least))


def select_pairs(
    tree: Tree,
    value_NA: NDArray[np.float64],
    *,
    index: int,
    protocol: Protocol,
    agents: tuple[int, ...],
    malt: PureTextMaltParameters,
    key: Key,
) -> tuple[Pair, ...]:
    """At most one pair for each node and agent, drawn uniformly; `key` is consumed.

    A reply that could not be used is never chosen; it may be rejected, if there are words in it.
    "positive_negative" draws one reply of each kind, "interval" one of the eligible pairs.  The
    draw of a node depends on the key and the node's place alone.
    """
    pairs = []
    for at in positions(tree, agents):
        values = value_NA[at.children_C, at.agent]
        usable = tree.usable_NA[at.children_C, at.agent]
        eligible = tuple(
            pair for pair in eligible_pairs(values, protocol, at.agent, malt) if usable[pair[0]]
        )
        if eligible:
            place_key = fold_in(key, *tree.path_N[at.parent], "agent", at.agent)
            chosen, rejected = eligible[choice(place_key, len(eligible))]
            pairs.append(
                Pair(
                    tree=index,
                    parent=at.parent,
                    agent=at.agent,
                    chosen=int(at.children_C[chosen]),
                    rejected=int(at.children_C[rejected]),
                    chosen_value=float(values[chosen]),
                    rejected_value=float(values[rejected]),
                )
            )
    return tuple(pairs)
