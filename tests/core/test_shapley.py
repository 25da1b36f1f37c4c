"""Shapley values: they add up, ignore who adds nothing, and treat equals alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.metrics.shapley import shapley_values, subsets

PARTS = ("answers", "asks", "judges")
OUTCOME = st.floats(-1, 1)


@given(st.lists(OUTCOME, min_size=8, max_size=8))
def test_the_values_add_up_to_the_gain(outcomes: list[float]) -> None:
    by_parts = dict(zip(subsets(PARTS), outcomes, strict=True))
    assert sum(shapley_values(by_parts).values()) == pytest.approx(outcomes[-1] - outcomes[0])


@given(st.lists(OUTCOME, min_size=4, max_size=4))
def test_a_part_that_adds_nothing_has_no_value(outcomes: list[float]) -> None:
    without = dict(zip(subsets(PARTS[:2]), outcomes, strict=True))
    by_parts = {some: without[some - {"judges"}] for some in subsets(PARTS)}
    assert shapley_values(by_parts)["judges"] == pytest.approx(0)


@given(st.lists(OUTCOME, min_size=4, max_size=4))
def test_parts_that_add_alike_have_the_same_value(outcomes: list[float]) -> None:
    by_parts = {some: outcomes[len(some)] for some in subsets(PARTS)}
    values = shapley_values(by_parts)
    assert values["asks"] == pytest.approx(values["answers"]) == pytest.approx(values["judges"])


def test_a_swap_of_three_parts_by_hand() -> None:
    shares = (52.5, 55.2, 52.0, 52.7, 60.3, 68.8, 57.8, 89.2)
    values = shapley_values(dict(zip(subsets(PARTS), shares, strict=True)))
    assert {part: round(float(value), 1) for part, value in values.items()} == {
        "answers": 15.4,
        "asks": 8.3,
        "judges": 12.9,
    }


def test_the_values_of_arrays_are_those_of_their_elements() -> None:
    outcomes = {some: np.array([len(some), 2.0 * ("asks" in some)]) for some in subsets(PARTS)}
    values = shapley_values(outcomes)
    assert values["asks"].tolist() == pytest.approx([1, 2])
    assert values["judges"].tolist() == pytest.approx([1, 0])
