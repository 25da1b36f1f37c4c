"""Preference pairs: which of two replies an agent should have preferred to say.

    eligible_pairs   the pairs of an agent's replies at a node that the method accepts
    select_pairs     the pairs of one tree: what is eligible, wide enough and, where asked,
                     deduplicated; of these one a node and agent, or all
    refine           the pairs of all trees: deduplicated, then limited, then balanced

Every rule takes pairs and returns some of them in the same order.  What is drawn depends on the
keys and on the places of the pairs, never on when a reply arrived.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from math import fsum
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Protocol, reward_mid_point
from nip_fn.keys import Key, fold_in, randint
from nip_fn.trees.tree import Tree

if TYPE_CHECKING:
    from nip_fn.params.training import PureTextMaltParameters


PairSelection = Literal["positive_negative", "interval", "best_worst", "all"]
PairBalance = Literal["none", "decisions", "agents"]

Pairs = tuple["Pair", ...]
Label = TypeVar("Label", bound=Hashable)


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """Two siblings, as node indices of `flatten`'s tree, of which the agent prefers the first."""

    tree: int
    parent: int
    agent: int
    chosen: int
    rejected: int
    chosen_value: float
    rejected_value: float


class Siblings(NamedTuple):
    """The nodes at which an agent chose between replies."""

    parent: int
    agent: int
    children_C: NDArray[np.int64]  # [C] the first that each of its replies led to, two at least
    sharing_C: tuple[tuple[int, ...], ...]  # [C] all that each of them led to


def decision_points(tree: Tree, agents: tuple[int, ...]) -> Iterator[Siblings]:
    """Where each of the agents has two comparable replies, in the order of the nodes."""
    order = np.argsort(tree.parent_N, kind="stable")
    starts = np.flatnonzero(np.diff(tree.parent_N[order], prepend=-2))
    for children in np.split(order, starts[1:])[1:]:  # the first group is the root alone
        for agent in agents:
            acted = children[tree.acted_NA[children, agent]]
            sharing: dict[int, list[int]] = {}
            replies = tree.reply_NA[acted, agent].tolist()
            for child, reply in zip(acted.tolist(), replies, strict=True):
                sharing.setdefault(reply, []).append(child)
            if len(sharing) >= 2:
                firsts = np.array([nodes[0] for nodes in sharing.values()], dtype=np.int64)
                shared = tuple(map(tuple, sharing.values()))
                yield Siblings(int(tree.parent_N[children[0]]), agent, firsts, shared)


def reply_values(value_NA: NDArray[np.float64], at: Siblings) -> NDArray[np.float64]:
    """`[C]` what each reply is worth to its agent: the mean over the siblings that share it.

    Exactly rounded, so the order of the other agents' replies cannot change it.
    """
    firsts: NDArray[np.float64] = value_NA[at.children_C, at.agent]
    if all(len(nodes) == 1 for nodes in at.sharing_C):
        return firsts
    values = (value_NA[list(nodes), at.agent].tolist() for nodes in at.sharing_C)
    return np.array([fsum(own) / len(own) for own in values])


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


def best_worst(
    values_C: NDArray[np.float64], usable_C: NDArray[np.bool_]
) -> tuple[tuple[int, int], ...]:
    """All (highest usable, lowest) ranks: several where there are ties, none where all are equal.

    A NaN is neither.

    >>> best_worst(np.array([1.0, 0.5, 1.0, 0.0]), np.array([True] * 4))
    ((0, 3), (2, 3))
    """
    known = np.flatnonzero(~np.isnan(values_C))
    usable = known[usable_C[known]]
    if not len(usable):
        return ()
    most, least = values_C[usable].max(), values_C[known].min()
    return tuple(
        (int(best), int(worst))
        for best in usable[values_C[usable] == most]
        for worst in known[values_C[known] == least]
        if most > least
    )


def eligible_pairs(
    values_C: NDArray[np.float64],
    protocol: Protocol,
    agent: int,
    malt: "PureTextMaltParameters",
    usable_C: NDArray[np.bool_] | None = None,
) -> tuple[tuple[int, int], ...]:
    """All (chosen, rejected) ranks among replies that the selection method would accept.

    Replies that are not usable (`usable_C`, all by default) are never chosen.
    """
    usable = np.ones(len(values_C), dtype=np.bool_) if usable_C is None else usable_C
    match malt.pair_selection_method:
        case "positive_negative":
            positive, negative = positive_negative(values_C, reward_mid_point(protocol, agent))
            pairs = tuple((int(p), int(n)) for p in positive for n in negative)
        case "interval":
            least, most = protocol.reward_bounds(agent)
            pairs = interval(values_C, malt.interval_threshold_proportion * (most - least))
        case "best_worst":
            pairs = best_worst(values_C, usable)
        case "all":
            pairs = interval(values_C, 0.0)
    return tuple(pair for pair in pairs if usable[pair[0]])


def select_pairs(
    tree: Tree,
    value_NA: NDArray[np.float64],
    *,
    index: int,
    protocol: Protocol,
    agents: tuple[int, ...],
    malt: "PureTextMaltParameters",
    key: Key,
) -> Pairs:
    """One pair for each node and agent that has any, drawn uniformly, or all; `key` is consumed.

    A reply that could not be used is never chosen; it may be rejected, if there are words in it.
    A pair's nodes are the first siblings that hold its replies.  "positive_negative" draws one
    reply of each kind, "interval" one of the pairs that are far enough apart, "best_worst" one of
    the highest and one of the lowest; "all" draws nothing.  Pairs within the minimum margin and,
    with `deduplicate_pairs`, pairs of equal or repeated texts are left out before the draw.  The
    draw of a node depends on the key and the node's place alone.
    """
    pairs: list[Pair] = []
    for at in decision_points(tree, agents):
        eligible = _eligible_at(tree, value_NA, at, index, protocol, malt)
        eligible = wide_enough(eligible, malt.min_pair_margin)
        if malt.deduplicate_pairs:
            eligible = deduplicate(eligible, {index: tree})
        if eligible and malt.pair_selection_method != "all":
            place_key = fold_in(key, *tree.path_N[at.parent], "agent", at.agent)
            eligible = (eligible[randint(place_key, len(eligible))],)
        pairs.extend(eligible)
    return tuple(pairs)


