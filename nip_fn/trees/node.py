"""A tree of replies as nodes: a persistent rose tree that knows which replies it still waits for.

A node is a position after a round.  An open node has `k` slots for each agent that moves there, and
its children open when the last of its own slots is filled.  Where m agents move at once, the
children are either k, one for everyone's i-th reply ("joint"), or k^m, one for each way to combine
a reply of every mover ("product").

A reply that states an answer fills its slot once the answer has been checked.  Its label is that of
the children to which it leads and of all nodes below them.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from nip_fn.game.episode import Episode, Round, Utterance, label_after
from nip_fn.game.protocol import Status
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in

SimultaneousBranching = Literal["joint", "product"]

Path = tuple[int, ...]  # the rank of each node among its siblings, from the root down


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """Room for one reply of one agent at one node."""

    agent: int
    said: Utterance | None = None
    # Failed attempts were paid for as well: their tokens are carried into the utterance that fills
    # the slot in the end.
    attempts: int = 0  # failed so far
    prompt_tokens: int = 0  # spent on them
    completion_tokens: int = 0
    cached_tokens: int = 0
    failed: tuple[Completion, ...] = ()  # those attempts, kept when the slot is filled
    answered: Utterance | None = None  # a reply whose answer is being checked

    @property
    def awaited_attempt(self) -> int | None:
        """The attempt that the slot waits for; None where it is filled, or waits for a check."""
        return self.attempts if self.said is None and self.answered is None else None

    def with_label(self, label: int | None) -> "Slot":
        """The slot filled by its answer: 1 right, 0 wrong, None if that could not be checked."""
        assert self.answered is not None
        return Slot(self.agent, replace(self.answered, label=label), failed=self.failed)


# A node does not hold the game at it, which follows from the utterances on the path: every node
# would otherwise repeat the rounds of all nodes above it (`episode_after` derives it).
class Node(msgspec.Struct, frozen=True, array_like=True):
    """A position after a round."""

    utterances: Round = ()  # of the round that led here; () at the root
    reward: tuple[float, ...] = ()  # [A] received on arriving
    status: Status = "open"
    slots: tuple[Slot, ...] = ()  # [movers * k], mover by mover
    children: tuple["Node", ...] = ()  # [k], or [k^movers], once every slot is filled
    expected_reward: tuple[float, ...] = ()  # [A] over the verdict (`expected_rewards`), or ()


class ReplyRequest(NamedTuple):
    """A request for replies of one agent at one node, all at the same attempt.

    One API call with n = len(indices) can serve it.

    path, agent: the node, and who is to reply there.
    indices: which of the agent's k slots.
    attempt: failed attempts before this one.
    """

    path: Path
    agent: int
    indices: tuple[int, ...]
    attempt: int


class ReplyArrival(msgspec.Struct, frozen=True):
    """One sampled completion and its address: node, agent, index of the reply, and attempt."""

    path: Path
    agent: int
    index: int
    attempt: int
    completion: Completion


class GameTree(msgspec.Struct, frozen=True, array_like=True):
    """A tree of replies, and what it is about."""

    protocol: str  # the name of the game
    datapoint_index: int  # among the datapoints of the stage
    key: Key  # of the game, as `reset` takes it
    root: Node
    num_waiting: int = 0  # replies that it waits for

    def __repr__(self) -> str:
        """The tree in a line; `flatten` makes the record that shows more."""
        children = len(self.root.children)
        return f"GameTree(datapoint {self.datapoint_index}, {children} children at the root)"


def reply_key(game: Key, path: Path, agent: str, index: int, attempt: int) -> Key:
    """The key of one attempt at one reply, from the key of its game."""
    # The agent's name marks the end of the path: a string among integers, so no reply at one node
    # has the key of a reply at a deeper one.
    return fold_in(game, *path, agent, index, attempt)


def episode_after(episode: Episode, *nodes: Node) -> Episode:
    """The game at the last of `nodes`, which follow one another from where `episode` is."""
    if not nodes:
        return episode
    turns = tuple(node.utterances for node in nodes)
    label, rounds = label_after(episode.label, turns), (*episode.rounds, *turns)
    return replace(episode, label=label, rounds=rounds, status=nodes[-1].status)


def num_waiting_at(node: Node, path: Path) -> int:
    """The number of empty slots at the node that `path` leads to, and at its children."""
    for rank in path:
        node = node.children[rank]
    return sum(slot.said is None for each in (node, *node.children) for slot in each.slots)


def node_at(node: Node, episode: Episode, path: Path) -> tuple[Node, Episode]:
    """The node that `path` leads to from `node`, and the game there."""
    spine = [node]
    for rank in path:
        spine.append(spine[-1].children[rank])
    return spine[-1], episode_after(episode, *spine[1:])


def pending_requests(node: Node, path: Path = ()) -> Iterator[ReplyRequest]:
    """All requests that the tree at `path` waits for, depth first."""
    yield from requests_of(node, path)
    for rank, child in enumerate(node.children):
        yield from pending_requests(child, (*path, rank))


def pending_checks(root: Node) -> tuple[str, ...]:
    """The answers in a tree that wait to be checked, depth first, equal ones once."""
    return tuple(
        dict.fromkeys(
            slot.answered.answer or ""
            for node in _nodes(root)
            for slot in node.slots
            if slot.answered is not None
        )
    )


def checked_answers(root: Node) -> dict[str, int | None]:
    """The label of each answer in a tree that was checked; None where that failed."""
    return {
        slot.said.answer: slot.said.label
        for node in _nodes(root)
        for slot in node.slots
        if slot.said is not None and slot.said.answer is not None
    }


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)


def requests_of(node: Node, path: Path) -> Iterator[ReplyRequest]:
    """A request for each agent that the node at `path` waits for, of its earliest attempt."""
    # The attempt is a part of each reply's key, so slots that have failed a different number of
    # times cannot share a request.  Those that have failed more often wait for the others.
    waiting: dict[int, dict[int, list[int]]] = {}
    counts: dict[int, int] = {}
    for slot in node.slots:
        index = counts.get(slot.agent, 0)
        counts[slot.agent] = index + 1
        if slot.awaited_attempt is not None:
            attempts = waiting.setdefault(slot.agent, {})
            attempts.setdefault(slot.attempts, []).append(index)
    for agent, indices in waiting.items():
        attempt = min(indices)
        yield ReplyRequest(path, agent, tuple(indices[attempt]), attempt)


@cache
def reply_combinations(
    num_movers: int, k: int, branching: SimultaneousBranching
) -> tuple[tuple[int, ...], ...]:
    """Which of its k replies each mover gives in each of the rounds that follow a node, in order.

    >>> reply_combinations(2, 2, "joint")
    ((0, 0), (1, 1))
    >>> reply_combinations(2, 2, "product")
    ((0, 0), (0, 1), (1, 0), (1, 1))
    """
    # The k^m children of "product" each ask for k replies of every mover in the next round, so a
    # game of n rounds has up to k^(mn) leaves; "joint" keeps it at k^n and is the default.
    if branching == "product":
        return tuple(product(range(k), repeat=num_movers))
    return tuple((index,) * num_movers for index in range(k))


def replies_of(node: Node) -> tuple[dict[int, int], ...]:
    """For each child, which of its k replies at `node` each mover gave on the way there.

    How the node branched shows in the number of its children.  Nodes without slots, made by hand,
    are taken to have had a slot for each child.
    """
    if not node.children:
        return ()
    agents = tuple(dict.fromkeys(slot.agent for slot in node.slots))
    if not agents:
        return tuple({u.agent: i for u in c.utterances} for i, c in enumerate(node.children))
    k = len(node.slots) // len(agents)
    # k children can only be joint: the two rules agree where k^m is k, that is for one mover or one
    # reply.
    branching: SimultaneousBranching = "joint" if len(node.children) == k else "product"
    return tuple(
        dict(zip(agents, indices, strict=True))
        for indices in reply_combinations(len(agents), k, branching)
    )
