"""The differences of accuracy that papers on oversight report by name.

Outcomes are `[S, P]`: the share of games about each of P problems that one of S trainings got
right, a single row for a model that was not trained.
"""

import numpy as np
from numpy.typing import ArrayLike

from nip_fn.metrics.inference import Difference, Estimate, crossed_interval, paired_difference


def judge_accuracy_gain(assisted_SP: ArrayLike, alone_SP: ArrayLike) -> Difference:
    """The accuracy of a judge that hears others less its accuracy alone, paired by problem.

    Khan et al. 2024, "Debating with more persuasive LLMs leads to more truthful answers"; Kenton et
    al. 2024, "On scalable oversight with weak LLMs judging strong LLMs".

    >>> judge_accuracy_gain([[1, 1, 1, 0]], [[1, 0, 0, 0]]).value
    0.5
    """
    return paired_difference(assisted_SP, alone_SP)


def performance_gap_recovered(
    weak_SP: ArrayLike, assisted_SP: ArrayLike, strong_SP: ArrayLike
) -> Estimate | None:
    """PGR = (assisted - weak) / (strong - weak), 1 where help makes up for all that is missing.

    Burns et al. 2023, "Weak-to-strong generalization".  The interval is `crossed_interval` of the
    residuals (assisted - weak) - PGR (strong - weak) over strong - weak, which is that of a ratio
    of means (Cochran 1977, "Sampling techniques", section 6): too narrow where strong - weak is
    hardly more than its own error.  It may lie beyond 0 and 1.

    Args:
        weak_SP: The weak model alone.
        assisted_SP: The weak model with the strong one's help.
        strong_SP: The strong model alone.

    Returns:
        PGR; None if the strong model is no better than the weak one.

    Raises:
        ValueError: The shapes differ.

    >>> performance_gap_recovered([[0, 0, 1, 0]], [[0, 1, 1, 0]], [[1, 1, 1, 0]]).value
    0.5
    """
    weak, assisted, strong = (np.atleast_2d(side) for side in (weak_SP, assisted_SP, strong_SP))
    if not weak.shape == assisted.shape == strong.shape:
        raise ValueError(f"{weak.shape}, {assisted.shape} and {strong.shape} differ")
    gap = float((strong - weak).mean())
    if gap <= 0:
        return None
    recovered = float((assisted - weak).mean()) / gap
    _, low, high = crossed_interval((assisted - weak) - recovered * (strong - weak))
    return Estimate(recovered, recovered + low / gap, recovered + high / gap)


def legibility_tax(correct_SP: ArrayLike, legible_SP: ArrayLike) -> Difference:
    """The accuracy of answers that is lost by training them to be checked, paired by problem.

    That of a prover trained for correct answers alone less that of one trained to convince a
    verifier, too (Kirchner et al. 2024, "Prover-verifier games improve legibility of LLM outputs").

    >>> legibility_tax([[1, 1, 1, 0]], [[1, 0, 1, 0]]).value
    0.25
    """
    return paired_difference(correct_SP, legible_SP)
