"""Backups: values `Tree -> [N, A]` of expected rewards, to be passed to whatever needs one.

Sums are exactly rounded (`math.fsum`), so the order of siblings cannot change a value.
"""

from collections.abc import Callable
from math import fsum

import numpy as np
from numpy.typing import NDArray

from nip_fn.trees.tree import Tree, children_of, read_only

Values = NDArray[np.float64]  # [N, A]
Backup = Callable[[Tree], Values]


def mean_children(tree: Tree) -> Values:
    """`[N, A]` V(v) = r(v) + mean over children c of V(c).

    The expectation of the return from v on, the reward on arriving included, under the policy that
    sampled the replies: every reply of a node counts the same, however its subtree goes on.
    """
    # Not `np.add.at`, whose sums depend in their last bits on the order in which siblings are
    # added: a value decides which reply is preferred, and so the digest of the run.
    children, values = children_of(tree), tree.reward_NA.tolist()
    # Nodes are in breadth-first order, so the reverse has children before their parent.
    for node in reversed(range(tree.num_nodes)):
        if below := children[node]:
            columns = zip(*[values[child] for child in below], strict=True)
            values[node] = [
                reward + fsum(column) / len(below)
                for reward, column in zip(values[node], columns, strict=True)
            ]
    return read_only(np.array(values, dtype=np.float64))


def mean_leaves(tree: Tree) -> Values:
    """`[N, A]` T(v) / L(v) with T(v) = r(v) + sum of T(c), and L(v) the number of leaves below v.

    The reference system's backup, for comparison: a branch that goes on outweighs one that stops,
    and an inner reward is divided by the leaves.
    """
    # Kept so that runs of the *nip* library can be compared with; no default uses it.
    children, totals = children_of(tree), tree.reward_NA.tolist()
    leaves = [1] * tree.num_nodes
    for node in reversed(range(tree.num_nodes)):
        if below := children[node]:
            leaves[node] = sum(leaves[child] for child in below)
            totals[node] = [
                reward + fsum(totals[child][agent] for child in below)
                for agent, reward in enumerate(totals[node])
            ]
    return read_only(np.array(totals, dtype=np.float64) / np.array(leaves)[:, None])


def discounted(gamma: float, backup: Backup = mean_children) -> Backup:
    """`backup` of rewards that lose the factor γ with every round they lie ahead.

    With `mean_children`, V(v) = r(v) + γ · mean over children c of V(c).  For any backup that is
    linear in the rewards: weigh the reward of depth d by γ^d, back up, divide by γ^d again.

    Raises:
        ValueError: `gamma` is not in (0, 1].
    """
    # Zero is excluded because of the division at the end, which makes a value one as seen from its
    # own node instead of from the root.
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], got {gamma}")

    def discounted_backup(tree: Tree) -> Values:
        weight_N1 = (gamma ** tree.depth_N.astype(np.float64))[:, None]
        weighed = _with_rewards(tree, lambda reward_NA: reward_NA * weight_N1)
        return read_only(backup(weighed) / weight_N1)

    return discounted_backup


def by_probability(backup: Backup = mean_children) -> Backup:
    """`backup` of what a verdict earns in expectation, where its probability is recorded.

    The value of a position no longer depends on which verdict was drawn after it; its expectation
    is the same, and its variance is smaller (Rao-Blackwell).  The reply that states a verdict keeps
    the value of the verdict that it states.
    """

    def expected_backup(tree: Tree) -> Values:
        if tree.expected_NA is tree.reward_NA:
            return backup(tree)
        # With its expectation, `accept` and `reject` in one position would be worth the same, and
        # the verifier could not learn which of them to say.
        states_verdict_N1 = (tree.expected_NA != tree.reward_NA).any(axis=1, keepdims=True)
        expected_NA = backup(tree._replace(reward_NA=tree.expected_NA))
        return read_only(np.where(states_verdict_N1, backup(tree), expected_NA))

    return expected_backup


def map_rewards(function: Callable[[Values], Values], backup: Backup = mean_children) -> Backup:
    """`backup` of the rewards that `function` makes of `[N, A]` recorded ones (reward shaping).

    `map_rewards(lambda r: r, backup)` is `backup`.
    """

    def shaped_backup(tree: Tree) -> Values:
        return backup(_with_rewards(tree, function))

    return shaped_backup


def _with_rewards(tree: Tree, function: Callable[[Values], Values]) -> Tree:
    """The tree with what `function` makes of its rewards, the expected ones as well."""

    def shaped(reward_NA: Values) -> Values:
        # The function gets a copy: it is the user's own and may work in place, which the tree's
        # read-only array would refuse.
        shaped_NA = np.array(function(reward_NA.copy()), dtype=np.float64)
        if shaped_NA.shape != reward_NA.shape:
            raise ValueError(f"rewards of shape {reward_NA.shape} became {shaped_NA.shape}")
        return read_only(shaped_NA)

    reward_NA = shaped(tree.reward_NA)
    same = tree.expected_NA is tree.reward_NA
    return tree._replace(
        reward_NA=reward_NA, expected_NA=reward_NA if same else shaped(tree.expected_NA)
    )
