"""Statistics that the metrics are made of, each with its formula and source."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import fsum, log, sqrt
from statistics import fmean
from typing import TypeVar

from nip_fn.game.decision import SPECTRA, SpectrumName

K = TypeVar("K", bound=Hashable)

Metrics = tuple[tuple[str, float], ...]

Z_95 = 1.959963984540054

# About each datapoint, for a measure of single datapoints: with one game about each, the share of
# those that always fail is one less the accuracy.
LEAST_GAMES = 8

MAX_LEVELS = 5  # of confidence, at which selective accuracy is logged


# ---------------------------------------------------------------------------------------- formulas


def wilson_interval(successes: float, trials: float, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927); (0, 1) with no trials.

    Of games that are not independent, `trials` is their `effective_size`, and need not be whole.

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


def standard_error(successes: float, trials: float) -> float:
    """The standard error of a proportion: √(p(1 - p) / n), of one trial or more."""
    p = successes / trials
    return sqrt(p * (1 - p) / trials)


def effective_size(clusters: Iterable[tuple[float, float]], games: int) -> float:
    """The number of independent games whose accuracy is as uncertain as that of clustered ones.

    p(1 - p) / Σ (W_d (p_d - p) / W)² for clusters of weight W_d and accuracy p_d, W = Σ W_d,
    p = Σ W_d p_d / W; at most `games`, and the number of clusters if all games are right or wrong.
    After Kish, "Survey Sampling", 1965, and Korn & Graubard, "Confidence intervals for proportions
    with small expected number of positive counts estimated from survey data", 1998.

    Args:
        clusters: (weight, accuracy) of the games about each datapoint, one or more.
        games: The games in all.

    >>> effective_size([(1.0, 1.0), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0)], games=4)
    4.0
    >>> effective_size([(4.0, 1.0), (4.0, 0.0)], games=8)
    2.0
    """
    # Games about one datapoint are not independent: those of a tree even share their beginnings.
    # How much they tell shows in how the accuracies of datapoints differ.
    listed = list(clusters)
    whole = fsum(weight for weight, _ in listed)
    p = fsum(weight * share for weight, share in listed) / whole
    variance = fsum((weight / whole * (share - p)) ** 2 for weight, share in listed)
    if not 0 < p < 1:
        return float(len(listed))
    return min(float(games), p * (1 - p) / variance) if variance else float(games)


def totals(keys: Iterable[K], weights: Iterable[float]) -> Mapping[K, float]:
    """The sum of the weights of each key, exactly rounded; 0 for keys that do not occur."""
    weights_by_key: defaultdict[K, list[float]] = defaultdict(list)
    for key, weight in zip(keys, weights, strict=True):
        weights_by_key[key].append(weight)
    return defaultdict(
        float, {key: fsum(key_weights) for key, key_weights in weights_by_key.items()}
    )


def mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """The arithmetic mean of one value or more, its sum exactly rounded."""
    return fmean(values, weights)


def deviation(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """The standard deviation of one value or more, taken as the whole population.

    >>> deviation([1.0, -1.0, 1.0, -1.0]), deviation([0.0, 3.0], [2.0, 1.0])
    (1.0, 1.4142135623730951)
    """
    # As distances from one of the values, so that equal values do not deviate by rounding.
    least = min(values)
    above = [value - least for value in values]
    centre = mean(above, weights)
    return sqrt(mean([(value - centre) ** 2 for value in above], weights))


def entropy(counts: Sequence[float]) -> float:
    """The entropy in nats of how often each of some things happened (Shannon 1948).

    Σ p ln(1/p) with p = c / Σ c, for counts or weights c > 0

    >>> entropy([5, 5]), entropy([3])
    (0.6931471805599453, 0.0)
    """
    # Of counts and not of a histogram's densities: the *nip* library gets -2.77 for two decisions
    # in equal shares, whose entropy is ln 2.
    total = fsum(counts)
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


def ratio(name: str, part: float, whole: float) -> Metrics:
    """part / whole under that name; nothing where there is no whole."""
    # Left out and not NaN, which JSON cannot hold and which equals not even itself, so that no two
    # processes could be compared.
    return ((name, part / whole),) if whole else ()


def summary_of(
    name: str, measure: Callable[[Sequence[float]], float], values: Sequence[float]
) -> Metrics:
    """A measure of the values under that name; nothing where there are none."""
    return ((name, measure(values)),) if values else ()
