"""Intervals over seeds and problems, paired tests, corrections: by hand and by simulation."""

from math import comb, inf, sqrt
from statistics import NormalDist, mean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.metrics.formulas import wilson_interval
from nip_fn.metrics.inference import (
    Estimate,
    crossed_interval,
    crossed_share,
    detectable_difference,
    holm,
    paired_difference,
    sign_flip,
    student_cdf,
    student_quantile,
    t_interval,
    unpaired_difference,
)

from ..benchmarks.bench_coverage import World, over_seeds

matrices = st.tuples(st.integers(2, 5), st.integers(2, 6), st.integers(0, 2**30)).map(
    lambda size: np.random.default_rng(size[2]).integers(0, 5, size[:2]) / 4
)


# --------------------------------------------------------------------------------------- coverage


@pytest.mark.parametrize(
    ("world", "most"),
    [
        pytest.param(World(1.6, 0.2, 1.0, 0.5), 0.97, id="seeds differ by 3 points"),
        pytest.param(World(4.0, 0.4, 1.5, 0.5), 0.97, id="accuracy 95 %"),
        # On the safe side: five seeds cannot show that seeds do not differ.
        pytest.param(World(1.6, 0.0, 1.0, 0.5), 0.985, id="seeds alike"),
    ],
)
def test_intervals_of_five_seeds_and_400_problems_cover_the_truth(
    world: World, most: float
) -> None:
    rng = np.random.default_rng(14)
    found = [crossed_share(world.outcomes(rng)) for _ in range(500)]
    covered = np.mean([one.low <= world.truth <= one.high for one in found])
    assert 0.93 <= covered <= most


def test_the_interval_over_seeds_alone_leaves_out_the_problems_that_they_share() -> None:
    world = World(1.6, 0.0, 1.0, 0.5, seeds=10, problems=100)
    rng = np.random.default_rng(14)
    experiments = [world.outcomes(rng) for _ in range(200)]
    for interval, least, most in ((crossed_interval, 0.93, 0.98), (over_seeds, 0.0, 0.9)):
        found = [interval(outcomes) for outcomes in experiments]
        assert least <= np.mean([one.low <= world.truth <= one.high for one in found]) <= most


def test_a_difference_of_nothing_is_found_in_one_experiment_of_twenty() -> None:
    """Two arms as good as one another, each better at other problems and with other seeds."""
    rng = np.random.default_rng(14)
    p_values = []
    for _ in range(600):
        problem = rng.normal(1.6, 1.0, 400)
        log_odds = [
            problem + rng.normal(0, 0.5, 400) + rng.normal(0, 0.2, (5, 1)) for _ in range(2)
        ]
        arms = [rng.random((5, 400)) < 1 / (1 + np.exp(-one)) for one in log_odds]
        p_values.append(paired_difference(*arms).p)
    assert 0.03 <= np.mean(np.array(p_values) < 0.05) <= 0.07


@pytest.mark.parametrize(("ours", "theirs"), [(5, 5), (3, 5), (1, 4)])
def test_a_difference_of_arms_with_seeds_of_their_own_covers_the_truth(
    ours: int, theirs: int
) -> None:
    """One seed of an arm is taken for the only one there could be."""
    rng = np.random.default_rng(14)
    covered = []
    for _ in range(400):
        problem = rng.normal(1.6, 1.0, 300)
        spread = [0.0 if num == 1 else 0.3 for num in (ours, theirs)]
        log_odds = [
            problem + rng.normal(0, 0.5, 300) + rng.normal(0, by, (num, 1))
            for num, by in zip((ours, theirs), spread, strict=True)
        ]
        arms = [rng.random(one.shape) < 1 / (1 + np.exp(-one)) for one in log_odds]
        found = unpaired_difference(*arms)
        covered.append(found.low <= 0 <= found.high)
    assert 0.92 <= np.mean(covered) <= 0.985


# ---------------------------------------------------------------------------------- hand-computed


def test_students_interval_over_seeds() -> None:
    """The five rises that the review prints as +20.8 [+16.8, +24.7]."""
    values = [0.2225, 0.2450, 0.2225, 0.1800, 0.1675]
    found = t_interval(values)
    margin = 2.776445 * stdev(values) / sqrt(5)
    assert found.value == pytest.approx(mean(values))
    assert (found.low, found.high) == pytest.approx((mean(values) - margin, mean(values) + margin))
    assert t_interval([0.5]) == Estimate(0.5, -inf, inf)


def test_the_mean_squares_of_a_small_layout() -> None:
    """Rows .75, .5, .75 and columns 1, 2/3, 0, 1: A = 1/12, B = 2/3, E = 1/12."""
    found = crossed_interval([[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1]])
    degrees = (2 / 3) ** 2 / ((1 / 12) ** 2 / 2 + (2 / 3) ** 2 / 3 + (1 / 12) ** 2 / 6)
    margin = student_quantile(0.975, degrees) * sqrt((2 / 3) / 12)
    assert found.value == pytest.approx(2 / 3)
    assert found.high - found.value == pytest.approx(margin)


