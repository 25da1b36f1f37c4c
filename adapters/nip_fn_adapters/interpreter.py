"""Performs effects, records what came back, and feeds it to `step`.

It knows no game and no trainer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.game.reply import Completion
from nip_fn.run import checkpoint
from nip_fn.run.events import (
    BatchFetched,
    CreateJob,
    Effect,
    EndStage,
    Event,
    FetchBatch,
    JobCreated,
    JobFinished,
    Publish,
    Published,
    Replied,
    SampleReplies,
    StageEnded,
    Train,
)
from nip_fn.run.ports import Served, Unanswered, World
from nip_fn.run.request import request
from nip_fn.run.state import RunState, digest
from nip_fn.run.step import pending, step
from nip_fn.training.jobs import canary_problem

Answer = Result[tuple[Event | Unanswered, ...], str]

Observer = Callable[[RunState, Event], None]  # told of each event and the state after it

GRACE_SECONDS = 15.0  # for replies that were asked for when the run was stopped


async def interpret(
    state: RunState,
    world: World,
    *,
    first: Iterable[Event] = (),
    stop: asyncio.Event | None = None,
    observe: Observer = lambda state, event: None,
) -> Result[RunState, str]:
    """Go on from `state` until the run is done, `stop` is set, or an adapter fails.

    Returns the last state, all of which is recorded; its stage tells whether the run is done.  A
    failure is returned only after every other reply that was asked for has been recorded.
    """
    loop = _Loop(state, world, observe)
    for event in first:
        loop.record(event)
    if not loop.effects:
        loop.effects.extend(pending(loop.state))
    return await loop.run(stop or asyncio.Event())


class _Loop:
    """The one mutable thing in a run: what is in flight."""

    def __init__(self, state: RunState, world: World, observe: Observer) -> None:
        self.state = state
        self.effects: deque[Effect] = deque()
        self._world = world
        self._observe = observe
        self._answered: asyncio.Queue[asyncio.Task[Answer]] = asyncio.Queue()
        self._in_flight: dict[asyncio.Task[Answer], Effect] = {}
        self._stage_began = time.monotonic()

    async def run(self, stop: asyncio.Event) -> Result[RunState, str]:
        """Until nothing is left to do."""
        stopping = asyncio.create_task(stop.wait())
        failures: list[str] = []
        try:
            while not (stop.is_set() or failures):
                self._dispatch_all()
                if not self._in_flight:
                    break
                failures += await self._take_answers(stopping)
            failures += await self._drain()
        finally:
            stopping.cancel()
            await self._cancel()
            self._world.store.sync()
        return Failure(failures[0]) if failures else Success(self.state)

    def record(self, event: Event) -> None:
        """Append an event, then let the state take notice of it."""
        self._world.store.append(checkpoint.frame(event))
        self.state, effects = step(self.state, event)
        self.effects.extend(effects)
        self._observe(self.state, event)
        if isinstance(event, StageEnded):
            self._world.store.sync()
            self._stage_began = time.monotonic()
            for row in self.state.rows:
                if (row.iteration, row.stage) == (event.iteration, event.stage):
                    self._world.tracker(row, event.seconds)

    def _dispatch_all(self) -> None:
        """Perform what needs no waiting at once, and set the rest in motion."""
        while self.effects:
            match self.effects.popleft():
                case FetchBatch(split, indices):
                    self.record(BatchFetched(self._world.source(split, indices)))
                case EndStage(iteration, stage):
                    seconds = time.monotonic() - self._stage_began
                    self.record(StageEnded(iteration, stage, digest(self.state), seconds))
                case CreateJob(job):
                    self.record(JobCreated(job.name, job.data_hash))
                    self._world.store.sync()  # before anything is paid
                case SampleReplies() | Train() | Publish() as effect:
                    task = asyncio.ensure_future(self._answer(effect))
                    task.add_done_callback(self._answered.put_nowait)
                    self._in_flight[task] = effect

    async def _take_answers(self, patience: "asyncio.Task[bool]") -> list[str]:
        """Wait for an answer until `patience` ends; record all answers that are there."""
        arrival = asyncio.ensure_future(self._answered.get())
        await asyncio.wait((arrival, patience), return_when=asyncio.FIRST_COMPLETED)
        if not arrival.done():
            arrival.cancel()
            return []
        failures = self._accept(arrival.result())
        while not self._answered.empty():
            failures += self._accept(self._answered.get_nowait())
        self._world.store.sync()
        return failures

    def _accept(self, task: "asyncio.Task[Answer]") -> list[str]:
        del self._in_flight[task]
        if task.cancelled():  # it was held back
            return []
        answer = task.result()
        if isinstance(answer, Failure):
            return [answer.failure()]
        failures = []
        for one in answer.unwrap():
            if not isinstance(one, Unanswered):
                self.record(one)
            elif one.problem:
                failures.append(one.problem)
        return failures

    async def _drain(self) -> list[str]:
        """Record the replies that are still coming in, within the grace: they may be paid for."""
        failures: list[str] = []
        self._world.drain()
        patience = asyncio.create_task(asyncio.sleep(GRACE_SECONDS, True))
        while not patience.done() and any(
            isinstance(effect, SampleReplies) for effect in self._in_flight.values()
        ):
            failures += await self._take_answers(patience)
        patience.cancel()
        return failures

    async def _cancel(self) -> None:
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    async def _answer(self, effect: SampleReplies | Train | Publish) -> Answer:
        match effect:
            case SampleReplies(tree, ask):
                sampled = await self._world.sampler(request(self.state, effect))
                return sampled.map(
                    lambda completions: tuple(
                        done
                        if isinstance(done, Unanswered)
                        else Replied(tree, ask.path, ask.agent, index, ask.attempt, _writable(done))
                        for index, done in zip(ask.indices, completions, strict=True)
                    )
                )
            case Train(job):
                tuned = await self._world.tuner(job)
                return tuned.map(
                    lambda done: (
                        JobFinished(job.name, done.adapter, done.report, done.scores, done.problem),
                    )
                )
            case Publish() as effect:
                published = await self._world.publisher(effect)
                stops = self.state.params.text_rl.refused_adapters == "stop"
                return published.bind(lambda served: _published(effect, served, stops=stops))


def _published(effect: Publish, served: Served, *, stops: bool) -> Answer:
    """What is recorded of a switch; a failure where it `stops` the run that the adapter is refused,
    or that the wrong model seems to answer.
    """
    problem = served.problem or canary_problem(effect.expected, served.scores)
    if not problem:
        return Success((Published(effect.group, effect.adapter, served.scores),))
    if stops:
        return Failure(f"{effect.adapter} is refused for {effect.group}: {problem}")
    return Success((Published(effect.group, effect.adapter, problem=problem),))


def _writable(completion: Completion) -> Completion:
    """The completion without lone surrogates, which no file can hold as UTF-8."""
    if completion.text is None or completion.text.isascii():
        return completion
    text = completion.text.encode("utf-8", "replace").decode("utf-8")
    return replace(completion, text=text)
