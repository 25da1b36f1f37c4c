"""Selection of rollouts to imitate, as rules over the returns that one agent received in them.

A rule is `(return_D, key) -> indices`; the key is consumed.  Letters for dimensions: D rollouts.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor, fsum

import msgspec

from nip_fn.keys import Key, fold_in, permutation, weighted_choice
from nip_fn.select.pairs import TOLERANCE

RolloutRule = Callable[[Sequence[float], Key], tuple[int, ...]]


def as_written(value: float) -> Fraction:
    """The decimal number that a float was read from, to count shares exactly.

    >>> int(0.29 * 100), int(as_written(0.29) * 100)
    (28, 29)
    """
    return Fraction(repr(float(value)))


class SelectedRollout(msgspec.Struct, frozen=True, array_like=True):
    """A rollout that an agent is to imitate.

    tree: the index of its tree.
    reward: the agent's return.
    replaced: true if its last message is to be the true label instead.
    """

    tree: int
    agent: int
    reward: float
    replaced: bool = False


def at_least(threshold: float) -> RolloutRule:
    """The rollouts with at least that return, in their order.

    A return that falls short by no more than a share `TOLERANCE` of the greatest return, or of the
    threshold, is a rounded one and reaches it.
    """

    # At least, not more than: inclusive as in the *nip* library, whose thresholds users bring
    # along.
    def rule(return_D: Sequence[float], key: Key) -> tuple[int, ...]:
        least = threshold - TOLERANCE * _most(threshold, *return_D)
        return tuple(index for index, reward in enumerate(return_D) if reward >= least)

    return rule


def _most(*values: float) -> float:
    """The greatest amount, whatever its sign."""
    return max(map(abs, values), default=0.0)


def weighted(
    factor: float,
    *,
    minimum: float | None = None,
    epsilon: float = 0.0,
    replace: bool = True,
) -> RolloutRule:
    """A draw of round(factor · D) rollouts by weight, in their order.

    Args:
        factor: The size of the draw as a share of all rollouts.
        minimum: The return of weight 0; the least return by default.
        epsilon: Smoothing, see `sampling_weights`.
        replace: True if a rollout can be drawn more than once.  Without replacement one of weight
            0 is never drawn, so there may be fewer.
    """

    def rule(return_D: Sequence[float], key: Key) -> tuple[int, ...]:
        if not return_D:
            return ()
        # An empty batch has no weights to normalise, hence the return before.
        weight_D = sampling_weights(return_D, minimum=minimum, epsilon=epsilon)
        size = round(as_written(factor) * len(return_D))
        if not replace:
            size = min(size, sum(weight > 0 for weight in weight_D))
        # Sorted, so that the training rows, which follow this order, do not show in which order
        # they were drawn.
        return tuple(sorted(weighted_choice(key, weight_D, size, replace=replace)))

    return rule


def sampling_weights(
    return_D: Sequence[float], *, minimum: float | None, epsilon: float
) -> tuple[float, ...]:
    """`[D]` probabilities: w = max(r, m) - m over their sum, plus ε/D, over the sum of that.

    m is the minimum given, or the least return.  Equal returns get equal probabilities.  A return
    that exceeds m by no more than a share `TOLERANCE` of the greatest amount is m, rounded.

    >>> sampling_weights([0.0, 1.0, 3.0], minimum=None, epsilon=0.0)
    (0.0, 0.25, 0.75)
    """
    num = len(return_D)
    least = min(return_D) if minimum is None else minimum
    slack = TOLERANCE * _most(least, *return_D)
    excess = [gain if gain > slack else 0.0 for gain in (reward - least for reward in return_D)]
    total = fsum(excess)
    # Equal returns leave nothing to tell them apart; the *nip* library divides 0 by 0 here and
    # fails.
    shares = [gain / total for gain in excess] if total > 0 else [1 / num] * num
    smoothed = [share + epsilon / num for share in shares]
    whole = fsum(smoothed)
    return tuple(share / whole for share in smoothed)


def with_true_labels(
    return_D: Sequence[float], rule: RolloutRule, share: float, key: Key
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(rollouts to imitate, rollouts whose verdict is replaced by the true label), by index.

    A `share` of all rollouts is drawn uniformly to be replaced; `rule` selects from the others.

    Args:
        return_D: The verifier's return in each rollout.
        rule: The selection among those that are not replaced.
        share: From 0 to 1; rounded down to a whole number of rollouts.
        key: Consumed.
    """
    # Set aside before anything is selected: a replaced verdict is right by construction, whatever
    # the dialogue earned, and the rule is about what was earned.
    num_replaced = floor(as_written(share) * len(return_D))
    # The *nip* library seeds this draw with `hash` of the agent's name, which differs in every
    # process.
    order = permutation(fold_in(key, "replace"), len(return_D)) if num_replaced else ()
    replaced = set(order[:num_replaced])
    kept = [index for index in range(len(return_D)) if index not in replaced]
    picked = rule([return_D[index] for index in kept], fold_in(key, "select"))
    return tuple(kept[index] for index in picked), tuple(sorted(replaced))
