"""The canary: evidence that the adapter which was trained answers, and not another model.

The trainer's log-probabilities of some replies' tokens are compared with those of what is served.
"""

import math
from typing import Any

import msgspec
import numpy as np

# Replies that are scored before and after a training, and again once it is served, and the tokens
# of each: vLLM takes one request a token.
NUM_PROBES, PROBE_TOKENS = 16, 64

FLOAT32 = "float32"
# How far, in nats and on average, a token may be from where it was trained to be because of the
# numbers that serve it.  Of the 20 adapters of `make train`, the real vLLM has each within 4e-7 in
# float32 and within 0.004 in bfloat16; the base model, and another group's adapter, are 0.04 to
# 0.38 away.  Larger models are noisier in 16 bits, and quantised ones noisier still: for those
# there is no bound, and the direction alone is judged.
ALLOWED_NATS = {FLOAT32: 0.005, "bfloat16": 0.05, "float16": 0.05}
# The served model must not be nearer to the model before the training than to the trained one, by
# so many standard errors.  (Those adapters are 0.90 to 1.07 of the way in bfloat16, and the ones
# before them -0.04 to 0.02, although some moved a token by no more than 0.007 nats.)
SIGNIFICANT = 4.0


class Score(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of a probe's token, in nats, before and after a training."""

    before: float
    after: float


def canary_problem(
    expected: tuple[Score, ...], served: tuple[float, ...], dtype: str
) -> str | None:
    """The reason why the served model cannot be the one that was trained; None if it may be.

    Args:
        expected: Of the probes' tokens, by the trainer.
        served: Of the same tokens, by what is served; () from a provider that cannot score.
        dtype: The numbers of what is served: torch's name, or that of a quantization.
    """
    if not served:
        return None
    if len(served) != len(expected):
        return (
            f"the probes are {len(served)} tokens under what is served, and {len(expected)} under "
            "what was trained: another tokenizer answers"
        )
    before, after = _columns(expected)
    gap = float(np.abs(served - after).mean())
    distance = f"a token's log-probability is {gap:.2g} nats from what was trained, on average"
    with np.errstate(invalid="ignore"):  # broken weights score infinities and NaN
        share, error = _share(np.asarray(served) - before, after - before)
    if abs(share) + SIGNIFICANT * error < 0.5:
        return f"{distance}: the model from before the training answers"
    within = math.isfinite(gap) and gap <= ALLOWED_NATS.get(dtype, math.inf)
    if not within or share + SIGNIFICANT * error < 0.5:
        return f"{distance}, and it is served in {dtype}: another model seems to answer"
    return None


def _columns(scores: tuple[Score, ...]) -> tuple[Any, Any]:
    """The tokens' log-probabilities before a training, and after it: `[T]` each."""
    before, after = np.array([(score.before, score.after) for score in scores]).T
    return before, after


def _share(moved: Any, trained: Any) -> tuple[float, float]:
    """The share of a training's movement `[T]` that another one `[T]` made; its standard error.

    The error is infinite where the training moved nothing, since nothing can be told then.
    """
    # A regression through the origin: each token counts as much as the training moved it, so that a
    # movement smaller than the noise of a single token shows among hundreds.
    square = float(trained @ trained)
    if not square:
        return 1.0, math.inf
    share = float(moved @ trained) / square
    rest = moved - share * trained
    return share, math.sqrt(float(rest @ rest) / len(rest) / square)


def canary_metrics(
    expected: tuple[Score, ...], served: tuple[float, ...]
) -> tuple[tuple[str, float], ...]:
    """Log-probability gaps of the probes' tokens after a switch of adapter, in nats.

    Empty if the provider cannot score replies.

    canary_gap: mean |served - trained|
    canary_shift: mean |trained - before|
    """
    if not served or len(served) != len(expected):
        return ()
    # Summed exactly: NumPy's sums differ between processors, and a replay must not.
    gaps = [abs(value - score.after) for value, score in zip(served, expected, strict=True)]
    shifts = [abs(score.after - score.before) for score in expected]
    means = (math.fsum(gaps) / len(gaps), math.fsum(shifts) / len(shifts))
    return tuple(zip(("canary_gap", "canary_shift"), means, strict=True))
