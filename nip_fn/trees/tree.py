"""A grown tree as parallel arrays, and expected rewards.

Letters for dimensions: N nodes, A agents, C children of one node.
"""

from math import fsum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.game.episode import Round
from nip_fn.game.protocol import End
from nip_fn.trees.grow import Node, Path, replies_of

ValueBackup = Literal["children", "leaves"]

ROOT = 0
NO_PARENT = -1
NO_REPLY = -1


class Tree(NamedTuple):
    """A tree of replies, breadth first: a parent stands before its children, the root is node 0.

    parent_N: `[N]` the index of each node's parent, `NO_PARENT` for the root.
    round_N: `[N]` how many rounds have been played there.
    acted_NA: `[N, A]` whether words of the agent led to the node.
    reply_NA: `[N, A]` which of the agent's replies at the parent led there, `NO_REPLY` if none did;
        siblings with the same number share that reply.
    usable_NA: `[N, A]` whether they were a message or a decision, not an invalid reply.
    reward_NA: `[N, A]` what the agent received on arriving there.
    end_N: `[N]` how the game stands there.
    turn_N: `[N]` what was said on arriving there.
    path_N: `[N]` the ranks that lead there from the root.
    """

    parent_N: NDArray[np.int32]  # [N]
    round_N: NDArray[np.int32]  # [N]
    acted_NA: NDArray[np.bool_]  # [N, A]
    reply_NA: NDArray[np.int32]  # [N, A]
    usable_NA: NDArray[np.bool_]  # [N, A]
    reward_NA: NDArray[np.float64]  # [N, A]
    end_N: tuple[End, ...]
    turn_N: tuple[Round, ...]
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
    usable = np.zeros_like(acted)
    reply = np.full(acted.shape, NO_REPLY, dtype=np.int32)
    given = ({}, *(indices for node in nodes for indices in replies_of(node)))
    for index, node in enumerate(nodes):
        for agent, number in given[index].items():
            reply[index, agent] = number
        for said in node.turn:
            acted[index, said.agent] = bool(said.raw.strip())
            usable[index, said.agent] = said.error is None
    return Tree(
        parent_N=np.array(parents, dtype=np.int32),
        round_N=np.array([len(path) for path in paths], dtype=np.int32),
        acted_NA=acted,
        reply_NA=reply,
        usable_NA=usable,
        reward_NA=np.array([node.reward for node in nodes], dtype=np.float64),
        end_N=tuple(node.end for node in nodes),
        turn_N=tuple(node.turn for node in nodes),
        path_N=tuple(paths),
    )


def children_of(tree: Tree) -> tuple[tuple[int, ...], ...]:
    """The indices of each node's children, in the order of their ranks."""
    children: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    for node, parent in enumerate(tree.parent_N.tolist()):
        if parent != NO_PARENT:
            children[parent].append(node)
    return tuple(map(tuple, children))


def backup(tree: Tree, method: ValueBackup = "children") -> NDArray[np.float64]:
    """`[N, A]` each agent's expected reward from each node on, the reward on arriving included.

    children:  V(v) = r(v) + mean over children c of V(c), the expectation under the sampled policy.
    leaves:    V(v) = T(v) / L(v) with T(v) = r(v) + sum of T(c) and L(v) the leaves below v, as
               the reference system does: a branch that goes on outweighs one that stops, and an
               inner reward is divided by the leaves.

    Sums are exactly rounded (`fsum`), so the order of siblings cannot change a value.
    """
    children, rewards = children_of(tree), tree.reward_NA.tolist()
    leaves = [1] * tree.num_nodes
    for node in reversed(range(tree.num_nodes)):  # children before their parent
        below = children[node]
        if below:
            divisor = len(below) if method == "children" else 1
            leaves[node] = sum(leaves[child] for child in below)
            rewards[node] = [
                reward + fsum(rewards[child][agent] for child in below) / divisor
                for agent, reward in enumerate(rewards[node])
            ]
    totals_NA = np.array(rewards, dtype=np.float64)
    return totals_NA if method == "children" else totals_NA / np.array(leaves)[:, None]
