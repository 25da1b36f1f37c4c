"""Packing: the rows of a training as forests of tokens, in which every shared token stands once.

The rows of one tree begin alike: the prompt of a later round holds the whole of an earlier one, and
the two replies of a preference share theirs.  A model that reads a forest, each token attending to
its ancestors at its own depth, gives every reply the log-probability that it has by itself, for
the cost of the distinct tokens.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nip_fn.game.chat import Chat
from nip_fn.keys import Key, fold_in, permutation

Ints = NDArray[np.int64]
NO_PARENT = -1


class TokenRow(NamedTuple):
    """A row of a training as tokens: a prompt, and the replies to it."""

    prompt: list[int]
    replies: tuple[list[int], ...]

    @property
    def sequences(self) -> list[list[int]]:
        """The prompt with each of its replies."""
        return [self.prompt + reply for reply in self.replies]


class Packed(NamedTuple):
    """A forest of N tokens in preorder: each stands after its parent, next to its descendants.

    Token k is q or an ancestor of q exactly if `k <= q < ends[k]`.
    """

    rows: tuple[int, ...]  # the rows that are in it
    tokens: Ints  # [N]
    parents: Ints  # [N], NO_PARENT for a root
    positions: Ints  # [N], the depth: its index in every sequence that it is of
    ends: Ints  # [N], the index after its last descendant
    replies: tuple[tuple[Ints, ...], ...]  # of each row: the indices of each reply's tokens


class Block(NamedTuple):
    """Consecutive tokens of a forest, and all that they look at."""

    start: int
    end: int
    keys: Ints  # [K], ascending: the ancestors of the first token, then the tokens themselves
    is_seen: NDArray[np.bool_]  # [end - start, K], True where a token looks at a key


# Blocks begin where a branch does, or at a multiple of this many tokens.
BLOCK_STEP = 128
# A block costs as much by itself as so many pairs of tokens: measured with 2 heads on a processor.
BLOCK_COST = 32768


def pack(rows: Sequence[TokenRow], max_tokens: float, attention: float = 0.0) -> tuple[Packed, ...]:
    """Forests of at most `max_tokens` tokens that hold each row once, for the least cost.

    Rows stand in the order of their tokens, that of a walk through the forest of all of them, which
    is cut between rows.  A row that alone is larger makes a forest of its own.

    Args:
        rows: Those to pack.
        max_tokens: The most tokens of a forest.
        attention: A forest of n tokens costs n + attention · n², since each token looks at all of
            its forest.  At 0 the fewest tokens are repeated.

    Raises:
        ValueError: A prompt is empty, so that nothing predicts the first token of its replies.
    """
    if not all(row.prompt for row in rows):
        raise ValueError("a row has no prompt")
    order = sorted(range(len(rows)), key=lambda row: rows[row].sequences)
    cuts = _cuts([rows[row].sequences for row in order], max_tokens, attention)
    return tuple(forest(rows, order[start:end]) for start, end in pairwise(cuts))


def forest(rows: Sequence[TokenRow], members: Sequence[int]) -> Packed:
    """The one forest of some of the rows; the reply of a row without a prompt begins at a root."""
    sequences = [
        (sequence, row, reply)
        for row in sorted(members)
        for reply, sequence in enumerate(rows[row].sequences)
    ]
    # In the order of their tokens, each sequence adds what it does not share with the one before:
    # exactly the preorder of the trie.
    sequences.sort(key=lambda entry: entry[0])
    ordered = [np.array(sequence, dtype=np.int64) for sequence, *_ in sequences]
    shared = [0, *(_common(*pair) for pair in pairwise(ordered))]
    size = sum(map(len, ordered)) - sum(shared)
    tokens, parents, positions, ends = (np.full(size, size, dtype=np.int64) for _ in range(4))
    path, replies, start = np.empty(0, dtype=np.int64), {}, 0
    for (_, row, reply), sequence, common in zip(sequences, ordered, shared, strict=True):
        ends[path[common:]] = start
        new = np.arange(start, start + len(sequence) - common)
        path = np.concatenate((path[:common], new))
        tokens[new], positions[new] = sequence[common:], np.arange(common, len(sequence))
        parents[new] = np.concatenate(([NO_PARENT], path))[common : len(path)]
        replies[row, reply] = path[len(rows[row].prompt) :]
        start += len(new)
    return Packed(
        rows=tuple(sorted(members)),
        tokens=tokens,
        parents=parents,
        positions=positions,
        ends=ends,
        replies=tuple(
            tuple(replies[row, reply] for reply in range(len(rows[row].replies)))
            for row in sorted(members)
        ),
    )


def blocks(packed: Packed) -> tuple[Block, ...]:
    """The forest cut where attention then costs the least: no block looks at other branches.

    The first token of a block has all the ancestors outside it that any of its tokens has, since
    the forest stands in preorder.  A block of n tokens at depth d is n · (d + n) pairs.
    """
    size = len(packed.tokens)
    begins = np.flatnonzero(packed.parents != np.arange(size) - 1)
    places = np.unique(np.concatenate((begins, np.arange(0, size, BLOCK_STEP), [size])))
    depths, least, last = packed.positions[places[:-1]], np.zeros(len(places)), [0] * len(places)
    for end in range(1, len(places)):
        sizes = places[end] - places[:end]
        costs = least[:end] + BLOCK_COST + sizes * (depths[:end] + sizes)
        last[end] = int(costs.argmin())
        least[end] = costs[last[end]]
    cuts = [len(places) - 1]
    while cuts[-1]:
        cuts.append(last[cuts[-1]])
    ends = [int(places[cut]) for cut in cuts[::-1]]
    return tuple(_block(packed, start, end) for start, end in pairwise(ends))


def _block(packed: Packed, start: int, end: int) -> Block:
    """The block of the tokens from `start` to before `end`."""
    tokens = np.arange(start, end)
    keys = np.concatenate((np.flatnonzero(packed.ends[:start] > start), tokens))
    seen = (keys <= tokens[:, None]) & (tokens[:, None] < packed.ends[keys])
    return Block(start, end, keys, seen)


def _common(first: Ints, second: Ints) -> int:
    """The number of tokens with which both begin."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


