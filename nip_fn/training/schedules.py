"""Schedules: values `int -> float` of an iteration, counted from 0."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import pairwise
from math import inf

from nip_fn.select.rollouts import as_written

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """Always the same value."""
    return lambda iteration: value


# The two ways in which the *nip* library anneals, with its formulas.  Exactly rounded: in floats
# 0.7 - 2 · 0.1 is less than a half, and a half of 22 rollouts would be 10.
def linear(start: float, rate: float) -> Schedule:
    """max(start - iteration · rate, 0).

    >>> linear(0.7, 0.1)(2)
    0.5
    """
    first, lost = as_written(start), as_written(rate)
    return lambda iteration: float(max(first - iteration * lost, Fraction(0)))


def exponential(start: float, rate: float) -> Schedule:
    """start · (1 - rate)^iteration."""
    first, kept = as_written(start), 1 - as_written(rate)
    return lambda iteration: float(first * kept**iteration)


def periodic(period: int, start: int, stop: int) -> Schedule:
    """1 in iterations `start` to `stop - 1` of every `period`, otherwise 0.

    >>> [periodic(3, 0, 2)(iteration) for iteration in range(6)]
    [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    """
    return lambda iteration: float(start <= iteration % period < stop)


def join(*parts: tuple[Schedule, int | None]) -> Schedule:
    """Schedules one after the other, each with the iteration at which the next one takes over.

    The numbers are boundaries, as in `optax.join_schedules` and in `compose.sequence`: they all
    count from iteration 0, and each part gets the iterations since it took over.  None: for ever.

    >>> [join((constant(1.0), 2), (linear(0.5, 0.25), None))(i) for i in range(5)]
    [1.0, 1.0, 0.5, 0.25, 0.0]

    Raises:
        ValueError: The boundaries do not ascend.
    """
    check_boundaries(boundary for _, boundary in parts)

    def joined(iteration: int) -> float:
        begin = 0
        for schedule, boundary in parts:
            if boundary is None or iteration < boundary:
                return schedule(iteration - begin)
            begin = boundary
        raise ValueError(f"no schedule holds in iteration {iteration}")

    return joined


def check_boundaries(boundaries: Iterable[int | None]) -> None:
    """Raise `ValueError` unless the boundaries ascend: a part between others would never run."""
    # Only the first may be 0, which skips it: a warm-up of no iterations.
    ends = [inf if boundary is None else boundary for boundary in boundaries]
    if any(begin >= end for begin, end in pairwise(ends)):
        shown = ", ".join("None" if end == inf else f"{end:g}" for end in ends)
        raise ValueError(
            f"the boundaries {shown} do not ascend; they are iterations counted from the start, "
            "not lengths"
        )
