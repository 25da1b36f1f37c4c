"""Checkers of written answers: functions of the answer, and tests that are run in the sandbox.

A check may be repeated at will, so nothing is recorded before it: of those that a crash interrupts
each is made once more.
"""

import asyncio
from collections.abc import Callable
from functools import cache

from returns.result import Failure, Result, Success

from nip_fn.code.programs import Limits, Tests, program, tally
from nip_fn.config.resolve import checker_name
from nip_fn.errors import Problem, one_line
from nip_fn.game.checkers import CHECKERS, Checker
from nip_fn.game.datapoint import Datapoint
from nip_fn.params.names import is_reference
from nip_fn.params.run import HyperParameters
from nip_fn.run.ports import AnswerChecker, CheckResult
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.sandbox import open_sandbox

MOST_CHECKS = 4  # programs that run at a time

Checked = Result[CheckResult, Problem]


def answer_checker(params: HyperParameters, data: Data) -> AnswerChecker:
    """The checker that the parameters name; equal answers to a datapoint are checked once."""
    tested = by_tests(data)

    async def check(datapoint: Datapoint, answer: str) -> Checked:
        name = checker_name(params, datapoint.kind)
        if name == "tests":
            return await tested(datapoint, answer)
        function = by_function(CHECKERS[name], is_own=is_reference(name))
        return await function(datapoint, answer)

    return once(check)


def by_function(checker: Checker, *, is_own: bool) -> AnswerChecker:
    """The answers of a function; one that raises, or returns no label, leaves them unchecked.

    Args:
        checker: The function.
        is_own: True if it may take its time, and must not hold up the event loop meanwhile.
    """

    async def check(datapoint: Datapoint, answer: str) -> Checked:
        try:
            label = (
                await asyncio.to_thread(checker, datapoint, answer)
                if is_own
                else checker(datapoint, answer)
            )
        except Exception as error:  # whatever a user's own code raises
            return Success(CheckResult(None, one_line(f"{type(error).__name__}: {error}")))
        if label is None:
            return Success(CheckResult(None, "the checker cannot tell"))
        if label not in (0, 1):
            return Success(CheckResult(None, f"the checker returned {label!r}, which is no label"))
        return Success(CheckResult(int(label)))

    return check


def by_tests(data: Data) -> AnswerChecker:
    """Answers as programs: right if they pass all tests of their row, in the sandbox."""
    tests_of = _tests_by_id(data)
    at_a_time = asyncio.Semaphore(MOST_CHECKS)

    async def check(datapoint: Datapoint, answer: str) -> Checked:
        tests = tests_of().get(datapoint.id)
        if tests is None:
            return Success(CheckResult(None, "its row has no tests"))
        opened = open_sandbox()
        if isinstance(opened, Failure):
            return Failure(opened.failure())
        async with at_a_time:
            runs = await opened.unwrap()(program(answer, tests), Limits())
        return runs.map(lambda ends: CheckResult(int(tally(tests, ends).all_passed)))

    return check


def _tests_by_id(data: Data) -> Callable[[], dict[str, Tests]]:
    @cache
    def tests_by_id() -> dict[str, Tests]:
        return {
            placed.id: placed.solution.tests
            for placed in data.solutions()
            if placed.solution.tests is not None
        }

    return tests_by_id


def once(check: AnswerChecker) -> AnswerChecker:
    """The same checker, asked once in a session about equal answers to a datapoint."""
    # Within a tree the core asks once; trees about one datapoint know nothing of each other.
    asked: dict[tuple[str, str], asyncio.Task[Checked]] = {}

    async def remembered(datapoint: Datapoint, answer: str) -> Checked:
        question = (datapoint.id, answer)
        if question not in asked:
            asked[question] = asyncio.ensure_future(check(datapoint, answer))
        # Shielded: whoever is cancelled must not take the answer from others that wait for it.
        result = await asyncio.shield(asked[question])
        if isinstance(result, Failure):
            asked.pop(question, None)
        return result

    return remembered
