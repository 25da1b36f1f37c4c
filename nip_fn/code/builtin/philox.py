"""The stream of random integers that `builtin:arithmetic` has always been drawn from.

NumPy promises the streams of its bit generators, but not of the methods that draw from them (NEP
19), and a data set is part of a run's digest.  So this is Philox-4x64-10 (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3"), with bounded integers as NumPy 2 draws them (Lemire
2019, "Fast random integer generation in an interval"), in Python's own integers.

>>> draw = integers(Key(bytes(16)))
>>> [draw(10) for _ in range(5)]
[0, 0, 6, 2, 3]
"""

from collections.abc import Callable, Iterator
from itertools import count

from nip_fn.keys import Key

_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # added to the key after each round
_ROUNDS = 10
_64_BITS = (1 << 64) - 1
_32_BITS = (1 << 32) - 1


def integers(key: Key) -> Callable[[int], int]:
    """A function of `size` that draws a uniform integer below `size` (at most 2^32 - 1).

    Each call draws the next one; `key` is consumed.
    """
    words = _words(key)

    def draw(size: int) -> int:
        if size == 1:  # NumPy takes nothing from the stream then
            return 0
        product = next(words) * size
        if product & _32_BITS < size:  # the words that would favour small integers are skipped
            least = (1 << 32) % size
            while product & _32_BITS < least:
                product = next(words) * size
        return product >> 32

    return draw


def _words(key: Key) -> Iterator[int]:
    """The stream in words of 32 bits, of each 64 the lower half first."""
    number = int.from_bytes(key, "little")
    for block in count(1):
        for word in _block(block, number & _64_BITS, number >> 64):
            yield word & _32_BITS
            yield word >> 32


def _block(counter: int, key_0: int, key_1: int) -> tuple[int, int, int, int]:
    """Four words of 64 bits: the counter, encrypted with the key."""
    a, b, c, d = counter, 0, 0, 0  # no data set comes near 2^64 blocks
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b = (second >> 64) ^ b ^ key_0, second & _64_BITS
        c, d = (first >> 64) ^ d ^ key_1, first & _64_BITS
        key_0, key_1 = (key_0 + _WEYL[0]) & _64_BITS, (key_1 + _WEYL[1]) & _64_BITS
    return a, b, c, d
