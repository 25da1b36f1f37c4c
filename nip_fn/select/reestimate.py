"""Unbiased re-estimates of the margins of preference pairs: how true are the labels?

A pair is selected because its replies differ in value, and these values are means of few
continuations, so its recorded margin is too large (the winner's curse), and its sign may be wrong.
Here the continuations of each reply are split into two halves: pairs are selected by the values of
one half, and their margins are taken from the other one, which had no part in the selection.  Both
halves take both roles.  The pairs are selected on half of the evidence, so what is said of them
holds, if anything, too little of those that are trained on.

Letters for dimensions: N nodes, A agents.
"""

from math import fsum

import numpy as np
from msgspec.structs import replace

from nip_fn.keys import Key
from nip_fn.select.pairs import Candidates, Pair, Pairs, Selector
from nip_fn.trees.backup import Backup, Values
from nip_fn.trees.tree import NO_PARENT, NO_REPLY, Tree, read_only


def reestimated(select: Selector, among: Candidates, backup: Backup, key: Key) -> Pairs:
    """The pairs that either half of the continuations selects, with the values of the other half.

    The chosen value may therefore be the smaller one: the other half contradicts the label.  Pairs
    of which a reply has a single continuation are left out; a reply that ends the game needs none.

    Args:
        select: The selector whose pairs are in question.
        among: The candidates.
        backup: The expected rewards that `among` holds.
        key: That of the selection; consumed.
    """
    halves = tuple(half_values(tree, backup) for tree in among.trees)
    found: list[Pair] = []
    for one, other in ((0, 1), (1, 0)):
        known = among._replace(values=tuple(values[one] for values in halves))
        for pair in select((), known, key):
            tree, value_NA = among.trees[pair.tree], halves[pair.tree][other]
            chosen, rejected = (
                _value(tree, value_NA, pair, node) for node in (pair.chosen, pair.rejected)
            )
            if not np.isnan(chosen - rejected):
                found.append(replace(pair, chosen_value=chosen, rejected_value=rejected))
    return tuple(found)


def half_values(tree: Tree, backup: Backup) -> tuple[Values, Values]:
    """`[N, A]` twice: each node's value by every other of its continuations, and by the rest.

    NaN where only one half has any.  Where the agents of a node move at once, a continuation
    belongs to a half if the replies of all of them do, so that no reply counts in both.
    """
    full = backup(tree)
    halves = np.full((2, *full.shape), np.nan)
    reply_NA, given_NA = tree.reply_NA, tree.reply_NA != NO_REPLY
    for depth in range(1, int(tree.depth_N.max()) + 1):
        above = tree.depth_N == depth
        below = tree.depth_N == depth + 1
        ends = above.copy()
        ends[tree.parent_N[below]] = False  # nodes that go on
        halves[:, ends] = full[ends]
        if not below.any():
            continue
        for half in (0, 1):
            belongs_N = (~given_NA | (reply_NA % 2 == half)).all(axis=1)
            known = np.zeros_like(above)
            known[tree.parent_N[below & belongs_N]] = True
            # A branch that is cut off is the root of a tree of its own, which nothing adds up.
            cut_N = np.where(below & ~belongs_N, NO_PARENT, tree.parent_N).astype(np.int32)
            halves[half, known] = backup(tree._replace(parent_N=read_only(cut_N)))[known]
    unknown = np.isnan(halves).any(axis=0)
    halves[:, unknown] = np.nan
    return read_only(halves[0]), read_only(halves[1])


def _value(tree: Tree, value_NA: Values, pair: Pair, node: int) -> float:
    """The mean value to the pair's agent of the siblings that share its reply with `node`."""
    same = tree.reply_NA[:, pair.agent] == tree.reply_NA[node, pair.agent]
    values = value_NA[(tree.parent_N == pair.parent) & same, pair.agent].tolist()
    return fsum(values) / len(values)
