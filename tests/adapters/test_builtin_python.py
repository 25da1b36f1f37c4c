"""`builtin:python`: every label is proven anew, in the sandbox, by all tests of its problem."""

import asyncio
from collections import Counter, defaultdict
from itertools import chain
from os import cpu_count

import pytest
from returns.result import Success

from nip_fn.code.bugs import is_subtle
from nip_fn.code.builtin.python import Problem, solutions, topics
from nip_fn.code.fingerprint import fingerprint, parsed
from nip_fn.code.programs import Limits, Tally, program, read_checks, tally
from nip_fn.code.solutions import LabelledSolution, PlacedSolution, datapoint_of
from nip_fn.keys import key
from nip_fn_adapters.bugmaking import Made, MutantFactory, by_mutation
from nip_fn_adapters.pool import in_order
from nip_fn_adapters.sandbox import open_sandbox

PROBLEMS = tuple(chain.from_iterable(topics().values()))
LIMITS = Limits(seconds=8.0)
AT_A_TIME = cpu_count() or 1


def test_there_are_enough_problems_of_every_kind() -> None:
    assert len(PROBLEMS) >= 150
    assert len(topics()) >= 9
    assert min(len(topic) for topic in topics().values()) >= 12
    counts = Counter(problem.difficulty for problem in PROBLEMS)
    assert set(counts) == {"introductory", "interview", "competition"}
    assert min(counts.values()) >= 40


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)
def test_a_problem_is_whole(problem: Problem) -> None:
    tests = read_checks(problem.tests).unwrap()
    assert f"`{tests.function}(" in problem.statement
    assert len(problem.statement.split()) >= 25
    assert len(set(tests.inputs)) == len(tests.inputs) >= 8
    assert len(problem.bug) >= 2
    programs = [problem.solution, *(bug.solution for bug in problem.bug)]
    assert len({fingerprint(code) for code in programs}) == len(programs)
    for code in programs:
        parsed(code)
        assert ("#" in code) == ("#" in problem.solution), "comments tell a bug apart"
        assert ('"""' in code) == ('"""' in problem.solution), "docstrings tell a bug apart"


def test_no_problem_or_solution_is_there_twice() -> None:
    assert len({problem.id for problem in PROBLEMS}) == len(PROBLEMS)
    assert len({problem.statement for problem in PROBLEMS}) == len(PROBLEMS)
    owners = defaultdict(set)
    for one in solutions():
        owners[fingerprint(one.solution)].add(one.problem_id)
    assert [owner for owner in owners.values() if len(owner) > 1] == []


def test_every_label_is_proven_by_running_all_tests() -> None:
    sandbox = open_sandbox().unwrap()

    async def run(one: LabelledSolution) -> Tally:
        assert one.tests is not None
        return tally(one.tests, (await sandbox(program(one.solution, one.tests), LIMITS)).unwrap())

    async def prove() -> dict[str, Tally]:
        wrong = {}
        async for one, found in in_order(solutions(), run, AT_A_TIME):
            right = found.all_passed if one.label else is_subtle(found)
            if not right:
                wrong[f"{one.problem_id}: {one.origin}"] = found
        return wrong

    assert asyncio.run(prove()) == {}


def test_mutation_finds_two_bugs_for_nearly_every_solution() -> None:
    rights = [
        PlacedSolution("train", datapoint_of(one).id, one) for one in solutions() if one.label
    ]
    limits, free = Limits(seconds=1.0, give_up=True), asyncio.Semaphore(AT_A_TIME)
    workshop = MutantFactory(open_sandbox().unwrap(), free, limits, key(0), wanted=2)

    async def make() -> list[Made]:
        maker = by_mutation(workshop, most_tried=40)
        results = [result async for _, result in in_order(rights, maker, AT_A_TIME)]
        assert all(isinstance(result, Success) for result in results)
        return [result.unwrap() for result in results]

    made = asyncio.run(make())
    assert not any(one.problem for one in made)
    assert all(is_subtle(bug.tally) for one in made for bug in one.bugs)
    assert sum(len(one.bugs) == 2 for one in made) >= 0.95 * len(rights)
