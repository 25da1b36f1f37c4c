"""A forest: a persistent sequence of trees, of which the finished ones are kept packed."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import isqrt
from typing import NewType, Self
from zlib import compress, decompress

import msgspec
from msgspec.structs import replace

from nip_fn.trees.node import GameTree

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
        return cls(
            tuple(tuple(trees[start : start + width]) for start in range(0, size, width)), size
        )

    def __len__(self) -> int:
        """The number of trees."""
        # All blocks but the last are of one width.
        return self.size

    def __iter__(self) -> Iterator[GameTree]:
        """The trees in their order."""
        return map(unpacked, self.kept())

    def __getitem__(self, index: int) -> GameTree:
        """The tree at an index from 0 on; an IndexError if there is none."""
        block, offset = self._find(index)
        return unpacked(self.blocks[block][offset])

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
        number, offset = self._find(index)
        block = self.blocks[number]
        kept = tree if tree.num_waiting else PackedTree(compress(_encode(tree), 1))
        changed = (*block[:offset], kept, *block[offset + 1 :])
        return replace(self, blocks=(*self.blocks[:number], changed, *self.blocks[number + 1 :]))

    def _find(self, index: int) -> tuple[int, int]:
        """The number of the tree's block, and its rank there."""
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
