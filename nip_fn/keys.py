"""Keys: randomness derived from *where* a thing is, never from *when* it happened.

A key is 16 bytes.  Every random draw of a run consumes a key that was folded from the run's seed
along a path (iteration, datapoint, place in the tree, ...), so the order in which replies arrive
cannot change any of them.  The discipline is JAX's: a key is consumed once; to draw twice, split.

>>> root = key(6198)
>>> fold_in(root, "train", 3) == fold_in(fold_in(root, "train"), 3)
True
>>> fold_in(root, "ab") == fold_in(root, "a", "b")
False
>>> int(generator(fold_in(root, "dice")).integers(1, 7)) in range(1, 7)
True
"""

from hashlib import blake2b
from typing import NewType

import numpy as np

Key = NewType("Key", bytes)

KEY_SIZE = 16


def key(seed: int) -> Key:
    """The root key of a run: 16 bytes that depend on `seed` alone (any Python integer)."""
    return Key(blake2b(b"seed:%d" % seed, digest_size=KEY_SIZE).digest())


def fold_in(key: Key, *path: int | str) -> Key:
    """The key of the place that `path` leads to from `key`'s place; folding composes along paths.

    Integers and strings never collide with one another (`1` is not `"1"`).
    """
    data: bytes = key
    for part in path:
        label = b"i%d" % part if isinstance(part, int) else b"s" + part.encode()
        data = blake2b(label, key=data, digest_size=KEY_SIZE).digest()
    return Key(data)


def split(key: Key, num: int = 2) -> tuple[Key, ...]:
    """`num` independent keys; `key` is consumed."""
    return tuple(
        Key(blake2b(b"k%d" % i, key=key, digest_size=KEY_SIZE).digest()) for i in range(num)
    )


def generator(key: Key) -> np.random.Generator:
    """A NumPy generator (Philox, counter-based) that draws from `key`; `key` is consumed."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def seed_of(key: Key, bits: int = 32) -> int:
    """An unsigned integer of `bits` bits for a sampler that wants a seed; `key` is consumed."""
    return int.from_bytes(key, "little") & ((1 << bits) - 1)


def randint(key: Key, size: int) -> int:
    """A uniform integer from 0 to `size - 1` (its bias is below `size / 2**128`); consumes `key`.

    >>> sorted({randint(fold_in(key(0), i), 3) for i in range(50)})
    [0, 1, 2]
    """
    return int.from_bytes(key, "little") % size


def permutation(key: Key, size: int) -> np.ndarray:
    """A uniform permutation of `range(size)`, shape `[size]`; `key` is consumed."""
    return generator(key).permutation(size)
