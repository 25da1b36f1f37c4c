"""A grown tree as parallel arrays: the one record that maths, metrics and exports read.

Letters for dimensions: N nodes, A agents, C children of one node.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, Round, Utterance, label_after, reset
from nip_fn.game.protocol import Status
from nip_fn.keys import Key
from nip_fn.trees.node import GameTree, Node, Path, replies_of
from nip_fn.trees.packed import UNPACKED, PackedTree, unpack

ROOT = 0
# NumPy takes -1 for the last element: compare with these, never index by them.
NO_PARENT = -1
NO_REPLY = -1


class Tree(NamedTuple):
    """A tree of replies, breadth first: a parent stands before its children, the root is node 0.

    The arrays are read-only.

    protocol: the name of the game.
    datapoint_index: of the datapoint that the game is about, among those of its stage.
    key: of the game, as `reset` takes it.
    parent_N: `[N]` the index of each node's parent, `NO_PARENT` for the root.
    depth_N: `[N]` the number of rounds played there.
    acted_NA: `[N, A]` true if words of the agent led to the node that can be compared with others:
        not an answer that could not be checked.
    reply_NA: `[N, A]` which of the agent's replies at the parent led there, `NO_REPLY` if none did;
        siblings with the same number share that reply.
    usable_NA: `[N, A]` true if they were a message or a decision, not an invalid reply.
    reward_NA: `[N, A]` the agent's reward on arriving there.
    expected_NA: `[N, A]` the same, in expectation over the verdict where a game is decided and its
        probability is recorded.
    status_N: `[N]` the status of the game there.
    utterances_N: `[N]` the utterances of the round that led there.
    path_N: `[N]` the ranks that lead there from the root.
    num_waiting: replies that the tree still waits for; nodes that wait are leaves of it.
    """

    protocol: str
    datapoint_index: int
    key: Key
    parent_N: NDArray[np.int32]  # [N]
    depth_N: NDArray[np.int32]  # [N]
    # Two arrays, because an unusable reply that has words can still be compared with its siblings:
    # it may be the rejected one, but never the chosen one.
    acted_NA: NDArray[np.bool_]  # [N, A]
    reply_NA: NDArray[np.int32]  # [N, A]
    usable_NA: NDArray[np.bool_]  # [N, A]
    reward_NA: NDArray[np.float64]  # [N, A]
    expected_NA: NDArray[np.float64]  # [N, A]
    status_N: tuple[Status, ...]
    utterances_N: Sequence[Round]
    path_N: tuple[Path, ...]
    num_waiting: int = 0

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.status_N)

    @property
    def num_agents(self) -> int:
        """A."""
        return int(self.reward_NA.shape[1])

    # The equality of tuples asks for the truth of `array == array`, which raises.
    def __eq__(self, other: object) -> bool:
        """True if all fields are equal, the arrays element by element."""
        return isinstance(other, Tree) and all(
            np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
            for mine, theirs in zip(self, tuple[Any, ...](other), strict=True)
        )

    def __ne__(self, other: object) -> bool:
        """True unless the trees are equal."""
        return not self == other

    def _repr_html_(self) -> str:
        """The tree as nested lists, for notebooks: who said what, rewards, how games ended."""
        children = children_of(self)

        def item(node: int) -> str:
            words = "<br>".join(
                f"<b>{s.agent}</b> {escape(s.raw)}" for s in self.utterances_N[node]
            )
            rewards = ", ".join(f"{reward:+g}" for reward in self.reward_NA[node])
            below = "".join(map(item, children[node]))
            is_open = self.status_N[node] == "open"
            end = "" if is_open else f" <i>{self.status_N[node]}, rewards {rewards}</i>"
            return f"<li>{words or escape(repr(self))}{end}<ul>{below}</ul></li>"

        return f"<ul>{item(ROOT)}</ul>"

    def __repr__(self) -> str:
        """The tree in a line, without its arrays."""
        leaves = len(leaves_of(self))
        waiting = f", waits for {self.num_waiting} replies" if self.num_waiting else ""
        about = f"datapoint {self.datapoint_index}"
        return f"Tree({about}: {self.num_nodes} nodes, {leaves} games{waiting})"


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The same array, which can no longer be written to."""
    # Trees are shared by stages, metrics and notebooks.  Whoever wants other rewards makes another
    # tree, as `backup.map_rewards` does.
    array.flags.writeable = False
    return array


# An iteration may have 10,000 trees.  Their arrays take 140 bytes a node, utterances of a line each
# four times as much, and those are read by few, tree by tree.
class PackedRounds(Sequence[Round]):
    """The utterances of a packed tree, node by node, unpacked when they are looked at."""

    __slots__ = ("_size", "_tree")

    def __init__(self, tree: PackedTree, size: int) -> None:
        """Take a tree of `size` nodes."""
        self._tree, self._size = tree, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, node: Any) -> Any:
        return _rounds(self._tree)[node]

    def __iter__(self) -> Iterator[Round]:
        return iter(_rounds(self._tree))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


@lru_cache(maxsize=UNPACKED)
def _rounds(tree: PackedTree) -> tuple[Round, ...]:
    nodes = [unpack(tree).root]
    for node in nodes:
        nodes.extend(node.children)
    return tuple(node.utterances for node in nodes)


def flatten_packed(packed: PackedTree) -> Tree:
    """The arrays of a packed tree, whose utterances stay packed until they are looked at."""
    return with_packed_rounds(flatten(unpack(packed)), packed)