def _eligible_at(
    tree: Tree,
    value_NA: NDArray[np.float64],
    at: Siblings,
    index: int,
    protocol: Protocol,
    malt: "PureTextMaltParameters",
) -> Pairs:
    values = reply_values(value_NA, at)
    usable = tree.usable_NA[at.children_C, at.agent]
    return tuple(
        Pair(
            tree=index,
            parent=at.parent,
            agent=at.agent,
            chosen=int(at.children_C[chosen]),
            rejected=int(at.children_C[rejected]),
            chosen_value=float(values[chosen]),
            rejected_value=float(values[rejected]),
        )
        for chosen, rejected in eligible_pairs(values, protocol, at.agent, malt, usable)
    )


# -------------------------------------------------------------------------- which pairs are kept


def refine(
    pairs: Pairs, trees: tuple[Tree, ...], malt: "PureTextMaltParameters", key: Key
) -> Pairs:
    """What the rules keep of a whole selection, tree i being `trees[i]`; `key` is consumed.

    In this order: `deduplicate_pairs`, `max_pairs_per_datapoint`, `balance_pairs`.  Each only
    leaves pairs out, so that what an earlier rule promises still holds after a later one.
    """
    by_index = dict(enumerate(trees))
    if malt.deduplicate_pairs:
        pairs = deduplicate(pairs, by_index)
    if malt.max_pairs_per_datapoint is not None:
        pairs = limit(pairs, malt.max_pairs_per_datapoint, fold_in(key, "limit"))
    if malt.balance_pairs == "decisions":
        pairs = balance_decisions(pairs, by_index, fold_in(key, "decisions"))
    if malt.balance_pairs == "agents":
        pairs = balance_agents(pairs, fold_in(key, "agents"))
    return pairs


def wide_enough(pairs: Pairs, margin: float) -> Pairs:
    """Those whose chosen reply is worth more than the rejected one, by `margin` at least."""
    margins = (pair.chosen_value - pair.rejected_value for pair in pairs)
    return tuple(p for p, own in zip(pairs, margins, strict=True) if own > 0 and own >= margin)


def deduplicate(pairs: Pairs, trees: Mapping[int, Tree]) -> Pairs:
    """The first of those of a tree and agent that have the same two texts; none of equal texts."""
    first: dict[tuple[int, int, str, str], Pair] = {}
    for pair in pairs:
        chosen, rejected = (said_at(trees, pair, at).raw for at in (pair.chosen, pair.rejected))
        if chosen != rejected:
            first.setdefault((pair.tree, pair.agent, chosen, rejected), pair)
    return tuple(first.values())


def limit(pairs: Pairs, most: int, key: Key) -> Pairs:
    """`most` pairs of each tree and agent that has more, drawn uniformly; `key` is consumed."""
    return _thin(pairs, [(pair.tree, pair.agent) for pair in pairs], lambda _: most, key)


def balance_decisions(pairs: Pairs, trees: Mapping[int, Tree], key: Key) -> Pairs:
    """As many of an agent's pairs that choose to accept as to reject; `key` is consumed.

    Pairs whose chosen reply decides for neither are all kept.  An agent all of whose decisions are
    for one side keeps none of them.
    """
    decisions = [said_at(trees, pair, pair.chosen).decision for pair in pairs]
    labels = [
        (pair.agent, decision.discrete)
        if decision is not None and decision.discrete in (ACCEPT, REJECT)
        else None
        for pair, decision in zip(pairs, decisions, strict=True)
    ]
    counts = Counter(labels)
    return _thin(
        pairs, labels, lambda own: min(counts[own[0], side] for side in (ACCEPT, REJECT)), key
    )


def balance_agents(pairs: Pairs, key: Key) -> Pairs:
    """As many pairs of each agent as of the one with fewest, not counting agents that have none.

    `key` is consumed.
    """
    agents = [pair.agent for pair in pairs]
    fewest = min(Counter(agents).values(), default=0)
    return _thin(pairs, agents, lambda _: fewest, key)


def said_at(trees: Mapping[int, Tree], pair: Pair, node: int) -> Utterance:
    """What the pair's agent said on the way to `node`."""
    return next(said for said in trees[pair.tree].turn_N[node] if said.agent == pair.agent)


def _thin(
    pairs: Pairs, labels: Sequence[Label | None], most: Callable[[Label], int], key: Key
) -> Pairs:
    """At most so many pairs of each label, those of no label all; `key` is consumed.

    Each pair draws a lot that depends on the key and its own place, and the lowest lots are kept:
    a uniform subset of the given size.
    """
    lots = [fold_in(key, p.tree, p.parent, p.agent, p.chosen, p.rejected) for p in pairs]
    kept, seen = set[int](), Counter[Label]()
    for rank in sorted(range(len(pairs)), key=lots.__getitem__):
        label = labels[rank]
        if label is not None:
            seen[label] += 1
        if label is None or seen[label] <= most(label):
            kept.add(rank)
    return tuple(pair for rank, pair in enumerate(pairs) if rank in kept)
