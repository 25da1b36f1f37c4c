"""Makes buggy solutions, by mutation or by a model, and lets tests judge them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.code.bugs import (
    Candidate,
    ScoredCandidate,
    from_mutant,
    from_reply,
    is_subtle,
    scored,
    subtlest,
)
from nip_fn.code.mutation import draw_order, mutants
from nip_fn.code.ports import Sandbox
from nip_fn.code.programs import Limits, Tally, Tests, program, tally
from nip_fn.code.solutions import LabelledSolution, PlacedSolution
from nip_fn.errors import Eventual, Problem
from nip_fn.game.chat import Chat, Message
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in
from nip_fn.prompts.render import render
from nip_fn.run.request import Request

CHOICE = 4  # bugs that each wanted one is chosen from
WRITER = "bug_writer"  # the model that writes bugs, as an agent


class Made(NamedTuple):
    """The bugs that were made of one right solution."""

    bugs: tuple[ScoredCandidate, ...] = ()
    tried: int = 0  # candidates that were run
    problem: str = ""  # why none could be made of it


Maker = Callable[[PlacedSolution], Eventual[Made]]


class MutantFactory(NamedTuple):
    """All that any making of bugs needs."""

    sandbox: Sandbox
    free: asyncio.Semaphore  # for as many programs as may run at a time
    limits: Limits
    key: Key
    wanted: int  # bugs of each right solution

    async def prove(self, laid: PlacedSolution, code: str) -> Result[Tally, Problem]:
        """Counts of the outcomes of code on the tests of a solution."""
        tests = laid.solution.tests or Tests()
        async with self.free:
            ran = await self.sandbox(program(code, tests), self.limits)
        return ran.map(lambda runs: tally(tests, runs))

    async def judge(
        self, laid: PlacedSolution, candidates: Iterable[Candidate], enough: int | None = None
    ) -> Result[list[ScoredCandidate], Problem]:
        """The candidates, run one after the other, until there are enough with a subtle bug."""
        found: list[ScoredCandidate] = []
        for candidate in candidates:
            if sum(is_subtle(one.tally) for one in found) == enough:
                break
            match await self.prove(laid, candidate.code):
                case Success(counts):
                    found.append(scored(laid.solution.solution, candidate, counts))
                case Failure(problem):
                    return Failure(problem)
        return Success(found)

    async def flaw(self, laid: PlacedSolution) -> Result[str, Problem]:
        """The reason why no bug can be made of a solution; "" if it passes its own tests."""
        proven = await self.prove(laid, laid.solution.solution)
        return proven.map(
            lambda counts: (
                ""
                if counts.all_passed
                else f"passes {counts.passed} of its own {counts.tests} tests"
            )
        )


def by_mutation(factory: MutantFactory, most_tried: int) -> Maker:
    """A maker of bugs by mutation of the syntax tree.

    Of each solution at most `most_tried` mutants are run, until the wanted ones can be the subtlest
    of four times as many.
    """

    async def mutate(laid: PlacedSolution) -> Result[Made, Problem]:
        try:
            # Not in a thread: Python 3.11 may parse in one thread at a time only.
            found = mutants(laid.solution.solution)
        except SyntaxError as error:
            return Success(Made(problem=f"no Python of this version: {error.msg}"))
        order = draw_order(found, fold_in(factory.key, "mutation", laid.id))[:most_tried]
        results = await factory.judge(laid, map(from_mutant, order), CHOICE * factory.wanted)
        return results.map(
            lambda all_: Made(subtlest(laid.solution.solution, all_, factory.wanted), len(all_))
        )

    return _of_right_ones(factory, mutate)


def _of_right_ones(factory: MutantFactory, make: Maker) -> Maker:
    """A maker that makes bugs only of solutions that pass their own tests."""

    async def guarded(laid: PlacedSolution) -> Result[Made, Problem]:
        # Every mutant of a solution that fails its own tests would seem to have a bug.
        match await factory.flaw(laid):
            case Success(""):
                return await make(laid)
            case Success(flaw):
                return Success(Made(problem=flaw))
            case Failure(problem):
                return Failure(problem)
        raise AssertionError("a result is a success or a failure")

    return guarded


Ask = Callable[[Request], Eventual[tuple[Completion, ...]]]


class BugWriter(NamedTuple):
    """A model that is to write bugs, and the parameters of its requests."""

    ask: Ask
    model: str
    max_tokens: int
    temperature: float | None
    attempts: int  # requests for each solution at most


def by_model(factory: MutantFactory, writer: BugWriter) -> Maker:
    """A maker of bugs by a model; a request asks for as many replies as bugs are wanted."""

    async def write(laid: PlacedSolution) -> Result[Made, Problem]:
        candidates: list[ScoredCandidate] = []
        made = Made()
        for attempt in range(writer.attempts):
            match await _attempt(factory, writer, laid, attempt):
                case Success(found):
                    candidates += found
                case Failure(problem):
                    return Failure(problem)
            made = Made(
                subtlest(laid.solution.solution, candidates, factory.wanted), len(candidates)
            )
            if len(made.bugs) == factory.wanted:
                break
        return Success(made)

    return _of_right_ones(factory, write)


async def _attempt(
    factory: MutantFactory, writer: BugWriter, laid: PlacedSolution, attempt: int
) -> Result[list[ScoredCandidate], Problem]:
    """The candidates that a model writes in reply to one request, judged."""
    match await writer.ask(request_for(factory, writer, laid, attempt)):
        case Success(replies):
            written = (from_reply(reply.text or "", reply.model) for reply in replies)
            return await factory.judge(laid, filter(None, written))
        case Failure(problem):
            return Failure(problem)
    raise AssertionError("a result is a success or a failure")


def request_for(
    factory: MutantFactory, writer: BugWriter, laid: PlacedSolution, attempt: int
) -> Request:
    """The request to a model at one attempt at a solution."""
    place = fold_in(factory.key, "model", laid.id, attempt)
    return Request(
        model=writer.model,
        adapter=None,
        chat=bug_chat(laid.solution),
        keys=tuple(fold_in(place, index) for index in range(factory.wanted)),
        temperature=writer.temperature,
        top_p=None,
        repetition_penalty=None,
        max_tokens=writer.max_tokens,
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
