"""The canary: rounding is accepted, as the served numbers make it; other models are not."""

import math
from itertools import product

import numpy as np
import pytest

from nip_fn.training.canary import Score, canary_metrics, canary_problem

TOKENS = 160
DTYPES = {"float32": 1e-5, "bfloat16": 0.03}  # the noise of a token, in nats


def scored(shift: float, seed: int = 0) -> tuple[Score, ...]:
    """Of a training that moved a token by so many nats on average, and few by much more."""
    draw = np.random.default_rng(seed)
    before = -draw.exponential(1.0, TOKENS)
    moved = draw.laplace(0.0, shift, TOKENS)
    return tuple(map(Score, before.tolist(), (before + moved).tolist()))


def noisy(values: list[float], noise: float, seed: int = 1) -> tuple[float, ...]:
    return tuple((values + np.random.default_rng(seed).normal(0.0, noise, TOKENS)).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_trained_is_accepted_in_the_numbers_that_serve_it(dtype: str) -> None:
    for shift, seed in product([0.0, 0.002, 0.02, 0.2, 2.0], range(20)):
        expected = scored(shift, seed)
        served = noisy([score.after for score in expected], DTYPES[dtype], seed + 100)
        assert canary_problem(expected, served, dtype) is None, (shift, seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_model_from_before_is_refused_also_if_it_moved_less_than_the_noise(dtype: str) -> None:
    for shift, seed in product([0.04, 0.2, 2.0], range(20)):
        expected = scored(shift, seed)
        served = noisy([score.before for score in expected], DTYPES[dtype], seed + 100)
        problem = canary_problem(expected, served, dtype) or ""
        assert "from before the training" in problem, (shift, seed)


def test_a_tolerance_is_that_of_the_served_numbers() -> None:
    expected = scored(0.2)
    served = tuple(score.after + 0.03 for score in expected)
    assert "served in float32: another model" in (canary_problem(expected, served, "float32") or "")
    assert canary_problem(expected, served, "bfloat16") is None
    assert canary_problem(expected, served, "float16") is None


def test_one_token_far_off_does_not_condemn_an_adapter() -> None:
    expected = scored(0.2)
    served = [score.after for score in expected]
    served[7] -= 1.0
    assert canary_problem(expected, tuple(served), "bfloat16") is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "awq"])
def test_broken_weights_are_refused_in_all_numbers(dtype: str, value: float) -> None:
    served = (value, *(score.after for score in scored(0.2)[1:]))
    assert "another model" in (canary_problem(scored(0.2), served, dtype) or "")


def test_scores_of_other_tokens_are_refused_and_none_at_all_accepted() -> None:
    expected = scored(0.2)
    assert "another tokenizer" in (canary_problem(expected, (-1.0,), "float32") or "")
    assert canary_problem(expected, (), "float32") is None


def test_gaps_are_means_over_tokens() -> None:
    expected = (Score(-7.0, -3.0), Score(-2.0, -2.0))
    assert canary_metrics(expected, (-3.5, -2.0)) == (("canary_gap", 0.25), ("canary_shift", 2.0))
    assert canary_metrics(expected, ()) == ()
