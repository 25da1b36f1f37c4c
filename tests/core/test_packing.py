"""Packing: forests of tokens that lose nothing and hold nothing twice."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.chat import Chat, Message
from nip_fn.keys import key
from nip_fn.training import packing
from nip_fn.training.packing import NO_PARENT, Packed, TokenRow, blocks, pack, tree_order

TOKENS = st.lists(st.integers(0, 2), max_size=6)
ROW = st.builds(
    TokenRow,
    TOKENS.filter(bool),
    st.lists(TOKENS, min_size=1, max_size=2).map(tuple),
)
ROWS = st.lists(ROW, max_size=8)
SIZE = st.integers(1, 40)


def sequence_of(packed: Packed, node: int) -> list[int]:
    """The tokens from a root to the node."""
    tokens: list[int] = []
    while node != NO_PARENT:
        tokens.insert(0, int(packed.tokens[node]))
        node = int(packed.parents[node])
    return tokens


def distinct(rows: list[TokenRow]) -> int:
    """The number of distinct beginnings of the rows' sequences."""
    sequences = [tuple(sequence) for row in rows for sequence in row.sequences]
    return len({sequence[: i + 1] for sequence in sequences for i in range(len(sequence))})


@given(ROWS, SIZE)
def test_every_row_comes_back_from_one_forest(rows: list[TokenRow], size: int) -> None:
    forests = pack(rows, size)
    assert sorted(row for packed in forests for row in packed.rows) == list(range(len(rows)))
    for packed in forests:
        for row, replies in zip(packed.rows, packed.replies, strict=True):
            assert len(replies) == len(rows[row].replies)
            for reply, nodes in zip(rows[row].replies, replies, strict=True):
                assert packed.tokens[nodes].tolist() == reply
                if reply:
                    assert sequence_of(packed, int(nodes[-1])) == rows[row].prompt + reply
                    before = packed.parents[nodes[0]]
                    assert sequence_of(packed, int(before)) == rows[row].prompt


@given(ROWS, SIZE)
def test_no_token_stands_twice_under_one_parent(rows: list[TokenRow], size: int) -> None:
    for packed in pack(rows, size):
        places = list(zip(packed.parents.tolist(), packed.tokens.tolist(), strict=True))
        assert len(set(places)) == len(places)
        assert len(places) == distinct([rows[row] for row in packed.rows])


@given(ROWS, SIZE)
def test_positions_are_depths_and_ends_tell_the_descendants(
    rows: list[TokenRow], size: int
) -> None:
    for packed in pack(rows, size):
        nodes = range(len(packed.tokens))
        lines = [ancestors(packed, node) for node in nodes]
        assert packed.positions.tolist() == [len(line) - 1 for line in lines]
        for node in nodes:
            assert lines[node] == [k for k in nodes if k <= node < packed.ends[k]]


def ancestors(packed: Packed, node: int) -> list[int]:
    """The nodes from a root to this one."""
    line = [node]
    while (parent := int(packed.parents[line[0]])) != NO_PARENT:
        line.insert(0, parent)
    return line


@given(ROWS, SIZE, st.sampled_from([0.0, 0.125, 1.0]))
def test_forests_are_as_small_as_asked_for_and_cost_the_least(
    rows: list[TokenRow], size: int, attention: float
) -> None:
    """The least of all ways to cut the ordered rows; a row that is too large stands alone."""
    forests = pack(rows, size, attention)
    assert all(len(p.tokens) <= size or len(p.rows) == 1 for p in forests)
    order = sorted(rows, key=lambda row: row.sequences)

    def cost(sizes: list[int]) -> float:
        return sum(size + attention * size**2 for size in sizes)

    def cost_of(cuts: tuple[int, ...]) -> float:
        parts = [order[start:end] for start, end in pairwise((0, *cuts, len(order)))]
        sizes = [distinct(part) for part in parts]
        fits = all(s <= size or len(part) == 1 for part, s in zip(parts, sizes, strict=True))
        return cost(sizes) if fits else np.inf

    if rows:
        inner = range(1, len(rows))
        best = min(cost_of(cuts) for n in range(len(rows)) for cuts in combinations(inner, n))
        assert cost([len(packed.tokens) for packed in forests]) == best


@given(ROWS, st.sampled_from([0, 4, 100]))
def test_every_token_meets_exactly_its_ancestors_in_its_block(
    rows: list[TokenRow], cost: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK_COST", cost)
        patch.setattr(packing, "BLOCK_STEP", 4)
        for packed in pack(rows, 40):
            parts, size = blocks(packed), len(packed.tokens)
            assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
            assert parts[-1].end == size
            for part in parts:
                for token, seen in zip(range(part.start, part.end), part.is_seen, strict=True):
                    assert part.keys[seen].tolist() == ancestors(packed, token)
            total = sum(cost + part.is_seen.size for part in parts)
            assert total <= cost + size**2  # never more than in one block


def test_blocks_leave_other_branches_out() -> None:
    rows = [TokenRow([*range(600)], ([*range(900, 960)], [*range(800, 860)]))]
    (packed,) = pack(rows, 1000)
    pairs = sum(part.is_seen.size for part in blocks(packed))
    assert 600 * 301 + 2 * 60 * 631 <= pairs < 0.75 * len(packed.tokens) ** 2
    (small,) = pack([TokenRow([*range(200)], ([1, 2], [3]))], 1000)
    assert len(blocks(small)) == 1  # not worth another call


def test_a_pair_shares_its_prompt_and_a_later_round_the_earlier_one() -> None:
    rows = [TokenRow([1, 2], ([3, 9], [4, 9])), TokenRow([1, 2, 3, 9, 7], ([3, 9], [4, 9]))]
    (packed,) = pack(rows, 100)
    assert packed.tokens.tolist() == [1, 2, 3, 9, 7, 3, 9, 4, 9, 4, 9]
    assert packed.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5, 4, 7, 1, 9]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 6, 2, 3]
    assert packed.ends.tolist() == [11, 11, 9, 9, 9, 7, 7, 9, 9, 11, 11]
    assert [[reply.tolist() for reply in row] for row in packed.replies] == [
        [[2, 3], [9, 10]],
        [[5, 6], [7, 8]],
    ]


def test_a_row_without_a_prompt_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="no prompt"):
        pack([TokenRow([], ([1],))], 10)


CHATS = st.lists(
    st.lists(st.sampled_from("abc"), max_size=4).map(
        lambda contents: tuple(Message("user", content) for content in contents)
    ),
    max_size=10,
)


@given(CHATS, st.integers())
def test_the_order_keeps_together_what_begins_alike(chats: list[Chat], seed: int) -> None:
    order = tree_order(chats, key(seed))
    assert sorted(order) == list(range(len(chats)))
    for chat in chats:
        for length in range(len(chat) + 1):
            alike = [place for place, i in enumerate(order) if chats[i][:length] == chat[:length]]
            assert alike == list(range(alike[0], alike[0] + len(alike)))


def test_the_order_of_trees_and_in_a_tree_is_random_and_keyed() -> None:
    chats: list[Chat] = [
        (Message("user", tree), Message("user", round)) for tree in "abc" for round in "123"
    ]
    orders = [tree_order(chats, key(seed)) for seed in range(400)]
    assert orders[:5] == [tree_order(chats, key(seed)) for seed in range(5)]
    for index in range(9):  # each stands anywhere, each place with a chance of one in nine
        counts = np.bincount([order.index(index) for order in orders], minlength=9)
        assert counts.min() > 400 / 9 / 2
        assert counts.max() < 400 / 9 * 2
