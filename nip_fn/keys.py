"""Keys: randomness derived from *where* a thing is, never from *when* it happened.

A key is 16 bytes.  Every random draw of a run consumes a key that was folded from the run's seed
along a path (iteration, datapoint, place in the tree, ...), so the order in which replies arrive
cannot change any of them.  The discipline is JAX's: a key is consumed once; to draw twice, split.

>>> root = key(6198)
>>> fold_in(root, "train", 3) == fold_in(fold_in(root, "train"), 3)
True
>>> fold_in(root, "ab") == fold_in(root, "a", "b")
False
>>> 0.0 <= uniform(fold_in(root, "dice")) < 1.0
True
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import NewType

Key = NewType("Key", bytes)

KEY_SIZE = 16


def key(seed: int) -> Key:
    """The root key of a run: 16 bytes that depend on `seed` alone (any Python integer)."""
    return Key(blake2b(b"seed:%d" % seed, digest_size=KEY_SIZE).digest())


def fold_in(key: Key, *path: int | str) -> Key:
    """The key of the place that `path` leads to from `key`'s place; folding composes along paths.

    Integers and strings never collide with one another (`1` is not `"1"`).
    """
    # The parent is the hash's key and one label its message, step by step.  A hash of the joined
    # path would give the paths ("ab",) and ("a", "b") the same key.
    data: bytes = key
    for part in path:
        # Labels of integers, of strings and of `split` begin with three different letters, so no
        # key of one kind is ever a key of another.
        label = b"i%d" % part if isinstance(part, int) else b"s" + part.encode()
        data = blake2b(label, key=data, digest_size=KEY_SIZE).digest()
    return Key(data)


def split(key: Key, num: int = 2) -> tuple[Key, ...]:
    """`num` independent keys; `key` is consumed."""
    return tuple(
        Key(blake2b(b"k%d" % i, key=key, digest_size=KEY_SIZE).digest()) for i in range(num)
    )


def seed_of(key: Key, bits: int = 32) -> int:
    """An unsigned integer of `bits` bits for a sampler that wants a seed; `key` is consumed."""
    return int.from_bytes(key, "little") & ((1 << bits) - 1)


def uniform(key: Key) -> float:
    """A uniform float in [0, 1), a multiple of 2^-53; `key` is consumed."""
    # A double has 53 bits of precision: with as many the product is exact, and cannot round up to
    # 1.
    return seed_of(key, 53) * 2.0**-53


def randint(key: Key, size: int) -> int:
    """A uniform integer from 0 to `size - 1` (its bias is below `size / 2**128`); consumes `key`.

    >>> sorted({randint(fold_in(key(0), i), 3) for i in range(50)})
    [0, 1, 2]
    """
    # A loop that draws again would remove the bias altogether, which no run is long enough to
    # notice.
    return int.from_bytes(key, "little") % size


def permutation(key: Key, size: int) -> tuple[int, ...]:
    """A uniform permutation of `range(size)`; `key` is consumed.

    Every element draws a lot, a key of its own, and the lots are sorted.  The order is therefore a
    function of the hash alone and the same under every version of NumPy, whose generators promise
    their streams for one build only.
    """
    # Unlike in a Fisher-Yates shuffle, the order of two elements depends on their own lots alone,
    # so another size leaves it as it is.
    lots = [fold_in(key, i) for i in range(size)]
    return tuple(sorted(range(size), key=lots.__getitem__))


def weighted_choice(
    key: Key, weights: Sequence[float], size: int, *, replace: bool
) -> tuple[int, ...]:
    """`size` indices in the order of the draws, each by inverse CDF of `weights`; consumes `key`.

    Args:
        key: Consumed; draw i uses `fold_in(key, i)`.
        weights: Non-negative, with a positive sum.  They need not sum to one.
        size: The number of draws.  Without replacement at most the number of positive weights.
        replace: True if an index may be drawn more than once.

    Raises:
        ValueError: No positive weight is left to draw from.
    """
    remaining, drawn = list(weights), list[int]()
    for draw in range(size):
        cumulative = list(accumulate(remaining))
        if not cumulative or cumulative[-1] <= 0:
            raise ValueError(f"draw {draw} finds no positive weight")
        # The point is scaled to the sum of the weights instead of the weights to one: what has been
        # drawn already leaves the sum by itself, and nothing is divided.
        point = uniform(fold_in(key, draw)) * cumulative[-1]
        # The first index whose cumulative weight exceeds the point: one of weight 0 never does.
        index = next((i for i, edge in enumerate(cumulative) if edge > point), len(remaining) - 1)
        drawn.append(index)
        if not replace:
            remaining[index] = 0.0
    return tuple(drawn)
