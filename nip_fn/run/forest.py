"""A forest: a persistent sequence of trees, of which the finished ones are ready for use."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import isqrt
from typing import Self

import msgspec
from msgspec.structs import replace

from nip_fn.metrics.forest import ForestStats
from nip_fn.trees.node import GameTree
from nip_fn.trees.packed import PackedTree, unpack
from nip_fn.trees.tree import Tree, flatten


# Made with the tree's last reply, so that the end of a stage finds every tree flattened, counted
# and digested, and costs no request of the next stage any time.
class FinishedTree(msgspec.Struct, frozen=True):
    """A tree that waits for nothing more, packed: as records a reply would take 1.3 kB.

    packed: the tree.
    digest: of its facts.
    arrays: the tree as arrays; its utterances stay packed until they are looked at.
    stats: its counts.
    """

    packed: PackedTree
    digest: bytes
    arrays: Tree
    stats: ForestStats

    @property
    def num_waiting(self) -> int:
        """The replies that it waits for: none."""
        return 0


class Forest(msgspec.Struct, frozen=True):
    """A persistent sequence of trees: to replace one copies about 2√n references, and not n.

    blocks: the trees, √n to a block.
    size: their number.
    """

    blocks: tuple[tuple[GameTree | FinishedTree, ...], ...] = ()
    size: int = 0

    @classmethod
    def of(cls, trees: Sequence[GameTree | FinishedTree]) -> Self:
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
        """The trees in their order, as records."""
        return map(_records, self.kept())

    def __getitem__(self, index: int) -> GameTree:
        """The tree at an index from 0 on, as records; an IndexError if there is none."""
        block, offset = self._find(index)
        return _records(self.blocks[block][offset])

    def kept(self) -> Iterator[GameTree | FinishedTree]:
        """The trees in their order, as they are kept."""
        return chain.from_iterable(self.blocks)

    def finished(self) -> Iterator[FinishedTree]:
        """The finished trees, in their order."""
        return (tree for tree in self.kept() if isinstance(tree, FinishedTree))

    def growing(self) -> Iterator[tuple[int, GameTree]]:
        """(index, tree) for each tree that still waits for replies."""
        for index, tree in enumerate(self.kept()):
            if isinstance(tree, GameTree):
                yield index, tree

    def arrays(self) -> tuple[Tree, ...]:
        """The trees in their order, as arrays."""
        return tuple(
            tree.arrays if isinstance(tree, FinishedTree) else flatten(tree) for tree in self.kept()
        )

    def replaced(self, trees: Mapping[int, GameTree | FinishedTree]) -> Self:
        """The forest with other trees at some indices."""
        blocks = list(self.blocks)
        for index, tree in trees.items():
            number, offset = self._find(index)
            block = blocks[number]
            blocks[number] = (*block[:offset], tree, *block[offset + 1 :])
        return replace(self, blocks=tuple(blocks))

    def _find(self, index: int) -> tuple[int, int]:
        """The number of the tree's block, and its rank there."""
        if not 0 <= index < self.size:
            raise IndexError(f"no tree {index} among {self.size}")
        return divmod(index, len(self.blocks[0]))


def _records(tree: GameTree | FinishedTree) -> GameTree:
    return tree if isinstance(tree, GameTree) else unpack(tree.packed)
