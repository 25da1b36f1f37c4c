"""Makes buggy solutions, by mutation or by a model, and lets tests judge them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.code.bugs import (
    Candidate,
    ScoredCandidate,
    best,
    from_mutant,
    from_reply,
    is_subtle,
    judged,
)
from nip_fn.code.mutation import draw_order, mutants
from nip_fn.code.ports import Sandbox
from nip_fn.code.programs import Limits, Tally, Tests, program, tally
from nip_fn.code.solutions import LabelledSolution, PlacedSolution
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in
from nip_fn.prompts.chat import Chat, Message
from nip_fn.prompts.render import render
from nip_fn.run.request import Request

CHOICE = 4  # bugs that each wanted one is chosen from
WRITER = "bug_writer"  # the model that writes bugs, as an agent


class Made(NamedTuple):
    """What came of one right solution."""

    bugs: tuple[ScoredCandidate, ...] = ()
    tried: int = 0  # candidates that were run
    problem: str = ""  # why none could be made of it


Maker = Callable[[PlacedSolution], Awaitable[Result[Made, str]]]


class MutantFactory(NamedTuple):
    """What any making of bugs needs."""

    sandbox: Sandbox
    free: asyncio.Semaphore  # for as many programs as may run at a time
    limits: Limits
    key: Key
    wanted: int  # bugs of each right solution

    async def prove(self, laid: PlacedSolution, code: str) -> Result[Tally, str]:
        """How code does on the tests of a solution."""
        tests = laid.solution.tests or Tests()
        async with self.free:
            ran = await self.sandbox(program(code, tests), self.limits)
        return ran.map(lambda runs: tally(tests, runs))

    async def judge(
        self, laid: PlacedSolution, candidates: Iterable[Candidate], enough: int | None = None
    ) -> Result[list[ScoredCandidate], str]:
        """The candidates, judged one after the other, until there are enough with a bug."""
        found: list[ScoredCandidate] = []
        for candidate in candidates:
            if sum(is_subtle(one.tally) for one in found) == enough:
                break
            proven = await self.prove(laid, candidate.code)
            if isinstance(proven, Failure):
                return Failure(proven.failure())
            found.append(judged(laid.solution.solution, candidate, proven.unwrap()))
        return Success(found)


def by_mutation(workshop: MutantFactory, most_tried: int) -> Maker:
    """Makes bugs by mutating the syntax tree: of each solution at most so many mutants are tried,
    until the wanted ones can be the subtlest of four times as many.
    """

    async def make(laid: PlacedSolution) -> Result[Made, str]:
        refused = await _refused(workshop, laid)
        if refused is not None:
            return refused
        try:
            # Not in a thread: Python 3.11 may parse in one thread at a time only.
            found = mutants(laid.solution.solution)
        except SyntaxError as error:
            return Success(Made(problem=f"no Python of this version: {error.msg}"))
        order = draw_order(found, fold_in(workshop.key, "mutation", laid.id))[:most_tried]
        results = await workshop.judge(laid, map(from_mutant, order), CHOICE * workshop.wanted)
        return results.map(
            lambda all_: Made(best(laid.solution.solution, all_, workshop.wanted), len(all_))
        )

    return make


async def _refused(workshop: MutantFactory, laid: PlacedSolution) -> Result[Made, str] | None:
    """Why no bug can be made of a solution; None where it passes its own tests."""
    proven = await workshop.prove(laid, laid.solution.solution)
    if isinstance(proven, Failure):
        return Failure(proven.failure())
    counts: Tally = proven.unwrap()
    if counts.all_passed:
        return None
    return Success(Made(problem=f"passes {counts.passed} of its own {counts.tests} tests"))


Ask = Callable[[Request], Awaitable[Result[tuple[Completion, ...], str]]]


class Writer(NamedTuple):
    """A model that is to write bugs, and how it is asked."""

    ask: Ask
    model: str
    max_tokens: int
    temperature: float | None
    attempts: int  # requests for each solution at most


def by_model(workshop: MutantFactory, writer: Writer) -> Maker:
    """Makes bugs by asking a model for them; a request asks for as many replies as are wanted."""

    async def make(laid: PlacedSolution) -> Result[Made, str]:
        refused = await _refused(workshop, laid)
        return await _written(workshop, writer, laid) if refused is None else refused

    return make


async def _written(
    workshop: MutantFactory, writer: Writer, laid: PlacedSolution
) -> Result[Made, str]:
    """What a model makes of a solution, in as many requests as it takes."""
    candidates: list[ScoredCandidate] = []
    made = Made()
    for attempt in range(writer.attempts):
        replies = await writer.ask(request_for(workshop, writer, laid, attempt))
        if isinstance(replies, Failure):
            return Failure(replies.failure())
        new = [from_reply(reply.text or "", reply.model) for reply in replies.unwrap()]
        results = await workshop.judge(laid, filter(None, new))
        if isinstance(results, Failure):
            return Failure(results.failure())
        candidates += results.unwrap()
        made = Made(best(laid.solution.solution, candidates, workshop.wanted), len(candidates))
        if len(made.bugs) == workshop.wanted:
            break
    return Success(made)


def request_for(
    workshop: MutantFactory, writer: Writer, laid: PlacedSolution, attempt: int
) -> Request:
    """What a model is asked for at one attempt at a solution."""
    place = fold_in(workshop.key, "model", laid.id, attempt)
    return Request(
        model=writer.model,
        adapter=None,
        chat=bug_chat(laid.solution),
        keys=tuple(fold_in(place, index) for index in range(workshop.wanted)),
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
