"""Unbiased re-estimates of the margins of preference pairs: how true are the labels?

A pair is selected because its replies differ in value, and these values are means of few
continuations, so its recorded margin is too large (the winner's curse), and its sign may be wrong.
Here the continuations of each reply are split into two halves: pairs are selected by the values of
one half, and their margins are taken from the other one, which had no part in the selection.  Both
halves take both roles.  The pairs are selected on half of the evidence, so what is said of them
holds, if anything, too little of those that are trained on.

Letters for dimensions: N nodes, A agents.
"""

from collections.abc import Sequence
from itertools import groupby
from math import fsum, isnan

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nip_fn.keys import Key
from nip_fn.select.pairs import Candidates, Pair, Pairs, Selector
from nip_fn.trees.backup import Backup, Values, mean_children
from nip_fn.trees.tree import NO_PARENT, NO_REPLY, ROOT, Tree, children_of, read_only


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
    halves = tuple(
        half_values(tree, backup, full)
        for tree, full in zip(among.trees, among.values, strict=True)
    )
    by_half = [among.with_values([values[half] for values in halves]) for half in (0, 1)]
    reestimates: list[Pair] = []
    for selecting, estimating in (by_half, by_half[::-1]):
        points_of = {
            tree: tuple(points)
            for tree, points in groupby(estimating.points, key=lambda point: point.tree)
        }
        for tree, pairs in groupby(select(selecting, key), key=lambda pair: pair.tree):
            values = {
                (point.agent, nodes[0]): value
                for point in points_of[tree]
                for nodes, value in zip(point.nodes_C, point.value_C, strict=True)
            }
            for pair in pairs:
                chosen = values[pair.agent, pair.chosen]
                rejected = values[pair.agent, pair.rejected]
                if not isnan(chosen - rejected):
                    reestimates.append(replace(pair, chosen_value=chosen, rejected_value=rejected))
    return tuple(reestimates)


def half_values(tree: Tree, backup: Backup, full: Values) -> tuple[Values, Values]:
    """`[N, A]` twice: each node's value by every other of its continuations, and by the rest.

    NaN where only one half has any.  Where the agents of a node move at once, a continuation
    belongs to a half if the replies of all of them do, so that no reply counts in both.  `full` is
    what `backup` makes of the whole tree.
    """
    reply_NA, given_NA = tree.reply_NA, tree.reply_NA != NO_REPLY
    belongs_2N = [(~given_NA | (reply_NA % 2 == half)).all(axis=1) for half in (0, 1)]
    if backup is mean_children:
        return _half_means(tree, full, belongs_2N)
    halves = np.full((2, *full.shape), np.nan)
    for depth in range(1, int(tree.depth_N.max()) + 1):
        above = tree.depth_N == depth
        below = tree.depth_N == depth + 1
        ends = above.copy()
        ends[tree.parent_N[below]] = False  # nodes that go on
        halves[:, ends] = full[ends]
        if not below.any():
            continue
        for half in (0, 1):
            belongs_N = belongs_2N[half]
            goes_on = np.zeros_like(above)
            goes_on[tree.parent_N[below & belongs_N]] = True
            # A branch that is cut off is the root of a tree of its own, which nothing adds up.
            cut_N = np.where(below & ~belongs_N, NO_PARENT, tree.parent_N).astype(np.int32)
            halves[half, goes_on] = backup(tree._replace(parent_N=read_only(cut_N)))[goes_on]
    unknown = np.isnan(halves).any(axis=0)
    halves[:, unknown] = np.nan
    return read_only(halves[0]), read_only(halves[1])


def _half_means(
    tree: Tree, full: Values, belongs_2N: Sequence[NDArray[np.bool_]]
) -> tuple[Values, Values]:
    """`half_values` of `mean_children`, whose value of a node needs no more than its children's.

    The general way backs every level of the tree up twice, which took a third of an update.
    """
    rewards, values = tree.reward_NA.tolist(), full.tolist()
    belongs = [belongs_N.tolist() for belongs_N in belongs_2N]
    halves = np.full((2, *full.shape), np.nan)
    for node, children in enumerate(children_of(tree)):
        if node == ROOT:
            continue
        if not children:
            halves[:, node] = values[node]
            continue
        by_half = [[values[child] for child in children if half[child]] for half in belongs]
        if all(by_half):
            for half, part in enumerate(by_half):
                halves[half, node] = [
                    reward + fsum(column) / len(part)
                    for reward, column in zip(rewards[node], zip(*part, strict=True), strict=True)
                ]
    return read_only(halves[0]), read_only(halves[1])
