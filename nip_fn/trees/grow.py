"""Growing trees of replies: one at a time, many in step, or each node on its own in an event loop.

A node's children open as soon as the last of its own slots is filled, whatever happens elsewhere.
A new reply copies only the nodes on its path (O(depth)), and the tree is a function of the *set* of
replies that it holds, not of the order in which they came.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nip_fn.game.checkers import Checker, exact
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, arrive, expected_rewards, movers, reset
from nip_fn.game.protocol import Move, Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key
from nip_fn.trees.attempts import after_attempt, parser
from nip_fn.trees.node import (
    GameTree,
    Node,
    Path,
    ReplyArrival,
    ReplyRequest,
    SimultaneousBranching,
    Slot,
    checked_answers,
    episode_after,
    node_at,
    pending_checks,
    pending_requests,
    reply_combinations,
    reply_key,
    requests_of,
)
from nip_fn.trees.tree import Tree, flatten


class Turn(NamedTuple):
    """An agent's turn to reply at a node.

    agent: the agent.
    number: how many replies it has given in the game before.
    game: the key of the game.
    trained: true if the reply may be trained on.
    """

    agent: int
    number: int
    game: Key
    # Unknown to a tree; a run sets it before it asks a trainer.
    trained: bool = True


Branching = Callable[[tuple[Turn, ...]], int]  # the turns of all agents that move at a node -> k


class Rules(NamedTuple):
    """The rules by which a tree grows.

    protocol: the game.
    branching: k, the replies of each agent that moves at a node: a number, or a function of the
        turns of all of them.
    attempts: at a reply before it is recorded as invalid: of every agent, or `[A]`.
    simultaneous_branching: the children of k replies each of several agents that move at once.
    checker: says if an answer is right, in trees that grow from policies; a run records what its
        own checker says.
    """

    protocol: Protocol
    # A trainer decides by who moves and when: rounds in which only frozen agents speak need no
    # siblings.  One k for all movers, since "joint" combines the i-th replies of all.
    branching: int | Branching = 1
    attempts: int | tuple[int, ...] = 1
    simultaneous_branching: SimultaneousBranching = "joint"
    checker: Checker = exact

    def num_replies(self, turns: tuple[Turn, ...]) -> int:
        """k where the agents of these turns move."""
        return self.branching if isinstance(self.branching, int) else self.branching(turns)

    def num_attempts(self, agent: int) -> int:
        """The attempts of one agent."""
        return self.attempts if isinstance(self.attempts, int) else self.attempts[agent]


# ------------------------------------------------------------------------------ trees from policies


class Query(NamedTuple):
    """A position in a game, at which replies of one agent are wanted.

    datapoint: the problem that the game is about.
    episode: the game so far.
    agent: the agent that is to reply.
    keys: one for each reply; all are to the same prompt, so one call with n = len(keys) serves it.
    """

    datapoint: Datapoint
    episode: Episode
    agent: int
    keys: tuple[Key, ...]


# (the problem, the game so far, the agent that speaks, key) -> its reply; the key is consumed.
Policy = Callable[[Datapoint, Episode, int, Key], Completion]
# Queries -> for each of them the replies to its keys.
BatchSampler = Callable[[Sequence[Query]], Sequence[Sequence[Completion]]]
AsyncSampler = Callable[[Query], Awaitable[Sequence[Completion]]]


def grow(
    rules: Rules, datapoint: Datapoint, policy: Policy, *, key: Key, datapoint_index: int = 0
) -> Tree:
    """A tree of a game about the datapoint, every reply drawn from `policy`.

    Args:
        rules: The game, and how its trees branch.
        datapoint: The problem to play about.
        policy: The replies of all agents.
        key: The key of the game; consumed.  Each reply's own is `reply_key` of its place in the
            tree, so a run's key and a policy that replies as its models do give the run's tree.
        datapoint_index: The tree's `datapoint_index`.
    """
    (tree,) = grow_many(rules, [datapoint], batched(policy), keys=[key])
    return tree._replace(datapoint_index=datapoint_index)


def batched(policy: Policy) -> BatchSampler:
    """The sampler that asks `policy` for each reply."""
    return lambda queries: [
        [policy(query.datapoint, query.episode, query.agent, key) for key in query.keys]
        for query in queries
    ]


def grow_many(
    rules: Rules, datapoints: Sequence[Datapoint], sampler: BatchSampler, *, keys: Sequence[Key]
) -> tuple[Tree, ...]:
    """A tree of a game about each datapoint, every reply drawn from `sampler`.

    Each call of the sampler is given all that all trees wait for, so there are as many calls as the
    longest game has rounds, and more for attempts that are repeated.

    Args:
        rules: The game, and how its trees branch.
        datapoints: The problems to play about.
        sampler: The replies to a batch of queries.
        keys: The key of each game; consumed.
    """
    growing = [
        _Growing.start(rules, datapoint, key)
        for datapoint, key in zip(datapoints, keys, strict=True)
    ]
    waiting = [(index, ask) for index, tree in enumerate(growing) for ask in tree.requests()]
    while waiting:
        replies = sampler([growing[index].query(request) for index, request in waiting])
        opened: list[tuple[int, ReplyRequest]] = []
        for (index, request), completions in zip(waiting, replies, strict=True):
            growing[index], requests = growing[index].answered(request, completions)
            opened += ((index, request) for request in requests)
        waiting = opened
    return tuple(tree.grown(index) for index, tree in enumerate(growing))


async def agrow(
    rules: Rules,
    datapoint: Datapoint,
    sampler: AsyncSampler,
    *,
    key: Key,
    gather: Callable[..., Awaitable[object]],
    datapoint_index: int = 0,
) -> Tree:
    """The tree of `grow`, grown in an event loop: one call for siblings, no barrier between nodes.

    Args:
        rules: The game, and how its trees branch.
        datapoint: The problem to play about.
        sampler: The replies to a query.
        key: The key of the game; consumed.
        gather: `asyncio.gather`, or that of another event loop.  The core imports none.
        datapoint_index: The tree's `datapoint_index`.
    """
    tree = _Growing.start(rules, datapoint, key)

    async def answer(request: ReplyRequest) -> None:
        nonlocal tree
        completions = await sampler(tree.query(request))
        # Read after the wait: other branches have grown meanwhile.
        tree, requests = tree.answered(request, completions)
        await gather(*map(answer, requests))

    await gather(*map(answer, tree.requests()))
    return tree.grown(datapoint_index)


class _Growing(NamedTuple):
    """A tree that grows, and the problem that it is about."""

    rules: Rules
    datapoint: Datapoint
    episode: Episode  # at the root
    root: Node

    @classmethod
    def start(cls, rules: Rules, datapoint: Datapoint, key: Key) -> "_Growing":
        episode = reset(datapoint, key)
        return cls(rules, datapoint, episode, new_tree(rules, episode))

    def requests(self) -> tuple[ReplyRequest, ...]:
        return tuple(pending_requests(self.root))

    def query(self, request: ReplyRequest) -> Query:
        path, agent, indices, attempt = request
        name, game = self.rules.protocol.agents[agent].name, self.episode.key
        keys = tuple(reply_key(game, path, name, index, attempt) for index in indices)
        return Query(self.datapoint, node_at(self.root, self.episode, path)[1], agent, keys)

    def answered(
        self, request: ReplyRequest, completions: Sequence[Completion]
    ) -> tuple["_Growing", tuple[ReplyRequest, ...]]:
        """The tree with the replies in it, and what it now waits for in their place."""
        root, opened = insert_all(self.rules, self.root, self.episode, request, completions)
        for answer in pending_checks(root):
            label = self.rules.checker(self.datapoint, answer)
            root, requests = insert_label(self.rules, root, self.episode, answer, label)
            opened += requests
        return self._replace(root=root), opened

    def grown(self, datapoint_index: int) -> Tree:
        name = self.rules.protocol.name
        return flatten(GameTree(name, datapoint_index, self.episode.key, self.root))


# ----------------------------------------------------------------------------- trees reply by reply


def new_tree(rules: Rules, episode: Episode) -> Node:
    """The root of a new tree: a game that has not begun."""
    reward = (0.0,) * len(rules.protocol.agents)
    return Node(reward=reward, status=episode.status, slots=_empty_slots(rules, episode))


def insert(
    rules: Rules, node: Node, episode: Episode, arrival: ReplyArrival
) -> tuple[Node, tuple[ReplyRequest, ...]]:
    """The tree with one more completion in it, and what it now has to ask for, paths from `node`.

    `episode` is the game at `node`; the path of `arrival` leads from there to the node that was
    waiting.  Raises `ValueError` where nothing waits for this completion.
    """
    path, agent, index, attempt, completion = msgspec.structs.astuple(arrival)
    request = ReplyRequest(path, agent, (index,), attempt)
    return insert_all(rules, node, episode, request, (completion,))


def insert_all(
    rules: Rules,
    node: Node,
    episode: Episode,
    request: ReplyRequest,
    completions: Sequence[Completion],
) -> tuple[Node, tuple[ReplyRequest, ...]]:
    """The tree with the completions of a request in it: `insert` of one after the other."""
    spine = [node]
    for rank in request.path:
        if not 0 <= rank < len(spine[-1].children):
            raise ValueError(f"there is no node at {request.path} yet")
        spine.append(spine[-1].children[rank])
    game = episode_after(episode, *spine[1:])
    answers = request.agent in _answerers(rules.protocol, game)
    labels = checked_answers(node) if answers else None
    grown, requests = _fill(rules, spine[-1], game, request, completions, labels)
    # Only the nodes on the path are copied; all other subtrees are shared with the old tree.
    for parent, rank in zip(spine[-2::-1], request.path[::-1], strict=True):
        children = (*parent.children[:rank], grown, *parent.children[rank + 1 :])
        grown = replace(parent, children=children)
    return grown, requests


def insert_label(
    rules: Rules, node: Node, episode: Episode, answer: str, label: int | None
) -> tuple[Node, tuple[ReplyRequest, ...]]:
    """The tree with the label of an answer in it, and what it now has to ask for.

    Args:
        rules: The rules by which the tree grows.
        node: The root.
        episode: The game at the root.
        answer: The answer, which may stand in several places.
        label: 1 if it is right, 0 if it is wrong; None if that could not be checked.

    Raises:
        ValueError: The tree does not wait for that answer to be checked.
    """
    labelled = _with_label(rules, node, episode, (), answer, label)
    if labelled is None:
        raise ValueError(f"nothing waits for a check of the answer {answer[:80]!r}")
    return labelled


def _with_label(
    rules: Rules, node: Node, episode: Episode, path: Path, answer: str, label: int | None
) -> tuple[Node, tuple[ReplyRequest, ...]] | None:
    """As `insert_label`, for the node at `path` and those below it; None if none of them waits."""
    if any(slot.answered is not None and slot.answered.answer == answer for slot in node.slots):
        slots = tuple(
            slot.with_label(label)
            if slot.answered is not None and slot.answered.answer == answer
            else slot
            for slot in node.slots
        )
        return _opened(rules, replace(node, slots=slots), episode, path)
    below = [
        _with_label(rules, child, episode_after(episode, child), (*path, rank), answer, label)
        for rank, child in enumerate(node.children)
    ]
    if not any(below):
        return None
    children = tuple(new[0] if new else old for new, old in zip(below, node.children, strict=True))
    requests = chain.from_iterable(new[1] for new in below if new)
    return replace(node, children=children), tuple(requests)


def _answerers(protocol: Protocol, episode: Episode) -> tuple[int, ...]:
    """The agents that are to state an answer next."""
    return tuple(move.agent for move in movers(protocol, episode) if move.answers)


def turns_at(episode: Episode, moves: Sequence[Move]) -> tuple[Turn, ...]:
    """The turns of the agents that move in this game next."""
    spoken = Counter(utterance.agent for turn in episode.rounds for utterance in turn)
    return tuple(Turn(move.agent, spoken[move.agent], episode.key) for move in moves)


def _empty_slots(rules: Rules, episode: Episode) -> tuple[Slot, ...]:
    moves = movers(rules.protocol, episode)
    # A node at which the game is over gets no slots, so it waits for nothing and leaves need no
    # flag.
    k = rules.num_replies(turns_at(episode, moves)) if moves else 0
    return tuple(Slot(move.agent) for move in moves for _ in range(k))


def _fill(
    rules: Rules,
    node: Node,
    episode: Episode,
    request: ReplyRequest,
    completions: Sequence[Completion],
    labels: Mapping[str, int | None] | None,
) -> tuple[Node, tuple[ReplyRequest, ...]]:
    """The node with the completions in it; `labels` are of earlier answers, None for a message."""
    path, agent, indices, attempt = request
    slots, most = list(node.slots), rules.num_attempts(agent)
    ranks = [rank for rank, slot in enumerate(slots) if slot.agent == agent]
    if not ranks:
        raise ValueError(f"nothing waits for replies of agent {agent} at {path}")
    parse = parser(rules.protocol, episode, agent)
    for index, completion in zip(indices, completions, strict=True):
        # The attempt must be the one waited for: a reply that was recorded twice, or to an attempt
        # that has been answered, is an error and never a second reply.
        rank = ranks[index] if 0 <= index < len(ranks) else None
        if rank is None or slots[rank].awaited_attempt != attempt:
            arrival = ReplyArrival(path, agent, index, attempt, completion)
            raise ValueError(f"nothing waits for this completion: {arrival}")
        slot = after_attempt(parse, most, slots[rank], completion, answers=labels is not None)
        answer = slot.answered.answer if slot.answered is not None else None
        if labels and answer is not None and answer in labels:
            slot = slot.with_label(labels[answer])
        slots[rank] = slot
    node = replace(node, slots=tuple(slots))
    # The children open as soon as this node's own slots are filled: no barrier between nodes or
    # trees, so a forest takes the time of its depth, not of its size.
    if any(slot.said is None for slot in slots):
        # With the last reply of an attempt, and not with each that fails: which of them share a
        # request, and pay its prompt once, is then the same live and after a crash.
        return node, tuple(
            later
            for later in requests_of(node, path)
            if later.agent == agent and later.attempt > attempt
        )
    return _opened(rules, node, episode, path)


def _opened(
    rules: Rules, node: Node, episode: Episode, path: Path
) -> tuple[Node, tuple[ReplyRequest, ...]]:
    """The node with its children, if all its slots are filled, and the requests of these."""
    if any(slot.said is None for slot in node.slots):
        return node, ()
    children = _branch(rules, node.slots, episode)
    opened = (
        requests_of(child, (*path, rank)) for rank, child in enumerate(children) if child.slots
    )
    return replace(node, children=children), tuple(chain.from_iterable(opened))


def _branch(rules: Rules, slots: tuple[Slot, ...], episode: Episode) -> tuple[Node, ...]:
    """One child for each combination of replies (`reply_combinations`)."""
    agents = tuple(dict.fromkeys(slot.agent for slot in slots))
    k = len(slots) // len(agents)
    children: list[Node] = []
    # Who moves next, and how often they have spoken, is the same in all children that are open.
    empty: tuple[Slot, ...] | None = None
    for indices in reply_combinations(len(agents), k, rules.simultaneous_branching):
        replies = (slots[mover * k + index].said for mover, index in enumerate(indices))
        turn = tuple(reply for reply in replies if reply is not None)
        arrived, reward = arrive(rules.protocol, episode, turn)
        if arrived.status == "open" and empty is None:
            empty = _empty_slots(rules, arrived)
        next_slots = empty if arrived.status == "open" and empty else ()
        expected = expected_rewards(rules.protocol, episode, turn)
        children.append(Node(turn, reward, arrived.status, next_slots, expected_reward=expected))
    return tuple(children)
