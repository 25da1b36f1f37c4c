"""Filters of preference pairs: selectors that only leave pairs out and keep the order of the rest.

Whatever an earlier filter of a chain promises therefore still holds after a later one.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, TypeVar

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.keys import Key, fold_in, randint
from nip_fn.select.pairs import Candidates, Pair, Pairs, Selector

Label = TypeVar("Label", bound=Hashable)


def margin(least: float) -> Selector:
    """Pairs whose chosen reply is worth more than the rejected one, by `least` at least."""

    def selector(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
        equal = {agent: among.equal_within(agent) for agent in {pair.agent for pair in pairs}}

        def is_wide(pair: Pair) -> bool:
            gap, slack = pair.chosen_value - pair.rejected_value, equal[pair.agent]
            # The first comparison keeps NaN and equal values out even with a margin of 0: no
            # evidence, no preference.
            return gap > slack and gap >= least - slack

        return tuple(filter(is_wide, pairs))

    return selector


def dedupe(per: Literal["tree", "node"] = "tree") -> Selector:
    """The first of those pairs of an agent that have the same two texts; none of equal texts.

    Pairs are compared within a tree, or only within a node.
    """

    def selector(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
        first: dict[Hashable, Pair] = {}
        for pair in pairs:
            chosen = among.utterance(pair, pair.chosen).raw
            rejected = among.utterance(pair, pair.rejected).raw
            # Agents are kept apart: that two of them wrote the same is no repetition to either.
            scope = (pair.tree, pair.agent, pair.parent if per == "node" else None)
            if chosen != rejected:
                first.setdefault((*scope, chosen, rejected), pair)
        return tuple(first.values())

    return selector


def one_per_node() -> Selector:
    """One pair for each node and agent, drawn uniformly.

    The draw depends on the key and the node's place in its tree alone, never on other trees.
    """

    def selector(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
        # One pair at most, because the pairs of a node share their replies: a node with many of
        # them would weigh more in training for no better evidence.
        ranks_at: dict[tuple[int, int, int], list[int]] = {}
        for rank, pair in enumerate(pairs):
            ranks_at.setdefault((pair.tree, pair.parent, pair.agent), []).append(rank)
        kept = {
            ranks[randint(among.key_of(pairs[ranks[0]], key), len(ranks))]
            if len(ranks) > 1  # a key takes longer to derive than all else here
            else ranks[0]
            for ranks in ranks_at.values()
        }
        return tuple(pair for rank, pair in enumerate(pairs) if rank in kept)

    return selector


def cap(most: int, per: Sequence[Literal["tree", "agent"]] = ("tree", "agent")) -> Selector:
    """`most` pairs of each tree and agent (or of each `per`) that has more, drawn uniformly."""

    def selector(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
        labels = [tuple(getattr(pair, field) for field in per) for pair in pairs]
        # The names of the three keys in this file are part of the format: with others a recording
        # would be thinned to other pairs than its run was.
        return _thin(pairs, labels, lambda _: most, fold_in(key, "refine", "limit"))

    return selector


def balance(by: Literal["decisions", "agents"]) -> Selector:
    """Surplus pairs left out at random.

    "decisions": as many of an agent's pairs choose to accept as to reject.  Pairs whose chosen
    reply decides for neither are kept; an agent all of whose decisions are for one side keeps none
    of them.  "agents": every agent that has any keeps as many as the one with fewest.
    """
    return _balance_decisions if by == "decisions" else _balance_agents


def _balance_decisions(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
    decisions = (among.utterance(pair, pair.chosen).decision for pair in pairs)
    labels = [
        (pair.agent, decision.discrete)
        if decision is not None and decision.discrete in (ACCEPT, REJECT)
        else None
        for pair, decision in zip(pairs, decisions, strict=True)
    ]
    # Of an agent that has one side only the other count is 0, so that all of its decisions go: to
    # train on them would teach the verdict and nothing about the code.
    counts = Counter(labels)
    return _thin(
        pairs,
        labels,
        lambda label: min(counts[label[0], side] for side in (ACCEPT, REJECT)),
        fold_in(key, "refine", "decisions"),
    )


def _balance_agents(among: Candidates, key: Key, pairs: Pairs = ()) -> Pairs:
    agents = [pair.agent for pair in pairs]
    fewest = min(Counter(agents).values(), default=0)
    return _thin(pairs, agents, lambda _: fewest, fold_in(key, "refine", "agents"))


def _thin(
    pairs: Pairs, labels: Sequence[Label | None], most: Callable[[Label], int], key: Key
) -> Pairs:
    """At most `most(label)` pairs of each label, those without a label all; `key` is consumed.

    Each pair draws a lot from the key and its own place, and the lowest lots are kept: a uniform
    subset that other pairs' presence does not reshuffle.
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
