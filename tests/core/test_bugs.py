"""Which candidates count as bugs, and which of them are the best."""

from itertools import pairwise
from string import ascii_lowercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.code.bugs import Candidate, buggy, code_in, edit_distance, is_subtle, subtlest
from nip_fn.code.builtin import python
from nip_fn.code.fingerprint import fingerprint
from nip_fn.code.programs import Tally
from nip_fn.code.solutions import BugOrigin, LabelledSolution
from nip_fn_adapters.data.bugmaking import bug_chat

RIGHT = "def f(a, b):\n    total = a[0]\n    return total < b - 1\n"
WRITTEN = (
    RIGHT,
    RIGHT.replace("total", "sum_"),
    RIGHT.replace("<", "<="),
    RIGHT.replace("<", "<=").replace("total", "sum_"),
    RIGHT.replace("b - 1", "b"),
    RIGHT.replace("a[0]", "a[-1]"),
)

tallies = st.builds(
    Tally, st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)
)
candidates = st.builds(
    lambda code, tally: Candidate(code, "m", tally, edit_distance(RIGHT, code)),
    st.sampled_from(WRITTEN),
    tallies,
)


@pytest.mark.parametrize(
    ("tally", "subtle"),
    [
        (Tally(passed=3, wrong=1), True),
        (Tally(passed=1, wrong=1, crashed=5), True),
        (Tally(passed=4), False),
        (Tally(wrong=4), False),
        (Tally(passed=3, crashed=1), False),
        (Tally(passed=2, wrong=1, stopped=1), False),
        (Tally(), False),
    ],
)
def test_a_bug_is_wrong_for_some_tests_right_for_others_and_always_in_time(
    tally: Tally, subtle: bool
) -> None:
    assert is_subtle(tally) is subtle


@given(
    st.lists(candidates, max_size=12).flatmap(
        lambda some: st.tuples(st.just(some), st.permutations(some))
    ),
    st.integers(1, 12),
)
def test_the_best_are_the_subtlest_whatever_the_order(
    orders: tuple[list[Candidate], list[Candidate]], count: int
) -> None:
    best = subtlest(RIGHT, orders[0], count)
    assert best == subtlest(RIGHT, orders[1], count)
    assert set(best) <= set(orders[0])
    subtle = {fingerprint(bug.code) for bug in orders[0] if is_subtle(bug.tally)}
    marks = {fingerprint(bug.code) for bug in best if is_subtle(bug.tally)}
    assert marks <= subtle - {fingerprint(RIGHT)}
    assert len(marks) == len(best) == min(count, len(subtle - {fingerprint(RIGHT)}))
    ranks = [(bug.tally.passed / bug.tally.tests, -bug.distance) for bug in best]
    assert all(one >= two for one, two in pairwise(ranks))


def test_a_bug_keeps_the_problem_and_tells_where_it_comes_from() -> None:
    right = LabelledSolution("Is it so?", RIGHT, 1, "p", difficulty="interview", stance=1)
    made = buggy(right, Candidate("x", "m", Tally(passed=3, wrong=1), 5))
    origin = BugOrigin("model", "m", passed=3, tests=4, distance=5)
    assert made == LabelledSolution("Is it so?", "x", 0, "p", difficulty="interview", origin=origin)


@given(st.text(alphabet="abé", max_size=7), st.text(alphabet="abé", max_size=7))
def test_the_distance_is_that_of_levenshtein(one: str, other: str) -> None:
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (left != right))
    assert edit_distance(one, other) == row[-1]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```\nand\n```py\nx = 2\n```\nThat is all.", "x = 2\n"),
        ("```python\r\nx = 1\r\ny = 2\r\n```\r\n", "x = 1\ny = 2\n"),
        ("  ```python\n  x = 1\n  ```", "  x = 1\n"),
        ("x = 1", None),
        ("```python\nx = 1", None),
        ("```python\n\n```", None),
        ("use `x = 1` or ```x = 2```", None),
        ("", None),
    ],
)
def test_the_program_of_a_reply_is_its_last_block(reply: str, code: str | None) -> None:
    assert code_in(reply) == code


@given(st.text(alphabet="`\n\r \tpython" + ascii_lowercase, max_size=200))
def test_any_reply_is_read(reply: str) -> None:
    code = code_in(reply)
    assert code is None or (code.strip() and code in reply.replace("\r\n", "\n"))


def test_a_model_is_shown_the_problem_and_the_solution_as_they_are() -> None:
    solution = next(python.solutions())
    system, user = bug_chat(solution)
    assert (system.role, user.role) == ("system", "user")
    assert solution.question in user.content
    assert f"```python\n{solution.solution}" in user.content
