"""A grown tree as parallel arrays, and expected rewards.

Letters for dimensions: N nodes, A agents, C children of one node.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.episode import Turn
from nip_fn.growth import Node, Path
from nip_fn.params import ValueBackup
from nip_fn.protocols.protocol import End

ROOT = 0
NO_PARENT = -1


class Tree(NamedTuple):
    """A tree of replies, breadth first: a parent stands before its children, the root is node 0.

    parent_N: `[N]` the index of each node's parent, `NO_PARENT` for the root.
    round_N: `[N]` how many rounds have been played there.
    acted_NA: `[N, A]` whether the agent's words led to the node.
    reward_NA: `[N, A]` what the agent received on arriving there.
    end_N: `[N]` how the game stands there.
    turn_N: `[N]` what was said on arriving there.
    path_N: `[N]` the ranks that lead there from the root.
    """

    parent_N: NDArray[np.int32]  # [N]
    round_N: NDArray[np.int32]  # [N]
    acted_NA: NDArray[np.bool_]  # [N, A]
    reward_NA: NDArray[np.float64]  # [N, A]
    end_N: tuple[End, ...]
    turn_N: tuple[Turn, ...]
    path_N: tuple[Path, ...]

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.end_N)


def flatten(root: Node) -> Tree:
    """The arrays of a tree; nodes that still wait for replies are leaves of it."""
    nodes: list[Node] = [root]
    parents: list[int] = [NO_PARENT]
    paths: list[Path] = [()]
    for index, node in enumerate(nodes):  # grows as it is walked: breadth first
        nodes.extend(node.children)
        parents.extend([index] * len(node.children))
        paths.extend((*paths[index], rank) for rank in range(len(node.children)))
    num_agents = len(root.reward)
    acted = np.zeros((len(nodes), num_agents), dtype=np.bool_)
    for index, node in enumerate(nodes):
        for said in node.turn:
            acted[index, said.agent] = True
    return Tree(
        parent_N=np.array(parents, dtype=np.int32),
        round_N=np.array([len(path) for path in paths], dtype=np.int32),
        acted_NA=acted,
        reward_NA=np.array([node.reward for node in nodes], dtype=np.float64),
        end_N=tuple(node.end for node in nodes),
        turn_N=tuple(node.turn for node in nodes),
        path_N=tuple(paths),
    )


def num_children(tree: Tree) -> NDArray[np.int64]:
    """`[N]` how many children each node has."""
    return np.bincount(tree.parent_N[1:], minlength=tree.num_nodes)


def backup(tree: Tree, method: ValueBackup = "children") -> NDArray[np.float64]:
    """`[N, A]` each agent's expected reward from each node on, the reward on arriving included.

    children:  V(v) = r(v) + mean over children c of V(c), the expectation under the sampled policy.
    leaves:    V(v) = T(v) / L(v) with T(v) = r(v) + sum of T(c) and L(v) the leaves below v, as
               the reference system does: a branch that goes on outweighs one that stops, and an
               inner reward is divided by the leaves.
    """
    children_N = num_children(tree)
    divisor_N = np.maximum(children_N, 1) if method == "children" else np.ones_like(children_N)
    total_NA = np.zeros_like(tree.reward_NA)
    leaves_N = np.where(children_N == 0, 1, 0)
    for round in range(int(tree.round_N.max()), -1, -1):
        level = np.flatnonzero(tree.round_N == round)
        total_NA[level] = tree.reward_NA[level] + total_NA[level] / divisor_N[level, None]
        below = level[tree.parent_N[level] != NO_PARENT]
        np.add.at(total_NA, tree.parent_N[below], total_NA[below])
        np.add.at(leaves_N, tree.parent_N[below], leaves_N[below])
    return total_NA if method == "children" else total_NA / leaves_N[:, None]