def _cuts(rows: list[list[list[int]]], max_tokens: float, attention: float) -> list[int]:
    """The places to cut ordered rows at, both ends included: the least cost in all."""
    best = [(0.0, 0)] + [(inf, 0)] * len(rows)  # the cost of the rows before, and their last cut
    sizes = _sizes(rows, max_tokens)
    for start in range(len(rows)):
        for end, size in enumerate(sizes(start), start + 1):
            cost = best[start][0] + size + attention * size**2
            best[end] = min(best[end], (cost, start))
    cuts = [len(rows)]
    while cuts[-1]:
        cuts.append(best[cuts[-1]][1])
    return cuts[::-1]


def _sizes(rows: list[list[list[int]]], max_tokens: float) -> Callable[[int], Iterator[int]]:
    """For a row: the numbers of distinct tokens of it alone, with the next, with the next two, ...

    They end before the first above `max_tokens`; that of the row alone is always there.
    """
    entries = [(sequence, row) for row, sequences in enumerate(rows) for sequence in sequences]
    ranked = sorted(range(len(entries)), key=lambda entry: entries[entry][0])
    ordered = [np.array(entries[entry][0]) for entry in ranked]
    # What two sequences share is the least that neighbours between them share.
    least = _range_minimum([0, *(_common(*pair) for pair in pairwise(ordered))])
    ranks: list[list[int]] = [[] for _ in rows]
    for rank, entry in enumerate(ranked):
        ranks[entries[entry][1]].append(rank)

    def sizes(start: int) -> Iterator[int]:
        size, among = 0, list[int]()
        for row in range(start, len(rows)):
            for rank in ranks[row]:
                position = bisect(among, rank)
                before = least(among[position - 1] + 1, rank + 1) if position else 0
                after = least(rank + 1, among[position] + 1) if position < len(among) else 0
                size += len(ordered[rank]) - max(before, after)
                among.insert(position, rank)
            if size > max_tokens and row > start:
                return
            yield size

    return sizes


def _range_minimum(values: list[int]) -> Callable[[int, int], int]:
    """The function that gives the least of `values[start:end]`, in constant time.

    By a sparse table: of each power of two, the least of so many values from each place on.
    """
    table = [values]
    while 2 * (half := 1 << len(table) - 1) <= len(values):
        table.append([min(pair) for pair in zip(table[-1], table[-1][half:], strict=False)])

    def least(start: int, end: int) -> int:
        row = (end - start).bit_length() - 1
        return min(table[row][start], table[row][end - (1 << row)])

    return least


def tree_order(chats: Sequence[Chat], key: Key) -> tuple[int, ...]:
    """A random order of chats in which those that begin with the same messages stand together.

    A walk through the tree of their messages, the branches of each node in random order: batches of
    neighbours share what they can, and are as random as that allows.  `key` is consumed.
    """
    branches: dict[object, list[int]] = {}
    for index, chat in enumerate(chats):
        branches.setdefault(chat[0] if chat else index, []).append(index)
    members = list(branches.values())
    if len(chats) == 1:
        return (0,)
    return tuple(
        members[branch][place]
        for branch in permutation(fold_in(key, "branches"), len(members))
        for place in tree_order(
            [chats[index][1:] for index in members[branch]], fold_in(key, branch)
        )
    )
