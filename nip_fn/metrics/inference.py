"""Statistical inference over seeds and problems: intervals, paired tests, power.

Two things are drawn at random in an experiment: the seeds of the trainings, and the problems of the
test.  Every seed meets every problem, so they are crossed, and an interval must allow for both.  A
matrix of outcomes is `[S, P]`, seeds by problems, each the mean over the games about that problem.

Nothing here draws random numbers but `sign_flip` of many values, whose draws are keyed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import product
from math import exp, fsum, hypot, inf, lgamma, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nip_fn.metrics.formulas import Z_95, effective_size, mean, wilson_interval

LEVEL = 0.975  # the upper quantile of a two-sided 95 % interval

# Of differences whose signs are enumerated (2^15 sums), and of flips that are drawn beyond it.
MOST_ENUMERATED = 16
FLIPS = 9_999

MOST_SEEDS = 1000  # that are ever proposed


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A paired difference with its 95 % interval and two p-values, both two-sided.

    p: of the t-test that the interval belongs to: below 0.05 if and only if it excludes 0.
    p_flip: of the exact sign-flip test over seeds, or over problems where there is one seed.  Of S
      seeds it is never below 2^(1 - S): five seeds give 1/16 at best.  None where there are no
      pairs of seeds to flip.
    """

    value: float
    low: float
    high: float
    p: float
    p_flip: float | None