def test_one_seed_is_an_interval_over_problems_and_one_problem_over_seeds() -> None:
    values = [0.25, 0.5, 1.0, 0.0]
    assert crossed_interval([values]) == t_interval(values)
    assert crossed_interval([[value] for value in values]) == t_interval(values)


def test_one_game_about_each_problem_is_wilsons_interval_but_for_its_t() -> None:
    found = crossed_share([[1, 1, 0, 1]])
    assert found == pytest.approx((0.75, *wilson_interval(3, 4, student_quantile(0.975, 3))))
    assert crossed_share([[1, 1, 1]]) == pytest.approx((1.0, *wilson_interval(3, 3)))


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="same seeds and problems"):
        paired_difference([[1, 0]], [[1, 0, 1]])
    with pytest.raises(ValueError, match="matrix"):
        crossed_interval([1, 0])
    with pytest.raises(ValueError, match="matrix"):
        crossed_share([[]])


@given(matrices)
def test_a_difference_is_significant_if_and_only_if_its_interval_excludes_0(
    ours: np.ndarray,  # type: ignore[type-arg]
) -> None:
    found = paired_difference(ours, ours[::-1] * 0.5)
    assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
    other = paired_difference(ours[::-1] * 0.5, ours)
    assert (other.value, other.low, other.high) == pytest.approx(
        (-found.value, -found.high, -found.low)
    )
    assert (other.p, other.p_flip) == pytest.approx((found.p, found.p_flip))


@given(matrices)
def test_the_interval_knows_no_order_of_seeds_or_problems(
    outcomes: np.ndarray,  # type: ignore[type-arg]
) -> None:
    for interval in (crossed_interval, crossed_share):
        one, other = interval(outcomes), interval(outcomes[::-1, ::-1])
        assert one == pytest.approx(other)
        assert one.low <= one.value + 1e-12
        assert one.value - 1e-12 <= one.high


# -------------------------------------------------------------------------------- tests of pairs


def test_five_seeds_have_a_p_value_of_one_in_sixteen_at_best() -> None:
    assert sign_flip([1, 2, 3, 4, 5]) == 2 / 2**5
    assert sign_flip([-1, -2, -3, -4, -5]) == 2 / 2**5
    assert sign_flip([5, 4, 3, 2, -1]) == 4 / 2**5  # -1 and its mirror image, all signs and theirs
    assert sign_flip([0, 0, 0]) == 1.0


@given(st.integers(0, 7), st.integers(0, 7))
def test_flips_of_equal_sizes_are_the_sign_test(more: int, fewer: int) -> None:
    """Which is McNemar's exact test of the discordant problems."""
    num = more + fewer
    tail = sum(comb(num, k) for k in range(max(more, fewer), num + 1)) / 2**num
    exact = 1.0 if more == fewer else min(1.0, 2 * tail)
    assert sign_flip([0.1] * more + [-0.1] * fewer) == pytest.approx(exact)


def test_many_differences_are_drawn_by_key() -> None:
    """31 of 100 discordant problems one way: the normal approximation says 1.4e-4."""
    close = sign_flip([1.0] * 60 + [-1.0] * 40)
    exact = 2 * sum(comb(100, k) for k in range(60, 101)) / 2**100
    assert close == pytest.approx(exact, abs=0.01)
    assert close == sign_flip([1.0] * 60 + [-1.0] * 40)
    assert sign_flip([1.0] * 600) == 1 / 10_000


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_only_raises_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [corrected[i] for i in order] == sorted(corrected)


def test_power_as_the_review_found_it_by_simulation() -> None:
    """6 to 8 points for one run of 400 problems, 5 to 7 for five seeds, 3 to 4 for ten."""
    assert detectable_difference(sqrt(0.2), 400) == pytest.approx(0.063, abs=0.001)
    assert detectable_difference(0.032, 5) == pytest.approx(0.053, abs=0.001)
    assert detectable_difference(0.036, 10) == pytest.approx(0.036, abs=0.001)
    assert detectable_difference(0.1, 1) == inf


# ------------------------------------------------------------------------ Student's distribution


def test_quantiles_of_the_printed_table() -> None:
    """Fisher and Yates's table, and Cauchy's distribution for one degree."""
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 9: 2.2622, 30: 2.0423, 120: 1.9799}
    for degrees, value in table.items():
        assert student_quantile(0.975, degrees) == pytest.approx(value, abs=5e-5)
    assert student_quantile(0.975, 1e9) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-6)
    assert student_cdf(1.0, 1) == pytest.approx(0.75)
    assert student_quantile(0.5, 3) == pytest.approx(0, abs=1e-8)


@given(st.floats(0.001, 0.999), st.floats(0.6, 3_000))
def test_the_quantile_inverts_the_distribution(probability: float, degrees: float) -> None:
    assert student_cdf(student_quantile(probability, degrees), degrees) == pytest.approx(
        probability, abs=1e-7
    )
