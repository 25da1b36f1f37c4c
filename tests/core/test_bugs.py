"""Which candidates count as bugs, and which of them are the best."""

from itertools import pairwise
from string import ascii_lowercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.code.bugs import (
    Candidate,
    ScoredCandidate,
    buggy,
    code_in,
    from_mutant,
    from_reply,
    is_subtle,
    scored,
    subtlest,
)
from nip_fn.code.builtin import python
from nip_fn.code.fingerprint import fingerprint
from nip_fn.code.mutation import mutants, subtlety
from nip_fn.code.programs import Tally
from nip_fn.code.solutions import BugOrigin, LabelledSolution
from nip_fn_adapters.data.bugmaking import bug_chat

RIGHT = "def f(a, b):\n    total = a[0]\n    return total < b - 1\n"
SOLUTION = LabelledSolution("Is it so?", RIGHT, 1, "p", difficulty="interview", stance=1)

tallies = st.builds(
    Tally, st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)
)
candidates = st.builds(
    lambda mutant, tally: scored(RIGHT, from_mutant(mutant), tally),
    st.sampled_from(mutants(RIGHT)),
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
    orders: tuple[list[ScoredCandidate], list[ScoredCandidate]], count: int
) -> None:
    found = subtlest(RIGHT, orders[0], count)
    assert found == subtlest(RIGHT, orders[1], count)
    assert set(found) <= set(orders[0])
    assert len(found) <= count
    assert all(is_subtle(one.tally) for one in found)
    marks = [fingerprint(one.candidate.code) for one in found]
    assert len({fingerprint(RIGHT), *marks}) == len(marks) + 1
    wanted = {fingerprint(one.candidate.code) for one in orders[0] if is_subtle(one.tally)}
    assert len(found) == min(count, len(wanted))
    lines = [one.candidate.origin.line for one in found]
    firsts = found[: next((i for i, line in enumerate(lines) if line in lines[:i]), len(lines))]
    for one, two in pairwise(firsts):
        assert (subtlety(one.tally), -one.distance) >= (subtlety(two.tally), -two.distance)


def test_bugs_of_other_lines_come_before_a_second_one_of_the_same() -> None:
    def of(line: int, passed: int) -> ScoredCandidate:
        code = f"def f(): return {line * 10 + passed}"
        return ScoredCandidate(
            Candidate(code, BugOrigin("mutation", line=line)), Tally(passed, 1), 1
        )

    found = subtlest(RIGHT, [of(1, 9), of(1, 8), of(2, 3), of(3, 5)], 4)
    assert [(one.candidate.origin.line, one.tally.passed) for one in found] == [
        (1, 9),
        (3, 5),
        (2, 3),
        (1, 8),
    ]


def test_the_right_program_under_other_names_is_no_bug() -> None:
    same = RIGHT.replace("total", "sum_")
    assert not subtlest(RIGHT, [scored(RIGHT, Candidate(same, BugOrigin("model")), Tally(2, 2))], 2)


def test_a_bug_keeps_the_problem_and_tells_where_it_comes_from() -> None:
    mutant = mutants(RIGHT)[0]
    made = buggy(SOLUTION, scored(RIGHT, from_mutant(mutant), Tally(passed=3, wrong=1)))
    assert (made.question, made.problem_id, made.difficulty) == ("Is it so?", "p", "interview")
    assert (made.label, made.solution, made.stance) == (0, mutant.code, None)
    assert made.origin is not None
    assert (made.origin.how, made.origin.line) == (mutant.operator, mutant.line)
    assert (made.origin.before, made.origin.after) == (mutant.before, mutant.after)
    assert (made.origin.passed, made.origin.tests) == (3, 4)
    assert made.origin.distance > 0


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
    candidate = from_reply(reply, "m")
    assert (candidate and candidate.code) == code
    assert candidate is None or candidate.origin == BugOrigin("model", "m")


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