def with_packed_rounds(tree: Tree, packed: PackedTree) -> Tree:
    """The same tree without its utterances, which are unpacked when they are looked at."""
    return tree._replace(utterances_N=PackedRounds(packed, tree.num_nodes))


def flatten(game: GameTree) -> Tree:
    """The arrays of a tree; nodes that still wait for replies are leaves of it."""
    nodes: list[Node] = [game.root]
    parents: list[int] = [NO_PARENT]
    paths: list[Path] = [()]
    # No reply led to the root, hence the empty entry before those of the children, which come in
    # the same breadth-first order as the nodes.
    numbers: list[dict[int, int]] = [{}]
    for index, node in enumerate(nodes):  # grows as it is walked: breadth first
        if node.children:
            nodes.extend(node.children)
            parents.extend([index] * len(node.children))
            paths.extend([(*paths[index], rank) for rank in range(len(node.children))])
            numbers.extend(replies_of(node))
    # Flat, and bytes for truths: nested lists take NumPy several times as long.
    num_agents = len(game.root.reward)
    acted, usable = bytearray(len(nodes) * num_agents), bytearray(len(nodes) * num_agents)
    reply = [NO_REPLY] * (len(nodes) * num_agents)
    for index, node in enumerate(nodes):
        row = index * num_agents
        for agent, number in numbers[index].items():
            reply[row + agent] = number
        for utterance in node.utterances:
            # An answer that could not be checked is neither better nor worse than another.
            acted[row + utterance.agent] = bool(
                utterance.raw.strip() and not utterance.is_unchecked
            )
            usable[row + utterance.agent] = utterance.error is None
    shape = len(nodes), num_agents
    rewards = [reward for node in nodes for reward in node.reward]
    reward_NA = read_only(np.array(rewards, dtype=np.float64).reshape(shape))
    expected_NA = reward_NA  # one array, and not two, where no probability is recorded
    if any(node.expected_reward for node in nodes):
        expected = [reward for node in nodes for reward in node.expected_reward or node.reward]
        expected_NA = read_only(np.array(expected, dtype=np.float64).reshape(shape))
    return Tree(
        protocol=game.protocol,
        datapoint_index=game.datapoint_index,
        key=game.key,
        parent_N=read_only(np.array(parents, dtype=np.int32)),
        depth_N=read_only(np.array([len(path) for path in paths], dtype=np.int32)),
        acted_NA=read_only(np.array(acted, dtype=np.bool_).reshape(shape)),
        reply_NA=read_only(np.array(reply, dtype=np.int32).reshape(shape)),
        usable_NA=read_only(np.array(usable, dtype=np.bool_).reshape(shape)),
        reward_NA=reward_NA,
        expected_NA=expected_NA,
        status_N=tuple(node.status for node in nodes),
        utterances_N=tuple(node.utterances for node in nodes),
        path_N=tuple(paths),
        num_waiting=sum(slot.said is None for node in nodes for slot in node.slots),
    )


def children_of(tree: Tree) -> tuple[tuple[int, ...], ...]:
    """The indices of each node's children, in the order of their ranks."""
    children: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    for node, parent in enumerate(tree.parent_N.tolist()):
        if parent != NO_PARENT:
            children[parent].append(node)
    return tuple(map(tuple, children))


def leaves_of(tree: Tree) -> tuple[int, ...]:
    """The nodes without children, left to right as the tree is drawn."""
    # Breadth-first order would put shallow leaves before deep ones to the left of them.
    inner = set(tree.parent_N.tolist())
    leaves = (node for node in range(tree.num_nodes) if node not in inner)
    return tuple(sorted(leaves, key=lambda node: tree.path_N[node]))


def line_to(tree: Tree, node: int) -> tuple[int, ...]:
    """The nodes on the way to `node`, the root left out and `node` last."""
    line: list[int] = []
    while node != ROOT:
        line.append(node)
        node = int(tree.parent_N[node])
    return tuple(reversed(line))


def episode_at(tree: Tree, node: int, datapoint: Datapoint) -> Episode:
    """The game at a node of a tree about `datapoint`."""
    turns = tuple(tree.utterances_N[inner] for inner in line_to(tree, node))
    start = reset(datapoint, tree.key)
    label = label_after(start.label, turns)
    return Episode(start.key, label, start.stance, turns, tree.status_N[node])


def label_at(tree: Tree, node: int, datapoint: Datapoint) -> int | None:
    """The label at a node of a tree about `datapoint`: of the last answer on the way, or of that.

    None before an answer is written, and of one that could not be checked.
    """
    turns = (tree.utterances_N[inner] for inner in line_to(tree, node))
    return label_after(datapoint.label, turns)


def replies_in(tree: Tree) -> Iterator[tuple[int, Utterance]]:
    """(parent, reply) for every reply of the tree, once however many siblings share it."""
    # Under "product" one reply leads to several siblings, and counting nodes would bill it for
    # each.
    seen: set[tuple[int, int, int]] = set()
    parents, replies = tree.parent_N.tolist(), tree.reply_NA.tolist()
    for node in range(1, tree.num_nodes):
        parent = parents[node]
        for utterance in tree.utterances_N[node]:
            reply = (parent, utterance.agent, replies[node][utterance.agent])
            if reply not in seen:
                seen.add(reply)
                yield parent, utterance
