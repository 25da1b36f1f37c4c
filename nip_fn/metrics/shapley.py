"""Shapley values: the share that each part of a cause has in its effect."""

from collections.abc import Collection, Mapping
from itertools import chain, combinations
from math import factorial

import numpy as np
from numpy.typing import ArrayLike, NDArray


def subsets(parts: Collection[str]) -> tuple[frozenset[str], ...]:
    """All sets of some of the parts, the smallest first.

    >>> [sorted(some) for some in subsets(("prover", "verifier"))]
    [[], ['prover'], ['verifier'], ['prover', 'verifier']]
    """
    sizes = range(len(parts) + 1)
    return tuple(map(frozenset, chain.from_iterable(combinations(parts, size) for size in sizes)))


def shapley_values(outcomes: Mapping[frozenset[str], ArrayLike]) -> dict[str, NDArray[np.float64]]:
    """The gain that each part brings about, the mean over the orders in which they can be added.

        φ_i = Σ_S |S|! (n - |S| - 1)! / n!  (v(S ∪ {i}) - v(S))      over all S without i

    They add up to the outcome with all parts less that with none (Shapley 1953).

    >>> values = shapley_values({frozenset(s): v for s, v in (("", 0.5), ("a", 0.5), ("b", 0.6),
    ...                                                      ("ab", 1.0))})
    >>> {part: round(float(value), 2) for part, value in values.items()}
    {'a': 0.2, 'b': 0.3}

    Args:
        outcomes: v, by the parts that are there: numbers, or arrays of one shape (of problems,
            say), of each of whose elements the values are computed.

    Raises:
        KeyError: The outcome of a set of parts is missing.
    """
    everything = max(outcomes, key=len)
    num = len(everything)

    def value(part: str) -> NDArray[np.float64]:
        gains = [
            (np.asarray(outcomes[some | {part}], float) - np.asarray(outcomes[some], float))
            * (factorial(len(some)) * factorial(num - len(some) - 1) / factorial(num))
            for some in subsets(everything - {part})
        ]
        return np.asarray(sum(gains))

    return {part: value(part) for part in sorted(everything)}
