"""Statistics that the metrics are made of, each with its formula and source."""

from collections.abc import Callable, Sequence
from math import fsum, log, sqrt
from statistics import fmean, pstdev

from nip_fn.game.decision import SPECTRA, SpectrumName

Metrics = tuple[tuple[str, float], ...]

Z_95 = 1.959963984540054

MAX_LEVELS = 5  # of confidence, at which selective accuracy is logged


# ---------------------------------------------------------------------------------------- formulas


def wilson_interval(successes: float, trials: float, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927); (0, 1) with no trials.

    (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    >>> low, high = wilson_interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    # Wilson's and not the normal interval, which has no width after n successes of n.
    if trials == 0:
        return 0.0, 1.0
    p, n = successes / trials, trials
    centre = p + z * z / (2 * n)
    margin = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def standard_error(successes: int, trials: int) -> float:
    """The standard error of a proportion: √(p(1 - p) / n), of one trial or more."""
    p = successes / trials
    return sqrt(p * (1 - p) / trials)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean of one value or more, its sum exactly rounded."""
    return fmean(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of one value or more, taken as the whole population.

    >>> deviation([1.0, -1.0, 1.0, -1.0])
    1.0
    """
    return pstdev(values)


def entropy(counts: Sequence[int]) -> float:
    """The entropy in nats of how often each of some things happened (Shannon 1948).

    Σ p ln(1/p) with p = c / Σ c, for counts c > 0

    >>> entropy([5, 5]), entropy([3])
    (0.6931471805599453, 0.0)
    """
    # Of counts and not of a histogram's densities: the *nip* library gets -2.77 for two decisions
    # in equal shares, whose entropy is ln 2.
    total = sum(counts)
    return fsum(count / total * log(total / count) for count in counts)


def confidence_levels(spectrum: SpectrumName) -> tuple[float, ...]:
    """The values of |continuous| that a spectrum has, ascending; of more than five, five.

    The five are the least, the greatest, and those nearest below each quarter between them.  A
    spectrum of two decisions knows no degrees: it has no levels.

    >>> confidence_levels("likert_scale_5"), confidence_levels("out_of_10")
    ((0.0, 0.5, 1.0), (0.0, 0.2, 0.4, 0.6, 1.0))
    """
    # At most five of them, since every level is two columns in every table: `out_of_100` has 51.
    if len(SPECTRA[spectrum]) <= 2:
        return ()
    levels = sorted({abs(decision.continuous) for decision in SPECTRA[spectrum]})
    most = min(MAX_LEVELS, len(levels)) - 1
    return tuple(levels[step * (len(levels) - 1) // most] for step in range(most + 1))


def ratio(name: str, part: int, whole: int) -> Metrics:
    """part / whole under that name; nothing where there is no whole."""
    # Left out and not NaN, which JSON cannot hold and which equals not even itself, so that no two
    # processes could be compared.
    return ((name, part / whole),) if whole else ()


def summary_of(
    name: str, measure: Callable[[Sequence[float]], float], values: Sequence[float]
) -> Metrics:
    """A measure of the values under that name; nothing where there are none."""
    return ((name, measure(values)),) if values else ()