# ------------------------------------------------------------------------------------- intervals


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of one value a seed, with Student's interval: x̄ ± t s / √n on n - 1 degrees.

    Of a single value the interval is unbounded: one seed tells nothing of the spread over seeds.
    Seeds that were all tested on the same problems share those problems' luck, which this interval
    leaves out; `crossed_interval` does not.

    >>> value, low, high = t_interval([0.18, 0.22, 0.25, 0.19, 0.21])
    >>> round(value, 3), round(low, 3), round(high, 3)
    (0.21, 0.176, 0.244)
    """
    return _interval(_spread(np.asarray(values, dtype=np.float64)[:, None]))


def crossed_interval(outcomes_SP: ArrayLike) -> Estimate:
    """The mean of outcomes `[S, P]` with an interval over seeds and problems, crossed.

    y = μ + seed + problem + rest, with the mean squares A of seeds, B of problems and E of the rest
    (two-way layout without replication):  ȳ ± t √((A + B - E) / SP), the degrees of freedom by
    Satterthwaite (1946, "An approximate distribution of estimates of variance components").  Of a
    single seed the interval is over problems alone, of a single problem over seeds alone.

    >>> value, low, high = crossed_interval([[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1]])
    >>> round(value, 3), round(low, 3), round(high, 3)
    (0.667, -0.097, 1.43)
    """
    # Chosen by simulation (tests/benchmarks/bench_coverage.py) over the bootstrap that resamples
    # rows and columns (Owen 2007, "The pigeonhole bootstrap"): with five seeds percentiles are too
    # narrow by √(4/5) and know no t.
    return _interval(_spread(_matrix(outcomes_SP)))


def crossed_share(outcomes_SP: ArrayLike, level: float = LEVEL) -> Estimate:
    """The mean of outcomes `[S, P]` between 0 and 1, its interval within these bounds.

    Wilson's interval for the number n of independent games that would have the variance of
    `crossed_interval`, and with its t (Franco, Little, Louis and Slud 2019, "Comparative study of
    confidence intervals for proportions in complex sample surveys").  n = P if no outcome differs.
    `level` is the interval's upper quantile.

    >>> value, low, high = crossed_share([[1.0] * 20] * 5)
    >>> value, round(low, 3), round(high, 3)
    (1.0, 0.839, 1.0)
    """
    outcomes = _matrix(outcomes_SP)
    mean, variance, degrees = _spread(outcomes)
    num, between = outcomes.size, mean * (1 - mean)
    if outcomes.min() == outcomes.max():
        problems = outcomes.shape[1]
        z = NormalDist().inv_cdf(level)
        return Estimate(mean, *wilson_interval(mean * problems, problems, z))
    # Against p(1 - p)/(n - 1), the estimated variance of independent games, so that one game about
    # each problem and one seed give n = P.
    effective = num * between / ((num - 1) * variance)
    z = student_quantile(level, degrees)
    return Estimate(mean, *wilson_interval(mean * effective, effective, z))


def clustered_share(clusters: Iterable[tuple[float, float]], games: int) -> Estimate:
    """The share of games that are right, of which those about one datapoint are a cluster.

    Wilson's interval of the `effective_size`, with Student's t on one degree less than there are
    clusters, as in `crossed_share`; with the normal quantile if no cluster has two games, or if
    they do not differ.

    Args:
        clusters: (weight, share) of the games about each datapoint, one or more.
        games: The games in all.

    >>> value, low, high = clustered_share([(1.0, 1.0), (1.0, 0.0), (1.0, 1.0), (1.0, 1.0)], 4)
    >>> round(value, 3), round(low, 3), round(high, 3)
    (0.75, 0.301, 0.954)
    """
    listed = list(clusters)
    shares, weights = [share for _, share in listed], [weight for weight, _ in listed]
    value, size = mean(shares, weights), effective_size(listed, games)
    alike = games == len(listed) or min(shares) == max(shares)
    z = Z_95 if alike else student_quantile(LEVEL, len(listed) - 1)
    return Estimate(value, *wilson_interval(value * size, size, z))


def balanced_share(first: Estimate, second: Estimate) -> Estimate:
    """The mean of the accuracies in two classes, with an interval within [0, 1].

    From the limits of both (MOVER; Zou and Donner 2008, "Construction of confidence limits about
    effect measures: a general approach"): m - √((p - l)² + (q - k)²) / 2, likewise above.

    >>> value, low, high = balanced_share(Estimate(1.0, 0.9, 1.0), Estimate(0.0, 0.0, 0.2))
    >>> round(value, 3), round(low, 3), round(high, 3)
    (0.5, 0.45, 0.6)
    """
    middle = (first.value + second.value) / 2
    below = hypot(first.value - first.low, second.value - second.low) / 2
    above = hypot(first.high - first.value, second.high - second.value) / 2
    return Estimate(middle, max(0.0, middle - below), min(1.0, middle + above))


def paired_difference(ours_SP: ArrayLike, theirs_SP: ArrayLike) -> Difference:
    """The mean of ours less theirs, both `[S, P]` on the same seeds and the same problems.

    The interval is `crossed_interval` of the differences.  Raises ValueError for other shapes.

    >>> base = [[0, 1, 0, 1, 0, 1], [0, 1, 1, 1, 0, 0]]
    >>> paired_difference(base, base)
    Difference(value=0.0, low=0.0, high=0.0, p=1.0, p_flip=1.0)
    """
    ours, theirs = _matrix(ours_SP), _matrix(theirs_SP)
    if ours.shape != theirs.shape:
        raise ValueError(f"{ours.shape} and {theirs.shape} are not the same seeds and problems")
    differences = ours - theirs
    spread = _spread(differences)
    units = differences.mean(axis=1) if len(differences) > 1 else differences[0]
    return Difference(*_interval(spread), _p_value(spread), sign_flip(units.tolist()))


def unpaired_difference(ours_SP: ArrayLike, theirs_TP: ArrayLike) -> Difference:
    """The mean of ours `[S, P]` less theirs `[T, P]`: the same problems, but seeds of their own.

    With the mean squares A of each side's seeds and E of its rest, and B that of the problems'
    differences, the variance is B/P + Σ (A - E)/SP over the sides of two seeds or more, and at
    least B/P and Σ A/SP; the degrees of freedom by Satterthwaite (1946).  One seed a side tells
    nothing of the spread over seeds: the interval is over problems alone.
    Raises ValueError for different numbers of problems.

    >>> found = unpaired_difference([[1, 1, 0, 1], [1, 1, 1, 1]], [[0, 1, 0, 1], [0, 0, 0, 1]])
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.p_flip
    (0.5, -0.842, 1.842, None)
    """
    arms = _matrix(ours_SP), _matrix(theirs_TP)
    if arms[0].shape[1] != arms[1].shape[1]:
        raise ValueError(f"{arms[0].shape} and {arms[1].shape} are not the same problems")
    if len(arms[0]) == len(arms[1]) == 1:
        return paired_difference(*arms)
    problems = _spread((arms[0].mean(axis=0) - arms[1].mean(axis=0))[None, :])
    seeds = rest = 0.0
    components = [(problems.variance, problems.degrees)]
    for arm in (arm for arm in arms if len(arm) > 1):
        squares, degrees = _mean_squares(arm)
        seeds, rest = seeds + squares[0] / arm.size, rest + squares[2] / arm.size
        components += [(squares[0] / arm.size, degrees[0]), (squares[2] / arm.size, degrees[2])]
    total = max(problems.variance + seeds - rest, problems.variance, seeds)
    freedom = 1.0
    if 0 < total < inf:
        freedom = (
            total
            * total
            / fsum(variance * variance / degrees for variance, degrees in components if degrees)
        )
    spread = _Spread(problems.mean, float(total), float(freedom))
    return Difference(*_interval(spread), _p_value(spread), None)


def welch_interval(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The difference of the means of two independent samples, with Welch's interval (1947).

    >>> value, low, high = welch_interval([3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 2.0])
    >>> round(value, 3), round(low, 3), round(high, 3)
    (2.0, 0.008, 3.992)
    """
    first, second = (np.asarray(values, dtype=np.float64) for values in (ours, theirs))
    difference = float(first.mean() - second.mean())
    if min(first.size, second.size) < 2:
        return Estimate(difference, -inf, inf)
    variances = [float(values.var(ddof=1)) / values.size for values in (first, second)]
    total = sum(variances)
    if total == 0:
        return Estimate(difference, difference, difference)
    sizes = first.size - 1, second.size - 1
    degrees = total**2 / sum(
        variance**2 / size for variance, size in zip(variances, sizes, strict=True)
    )
    return _interval(_Spread(difference, total, degrees))


def normal_interval(value: float, variance: float) -> Estimate:
    """The normal interval of an estimate whose variance is known: value ± 1.96 √variance."""
    margin = Z_95 * sqrt(variance)
    return Estimate(value, value - margin, value + margin)


class _Spread(NamedTuple):
    mean: float
    variance: float  # of the mean; infinite if there is nothing to estimate it from
    degrees: float  # of freedom of that variance


def _matrix(outcomes: ArrayLike) -> NDArray[np.float64]:
    matrix = np.asarray(outcomes, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"outcomes are a matrix of seeds by problems, not {matrix.shape}")
    return matrix


def _spread(outcomes_SP: NDArray[np.float64]) -> _Spread:
    seeds, problems = outcomes_SP.shape
    whole = float(outcomes_SP.mean())
    if seeds * problems == 1:
        return _Spread(whole, inf, 1.0)
    if seeds == 1 or problems == 1:
        num = outcomes_SP.size
        return _Spread(whole, float(outcomes_SP.var(ddof=1)) / num, num - 1.0)
    return _spread_of(whole, *_mean_squares(outcomes_SP), outcomes_SP.size)


def _spread_of(
    whole: float, squares: NDArray[np.float64], degrees: NDArray[np.float64], size: int
) -> _Spread:
    # A sum that chance made smaller than one of its parts is not believed: the variance of the mean
    # is at least what seeds alone, problems alone, or independent outcomes would show.
    total = max(float(squares @ (1.0, 1.0, -1.0)), float(squares.max()))
    if total == 0:
        return _Spread(whole, 0.0, 1.0)
    return _Spread(whole, total / size, total * total / float((squares**2 / degrees).sum()))


def _mean_squares(
    outcomes_SP: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean squares of seeds, of problems and of the rest, and their degrees of freedom."""
    seeds, problems = outcomes_SP.shape
    whole = outcomes_SP.mean()
    of_seed_S = outcomes_SP.mean(axis=1) - whole
    of_problem_P = outcomes_SP.mean(axis=0) - whole
    rest_SP = outcomes_SP - whole - of_seed_S[:, None] - of_problem_P
    degrees = np.array([seeds - 1, problems - 1, (seeds - 1) * (problems - 1)], dtype=np.float64)
    sums = problems * of_seed_S @ of_seed_S, seeds * of_problem_P @ of_problem_P, (rest_SP**2).sum()
    return np.array(sums) / degrees, degrees


def _interval(spread: _Spread) -> Estimate:
    mean, variance, degrees = spread
    if variance == inf:
        return Estimate(mean, -inf, inf)
    margin = student_quantile(LEVEL, degrees) * sqrt(variance)
    return Estimate(mean, mean - margin, mean + margin)


# ----------------------------------------------------------------------------------------- tests


def _p_value(spread: _Spread) -> float:
    mean, variance, degrees = spread
    if variance == 0:
        return 0.0 if mean else 1.0
    return 2 * student_cdf(-abs(mean) / sqrt(variance), degrees)


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p-value of paired differences if each was as likely to have the other sign.

    Exact for up to 16 differences other than 0 (Fisher 1935); n of them have a p-value of 2^(1 - n)
    at best.  For more, (b + 1) / (m + 1), with b of m = 9,999 keyed draws at least as far from 0
    (Phipson and Smyth 2010, "Permutation p-values should never be zero").

    >>> sign_flip([0.21, 0.17, 0.25, 0.19, 0.22]), sign_flip([0.1, -0.1]), sign_flip([])
    (0.0625, 1.0, 1.0)
    """
    # A difference of 0 is the same with either sign and leaves every sum as it is.
    sizes = [abs(value) for value in differences if value]
    observed = abs(fsum(differences)) * (1 - 1e-12)  # a tie is a tie whatever the rounding
    num = len(sizes)
    if num <= MOST_ENUMERATED:
        flips = product((1.0, -1.0), repeat=num)
        sums = [abs(fsum(map(float.__mul__, signs, sizes))) for signs in flips]
        return sum(total >= observed for total in sums) / len(sums)
    reached = int((np.abs(_signs(num) @ np.array(sizes)) >= observed).sum())
    return (reached + 1) / (FLIPS + 1)


def _signs(num: int) -> NDArray[np.float64]:
    """`[FLIPS, num]` signs: bits of hashes, the same in every process and version."""
    blocks = -(-num // 512)
    hashes = b"".join(
        blake2b(b"%d:%d" % (draw, block), person=b"nip-fn sign flip").digest()
        for draw in range(FLIPS)
        for block in range(blocks)
    )
    bits = np.unpackbits(np.frombuffer(hashes, dtype=np.uint8)).reshape(FLIPS, blocks * 512)
    signs: NDArray[np.float64] = 2.0 * bits[:, :num].astype(np.float64) - 1.0
    return signs


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values of a family of tests, corrected for their number (Holm 1979), in their order.

    The k-th smallest of m, from 0, is multiplied by m - k, and never less than one before it.  If
    those below 0.05 are rejected, the chance to reject any true null hypothesis is at most 5 %.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return tuple(corrected)


def detectable_difference(deviation: float, units: int, power: float = 0.8) -> float:
    """The smallest paired difference that a two-sided 5 % test finds with this power.

    (t₀.₉₇₅ + t_power) s / √n on n - 1 degrees, for n units that have differences of standard
    deviation s: problems, or seeds.  Of problems with one game each s is about √d, where d is the
    discordance: the share of problems that one is right about and the other is not (Connor 1987,
    "Sample size for testing differences in proportions for the paired-sample design").

    >>> round(detectable_difference(0.35**0.5, 400), 3)  # a discordance of 0.35
    0.083
    >>> round(detectable_difference(0.042, 5), 3)  # five seeds
    0.07
    """
    if units < 2:
        return inf
    return _quantiles(power, units - 1) * deviation / sqrt(units)


def seeds_needed(differences_SP: ArrayLike, difference: float, power: float = 0.8) -> int | None:
    """The seeds with which `paired_difference` finds a difference with this power.

    From paired differences `[S, P]` of a first experiment: the variances of seeds, of problems and
    of the rest are estimated from its mean squares, and the smallest n taken with
    (t₀.₉₇₅ + t_power) √(A + B - E)/nP at most the difference, the mean squares as n seeds on the
    same number of problems would show them.  None if a thousand would not do, since the problems
    are too few, and if the experiment has a single seed or a single problem.

    >>> rng = np.random.default_rng(0)
    >>> apart = 0.1 + 0.05 * rng.normal(size=(5, 1)) + 0.3 * rng.normal(size=(5, 400))
    >>> seeds_needed(apart, 0.05), seeds_needed(apart, 0.02)
    (6, 25)
    """
    differences = _matrix(differences_SP)
    seeds, problems = differences.shape
    if min(seeds, problems) < 2:
        return None
    (of_seeds, of_problems, rest), _ = _mean_squares(differences)
    # Of one seed, and of one problem; a negative estimate is none.
    seed, problem = max(0.0, of_seeds - rest) / problems, max(0.0, of_problems - rest) / seeds

    def finds(num: int) -> bool:
        squares = np.array([rest + problems * seed, rest + num * problem, rest])
        degrees = np.array([num - 1.0, problems - 1.0, (num - 1.0) * (problems - 1.0)])
        spread = _spread_of(0.0, squares, degrees, num * problems)
        return _quantiles(power, spread.degrees) * sqrt(spread.variance) <= difference

    if not finds(MOST_SEEDS):
        return None
    numbers = range(2, MOST_SEEDS)
    return 2 + bisect_left(numbers, True, key=finds)


def _quantiles(power: float, degrees: float) -> float:
    return student_quantile(LEVEL, degrees) + student_quantile(power, degrees)


# ------------------------------------------------------------------------- Student's distribution


def student_cdf(value: float, degrees: float) -> float:
    """The distribution function of Student's t, for any positive degrees of freedom.

    P(T <= -|t|) = I_x(ν/2, 1/2) / 2, x = ν / (ν + t²), I the regularised incomplete beta function.

    >>> round(student_cdf(-2.776, 4), 4), student_cdf(0.0, 7.5)
    (0.025, 0.5)
    """
    tail = _incomplete_beta(degrees / (degrees + value * value), degrees / 2, 0.5) / 2
    return 1 - tail if value > 0 else tail


def student_quantile(probability: float, degrees: float) -> float:
    """The quantile of Student's t, for any positive degrees of freedom.

    >>> round(student_quantile(0.975, 4), 3), round(student_quantile(0.975, 1), 2)
    (2.776, 12.71)
    """
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    # Bisection between 0 and a bound that is doubled until it is one: slow, but never wrong where
    # few degrees make Newton's method overshoot.
    low, high = 0.0, 2 * NormalDist().inv_cdf(probability) + 1.0
    while student_cdf(high, degrees) < probability:
        low, high = high, 2 * high
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        if student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by Lentz's continued fraction (Press et al. 2007, "Numerical Recipes", 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The fraction converges fast on one side only; the other side is its mirror image.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = exp(a * log(x) + b * log(1 - x) + lgamma(a + b) - lgamma(a) - lgamma(b)) / a
    c, d = 1.0, 1 / _away_from_0(1 - (a + b) * x / (a + 1))
    whole = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / _away_from_0(1 + step * d)
            c = _away_from_0(1 + step / c)
            whole *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * whole


def _away_from_0(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
