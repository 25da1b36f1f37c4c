"""Buggy solutions that a model writes, and that tests judge."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.code.bugs import Candidate, code_in, edit_distance, subtlest
from nip_fn.code.ports import Sandbox
from nip_fn.code.programs import Limits, Tally, Tests, program, tally
from nip_fn.code.solutions import LabelledSolution, PlacedSolution
from nip_fn.errors import Eventual, Problem
from nip_fn.game.chat import Chat, Message
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in
from nip_fn.prompts.render import render
from nip_fn.run.request import Request

WRITER = "bug_writer"  # the model that writes bugs, as an agent


class Made(NamedTuple):
    """The bugs that were made of one right solution."""

    bugs: tuple[Candidate, ...] = ()
    tried: int = 0  # candidates that were run
    problem: str = ""  # why none could be made of it


Ask = Callable[[Request], Eventual[tuple[Completion, ...]]]


class BugWriter(NamedTuple):
    """A model that is to write bugs, the parameters of its requests, and the sandbox that judges.

    A request asks for as many replies as bugs are wanted.
    """

    ask: Ask
    model: str
    max_tokens: int
    temperature: float | None
    attempts: int  # requests for each solution at most
    wanted: int  # bugs of each right solution
    key: Key
    sandbox: Sandbox
    limits: Limits
    free: asyncio.Semaphore  # for as many programs as may run at a time

    async def make(self, placed: PlacedSolution) -> Result[Made, Problem]:
        """The subtlest bugs of a right solution; none if it fails its own tests."""
        right = placed.solution.solution
        match await self.prove(placed, right):
            case Success(counts) if not counts.all_passed:
                # Any change of a solution that fails its own tests would seem to be a bug.
                problem = f"passes {counts.passed} of its own {counts.tests} tests"
                return Success(Made(problem=problem))
            case Failure(problem):
                return Failure(problem)
        made, candidates = Made(), list[Candidate]()
        for attempt in range(self.attempts):
            match await self.written(placed, attempt):
                case Success(more):
                    candidates += more
                case Failure(problem):
                    return Failure(problem)
            made = Made(subtlest(right, candidates, self.wanted), len(candidates))
            if len(made.bugs) == self.wanted:
                break
        return Success(made)

    async def prove(self, placed: PlacedSolution, code: str) -> Result[Tally, Problem]:
        """Counts of the outcomes of code on the tests of a solution."""
        tests = placed.solution.tests or Tests()
        async with self.free:
            ran = await self.sandbox(program(code, tests), self.limits)
        return ran.map(lambda runs: tally(tests, runs))

    async def written(
        self, placed: PlacedSolution, attempt: int
    ) -> Result[list[Candidate], Problem]:
        """The candidates that the model writes in reply to one request, judged one by one."""
        answer = await self.ask(self.request(placed, attempt))
        candidates: list[Candidate] = []
        for reply in answer.value_or(()):
            code = code_in(reply.text or "")
            if code is None:
                continue
            match await self.prove(placed, code):
                case Success(counts):
                    distance = edit_distance(placed.solution.solution, code)
                    candidates.append(Candidate(code, reply.model, counts, distance))
                case Failure(problem):
                    return Failure(problem)
        return answer.map(lambda _: candidates)

    def request(self, placed: PlacedSolution, attempt: int) -> Request:
        """The request to the model at one attempt at a solution."""
        key = fold_in(self.key, "model", placed.id, attempt)
        return Request(
            model=self.model,
            adapter=None,
            chat=bug_chat(placed.solution),
            keys=tuple(fold_in(key, index) for index in range(self.wanted)),
            temperature=self.temperature,
            top_p=None,
            repetition_penalty=None,
            max_tokens=self.max_tokens,
            agent=WRITER,
            is_verifier=False,
            headers=(),
            decisions=(),
        )


def bug_chat(right: LabelledSolution) -> Chat:
    """The chat that asks a model for a solution with a bug."""
    texts = {"question": right.question, "solution": right.solution}
    return (
        Message("system", render("v1", "data", ("make_bug_system",), **texts)),
        Message("user", render("v1", "data", ("make_bug",), **texts)),
    )
