"""Growing a tree of replies: a persistent rose tree that knows which replies it still waits for.

A node is a position after a round.  An open node has `k` slots for each agent that moves there, and
its children open as soon as the last of its own slots is filled, whatever happens elsewhere.  Where
m agents move at once, the children are either k, one for everyone's i-th reply ("joint"), or k^m,
one for each way to combine a reply of every mover ("product").  A new reply copies only the nodes
on its path (O(depth)), and the tree is a function of the *set* of replies that it holds, not of the
order in which they came.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, product
from math import isqrt
from typing import Literal, NamedTuple, NewType, Self
from zlib import compress, decompress

import msgspec
from msgspec.structs import replace
from returns.result import Failure

from nip_fn.game.episode import (
    Episode,
    Round,
    Utterance,
    forced_decision,
    may_decide,
    movers,
    play_round,
)
from nip_fn.game.protocol import Move, Protocol, Status
from nip_fn.game.reply import (
    FINAL_ERRORS,
    MOST_EMPTY,
    Completion,
    Reply,
    ReplyError,
    is_empty_at_limit,
    parse_reply,
)
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


# A node does not hold the game at it, which follows from the utterances on the path (`after`).
# Every node would otherwise repeat the rounds of all nodes above it.
class Node(msgspec.Struct, frozen=True, array_like=True):
    """A position after a round."""

    utterances: Round = ()  # of the round that led here; () at the root
    reward: tuple[float, ...] = ()  # [A] received on arriving
    status: Status = "open"
    slots: tuple[Slot, ...] = ()  # [movers * k], mover by mover
    children: tuple["Node", ...] = ()  # [k], or [k^movers], once every slot is filled


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


class Rules(NamedTuple):
    """The rules by which a tree grows.

    protocol: the game.
    branching: the turns of all agents that move at a node -> k, the replies of each.
    attempts: `[A]` attempts at a reply before it is recorded as invalid.
    simultaneous_branching: the children of k replies each of several agents that move at once.
    """

    protocol: Protocol
    # A function and not a number, so that a trainer decides by who moves and when: rounds in which
    # only frozen agents speak need no siblings.  One k for all movers, since "joint" combines the
    # i-th replies of all.
    branching: Callable[[tuple[Turn, ...]], int]
    attempts: tuple[int, ...]
    simultaneous_branching: SimultaneousBranching = "joint"


class GameTree(msgspec.Struct, frozen=True, array_like=True):
    """A tree of replies, and what it is about."""

    datapoint: int  # its index among the datapoints of the stage
    key: Key  # of the game, as `reset` takes it
    root: Node
    num_waiting: int = 0  # replies that it waits for

    def __repr__(self) -> str:
        """The tree in a line; `flatten` makes the record that shows more."""
        return (
            f"GameTree(datapoint {self.datapoint}, {len(self.root.children)} children at the root)"
        )


PackedTree = NewType("PackedTree", bytes)  # compressed MessagePack of a `GameTree`
UNPACKED = 256  # packed trees that are held unpacked after they were looked at


class Forest(msgspec.Struct, frozen=True):
    """A persistent sequence of trees: to replace one copies about 2√n references, and not n.

    A tree that waits for nothing more is kept packed, and unpacked when it is looked at: as records
    a reply takes 1.3 kB, packed a tenth of that.

    blocks: the trees, √n to a block.
    size: their number.
    """

    blocks: tuple[tuple[GameTree | PackedTree, ...], ...] = ()
    size: int = 0

    @classmethod
    def of(cls, trees: Sequence[GameTree]) -> Self:
        """A forest of these trees."""
        size = len(trees)
        width = max(1, isqrt(size))
        return cls(tuple(tuple(trees[at : at + width]) for at in range(0, size, width)), size)

    def __len__(self) -> int:
        """The number of trees."""
        # All blocks but the last are of one width.
        return self.size

    def __iter__(self) -> Iterator[GameTree]:
        """The trees in their order."""
        return map(unpacked, self.kept())

    def __getitem__(self, index: int) -> GameTree:
        """The tree at an index from 0 on; an IndexError if there is none."""
        block, place = self._place(index)
        return unpacked(self.blocks[block][place])

    def kept(self) -> Iterator[GameTree | PackedTree]:
        """The trees in their order, as they are kept."""
        return chain.from_iterable(self.blocks)

    def growing(self) -> Iterator[tuple[int, GameTree]]:
        """(index, tree) for each tree that still waits for replies."""
        for index, tree in enumerate(self.kept()):
            if not isinstance(tree, bytes):
                yield index, tree

    def replaced(self, index: int, tree: GameTree) -> Self:
        """The forest with another tree at the index."""
        at, place = self._place(index)
        block = self.blocks[at]
        kept = tree if tree.num_waiting else PackedTree(compress(_encode(tree), 1))
        changed = (*block[:place], kept, *block[place + 1 :])
        return replace(self, blocks=(*self.blocks[:at], changed, *self.blocks[at + 1 :]))

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.size:
            raise IndexError(f"no tree {index} among {self.size}")
        return divmod(index, len(self.blocks[0]))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GameTree).decode


def unpacked(tree: GameTree | PackedTree) -> GameTree:
    """The tree as records."""
    return tree if isinstance(tree, GameTree) else _unpack(tree)


# Metrics, selection and digests read the trees of a stage one after the other: of an ordinary stage
# each is unpacked once, and of a large one no more than so many are held.
@lru_cache(maxsize=UNPACKED)
def _unpack(tree: PackedTree) -> GameTree:
    return _decode(decompress(tree))


# (the game so far, the agent that speaks, key) -> its reply; the key is consumed.
Policy = Callable[[Episode, int, Key], Completion]


def grow(rules: Rules, episode: Episode, policy: Policy, *, datapoint: int = 0) -> GameTree:
    """A whole tree from the start of a game on, every reply drawn from `policy`.

    A reply's key is `reply_key` of its place, so the tree is the one that a run with this game key
    and a sampler that does as the policy does would have grown.
    """
    root = new_tree(rules, episode)
    waiting = list(pending_requests(root))
    # The order does not matter: a reply is a function of its key, and its key of its place.
    while waiting:
        path, agent, indices, attempt = waiting.pop()
        name = rules.protocol.agents[agent].name
        here = node_at(root, episode, path)[1]
        for index in indices:
            completion = policy(here, agent, reply_key(episode.key, path, name, index, attempt))
            arrival = ReplyArrival(path, agent, index, attempt, completion)
            root, requests = insert(rules, root, episode, arrival)
            waiting.extend(requests)
    return GameTree(datapoint, episode.key, root)


def reply_key(game: Key, path: Path, agent: str, index: int, attempt: int) -> Key:
    """The key of one attempt at one reply, from the key of its game."""
    # The agent's name marks the end of the path: a string among integers, so no reply at one node
    # has the key of a reply at a deeper one.
    return fold_in(game, *path, agent, index, attempt)


def new_tree(rules: Rules, episode: Episode) -> Node:
    """The root of a new tree: a game that has not begun."""
    reward = (0.0,) * len(rules.protocol.agents)
    return Node(reward=reward, status=episode.status, slots=_empty_slots(rules, episode))


def insert(
    rules: Rules, node: Node, episode: Episode, given: ReplyArrival
) -> tuple[Node, tuple[ReplyRequest, ...]]:
    """The tree with one more completion in it, and what it now has to ask for, paths from `node`.

    `episode` is the game at `node`; the path of `given` leads from there to the node that was
    waiting.  Raises `ValueError` where nothing waits for this completion.
    """
    spine = [node]
    for rank in given.path:
        if not 0 <= rank < len(spine[-1].children):
            raise ValueError(f"there is no node at {given.path} yet")
        spine.append(spine[-1].children[rank])
    grown, asks = _fill(rules, spine[-1], after(episode, *spine[1:]), given)
    # Only the nodes on the path are copied; all other subtrees are shared with the old tree.
    for parent, rank in zip(spine[-2::-1], given.path[::-1], strict=True):
        children = (*parent.children[:rank], grown, *parent.children[rank + 1 :])
        grown = msgspec.structs.replace(parent, children=children)
    return grown, asks


def after(episode: Episode, *nodes: Node) -> Episode:
    """The game at the last of `nodes`, which follow one another from where `episode` is."""
    if not nodes:
        return episode
    rounds = (*episode.rounds, *(node.utterances for node in nodes))
    return msgspec.structs.replace(episode, rounds=rounds, status=nodes[-1].status)


def num_waiting_at(node: Node, path: Path) -> int:
    """The number of empty slots at the node that `path` leads to, and at its children."""
    for rank in path:
        node = node.children[rank]
    return sum(slot.said is None for one in (node, *node.children) for slot in one.slots)


def node_at(node: Node, episode: Episode, path: Path) -> tuple[Node, Episode]:
    """The node that `path` leads to from `node`, and the game there."""
    spine = [node]
    for rank in path:
        spine.append(spine[-1].children[rank])
    return spine[-1], after(episode, *spine[1:])


def pending_requests(node: Node, path: Path = ()) -> Iterator[ReplyRequest]:
    """All requests that the tree at `path` waits for, in the order of its paths, breadth last."""
    yield from _asks(node.slots, path)
    for rank, child in enumerate(node.children):
        yield from pending_requests(child, (*path, rank))


def _empty_slots(rules: Rules, episode: Episode) -> tuple[Slot, ...]:
    moves = movers(rules.protocol, episode)
    # A node at which the game is over gets no slots, so it waits for nothing and leaves need no
    # flag.
    k = rules.branching(turns_at(episode, moves)) if moves else 0
    return tuple(Slot(move.agent) for move in moves for _ in range(k))


def turns_at(episode: Episode, moves: Sequence[Move]) -> tuple[Turn, ...]:
    """The turns of the agents that move in this game next."""
    spoken = Counter(said.agent for turn in episode.rounds for said in turn)
    return tuple(Turn(move.agent, spoken[move.agent], episode.key) for move in moves)


def _fill(
    rules: Rules, node: Node, episode: Episode, given: ReplyArrival
) -> tuple[Node, tuple[ReplyRequest, ...]]:
    # The attempt must be the one waited for: a reply that was recorded twice, or to an attempt that
    # has been answered, is an error and never a second reply.
    places = [i for i, slot in enumerate(node.slots) if slot.agent == given.agent]
    place = places[given.index] if 0 <= given.index < len(places) else None
    if place is None or _waits_for(node.slots[place]) != given.attempt:
        raise ValueError(f"nothing waits for this completion: {given}")
    slot = _attempt(rules, node.slots[place], episode, given.completion)
    slots = (*node.slots[:place], slot, *node.slots[place + 1 :])
    node = msgspec.structs.replace(node, slots=slots)
    # The children open as soon as this node's own slots are filled: no barrier between nodes or
    # trees, so a forest takes the time of its depth, not of its size.
    if any(slot.said is None for slot in slots):
        asks = _asks(slots, given.path)
        # With the last reply of an attempt, and not with each that fails: which of them share a
        # request, and pay its prompt once, is then the same live and after a crash.
        return node, tuple(
            ask for ask in asks if ask.agent == given.agent and ask.attempt > given.attempt
        )
    children = _branch(rules, slots, episode)
    opened = (_asks(child.slots, (*given.path, rank)) for rank, child in enumerate(children))
    return msgspec.structs.replace(node, children=children), tuple(chain.from_iterable(opened))


def _waits_for(slot: Slot) -> int | None:
    """The attempt that the slot waits for; None where it is filled."""
    return slot.attempts if slot.said is None else None


def _attempt(rules: Rules, slot: Slot, episode: Episode, completion: Completion) -> Slot:
    """The slot after one more attempt: filled, or waiting for the next one."""
    agent = slot.agent
    reply, error = _heard(rules.protocol, episode, agent, completion)
    attempts = slot.attempts + 1
    prompt_tokens = slot.prompt_tokens + completion.prompt_tokens
    completion_tokens = slot.completion_tokens + completion.completion_tokens
    cached_tokens = slot.cached_tokens + completion.cached_tokens
    # A failed attempt is asked for again under a key of its own; the last one is recorded as it is,
    # so that a model that never speaks properly ends the game instead of the run.
    latest = (*slot.failed, completion)[-MOST_EMPTY:]
    is_limited = len(latest) == MOST_EMPTY and all(map(is_empty_at_limit, latest))
    is_final = error in FINAL_ERRORS or is_limited
    if reply is None and attempts < rules.attempts[agent] and not is_final:
        tokens = (prompt_tokens, completion_tokens, cached_tokens)
        return Slot(agent, None, attempts, *tokens, failed=(*slot.failed, completion))
    said = Utterance(
        agent=agent,
        raw=completion.text or "",
        messages=reply.messages if reply else (),
        decision=reply.decision if reply else None,
        error=error,
        attempts=attempts,
        token_limit=completion.finish_reason == "length",
        model=completion.model,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
    )
    return Slot(agent, said, failed=slot.failed)


def _heard(
    protocol: Protocol, episode: Episode, agent: int, completion: Completion
) -> tuple[Reply | None, ReplyError | None]:
    """The reply that the completion is in this game, or why it is none.

    Under `force_guess` it is the forced decision.
    """
    # The decision itself is replaced.  The *nip* library forces only the test that the game is
    # decided, and then pays for whatever the verifier had said.
    counts = may_decide(protocol, len(episode.rounds), agent)
    forced = forced_decision(protocol, episode) if counts else None
    if forced is not None:
        return Reply(messages=(), decision=forced), None
    move = next(move for move in movers(protocol, episode) if move.agent == agent)
    parsed = parse_reply(
        completion,
        move=move,
        may_decide=counts,
        spectrum=protocol.spectrum,
        headers=protocol.headers(move),
    )
    return (None, parsed.failure()) if isinstance(parsed, Failure) else (parsed.unwrap(), None)


def reply_combinations(
    num_movers: int, k: int, how: SimultaneousBranching
) -> tuple[tuple[int, ...], ...]:
    """Which of its k replies each mover gives in each of the rounds that follow a node, in order.

    >>> reply_combinations(2, 2, "joint")
    ((0, 0), (1, 1))
    >>> reply_combinations(2, 2, "product")
    ((0, 0), (0, 1), (1, 0), (1, 1))
    """
    # The k^m children of "product" each ask for k replies of every mover in the next round, so a
    # game of n rounds has up to k^(mn) leaves; "joint" keeps it at k^n and is the default.
    if how == "product":
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
        return tuple({said.agent: i for said in c.utterances} for i, c in enumerate(node.children))
    k = len(node.slots) // len(agents)
    # k children can only be joint: the two rules agree where k^m is k, that is for one mover or one
    # reply.
    how: SimultaneousBranching = "joint" if len(node.children) == k else "product"
    return tuple(
        dict(zip(agents, indices, strict=True))
        for indices in reply_combinations(len(agents), k, how)
    )


def _branch(rules: Rules, slots: tuple[Slot, ...], episode: Episode) -> tuple[Node, ...]:
    """One child for each combination of replies (`reply_combinations`)."""
    agents = tuple(dict.fromkeys(slot.agent for slot in slots))
    k = len(slots) // len(agents)
    children: list[Node] = []
    # Who moves next, and how often they have spoken, is the same in all children that are open.
    empty: tuple[Slot, ...] | None = None
    for indices in reply_combinations(len(agents), k, rules.simultaneous_branching):
        spoken = (slots[mover * k + index].said for mover, index in enumerate(indices))
        turn = tuple(said for said in spoken if said is not None)
        arrived, reward = play_round(rules.protocol, episode, turn)
        if arrived.status == "open" and empty is None:
            empty = _empty_slots(rules, arrived)
        own = empty if arrived.status == "open" and empty else ()
        children.append(Node(turn, reward, arrived.status, own))
    return tuple(children)


def _asks(slots: tuple[Slot, ...], path: Path) -> Iterator[ReplyRequest]:
    """A request for each agent that the node at `path` waits for, of its earliest attempt."""
    # The attempt is a part of each reply's key, so slots that have failed a different number of
    # times cannot share a request.  Those that have failed more often wait for the others.
    waiting: dict[int, dict[int, list[int]]] = {}
    seen: dict[int, int] = {}
    for slot in slots:
        index = seen[slot.agent] = seen.get(slot.agent, -1) + 1
        if slot.said is None:
            waiting.setdefault(slot.agent, {}).setdefault(slot.attempts, []).append(index)
    for agent, indices in waiting.items():
        attempt = min(indices)
        yield ReplyRequest(path, agent, tuple(indices[attempt]), attempt)
