"""The interpreter of a run: performs effects, records what came back, and feeds it to `step`.

It knows no game and no trainer.  Crash safety rests on one order: an event is appended to the
store before the state changes, and an intent is synced before its effect is carried out, so that
whatever is lost can be asked for again and whatever is paid for can be looked up.
"""

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.params.names import is_plain_name
from nip_fn.params.training import TextRlParameters, grace_seconds
from nip_fn.run import checkpoint
from nip_fn.run.digest import digest
from nip_fn.run.events import (
    BatchFetched,
    CheckAnswer,
    Checked,
    CreateJob,
    Effect,
    EndStage,
    Event,
    FetchBatch,
    JobCreated,
    JobFinished,
    Publish,
    Published,
    Refuse,
    Replied,
    SampleReplies,
    StageEnded,
    Train,
)
from nip_fn.run.ports import FailedTraining, Served, Tuned, Unanswered, World
from nip_fn.run.request import request
from nip_fn.run.state import RunState, answered_datapoint
from nip_fn.run.step import pending, step
from nip_fn.training.canary import canary_problem
from nip_fn.training.tuning import Job
from nip_fn_adapters import clock

EffectAnswer = Result[tuple[Event | Unanswered, ...], Problem]

Observer = Callable[[RunState, Event], None]  # called with each event and the state after it


TRAINING_TRIES = 3  # of a job, with `text_rl.failed_trainings = "retry"`


async def interpret(
    state: RunState,
    world: World,
    *,
    first: Iterable[Event] = (),
    stop: asyncio.Event | None = None,
    observe: Observer = lambda state, event: None,
    tell: Callable[[str], None] = lambda line: None,
    text_rl: TextRlParameters | None = None,
) -> Result[RunState, Problem]:
    """Run from `state` until the run is done, `stop` is set, or an adapter fails.

    Args:
        state: The state to begin in: empty, or that of a replayed recording.
        world: The adapters.
        first: Events to record before anything else, such as the start of a new run.
        stop: Set by the caller to stop the run; what is in flight may still arrive for as
            long as `grace_seconds` says.
        observe: Called after each event.
        tell: Told at once why the run stops, if replies are still waited for.
        text_rl: What this session does about failures, and how long it waits, as these parameters
            say; None: as the run's do.  What follows from them is recorded, event by event.

    Returns:
        The last state, all of which is recorded; its stage says if the run is done.  A failure is
        returned only after every other reply that was asked for has been recorded.

    Raises:
        OSError: The store refuses to append.
    """
    loop = _Loop(state, world, observe, tell, text_rl)
    for event in first:
        loop.record(event)
    # A resumed state brings no effects: they were returned when its events were first stepped, and
    # are derived from it again.
    if not loop.effects:
        loop.effects.extend(pending(loop.state))
    return await loop.run(stop or asyncio.Event())


class _Loop:
    """The one mutable thing in a run: the effects that are queued or in flight."""

    def __init__(
        self,
        state: RunState,
        world: World,
        observe: Observer,
        tell: Callable[[str], None],
        text_rl: TextRlParameters | None,
    ) -> None:
        self.state, self._session_text_rl = state, text_rl
        self.effects: deque[Effect] = deque()
        self._world = world
        self._observe = observe
        self._tell = tell
        self._answered: asyncio.Queue[asyncio.Task[EffectAnswer]] = asyncio.Queue()
        self._in_flight: dict[asyncio.Task[EffectAnswer], Effect] = {}
        self._wave_came = asyncio.Event()  # and is not synced yet
        self._stage_began = clock.monotonic()

    async def run(self, stop: asyncio.Event) -> Result[RunState, Problem]:
        """Perform effects until none is left, `stop` is set, or one fails."""
        stopping = asyncio.create_task(stop.wait())  # a stop must end a wait that is under way
        syncing = asyncio.create_task(self._sync_waves())
        problems: list[Problem] = []
        try:
            while not (stop.is_set() or problems):
                problems += self._dispatch_all()
                if not self._in_flight:
                    break
                problems += await self._take_answers(stopping)
                if syncing.done():
                    syncing.result()  # raises what the disk refused
            # A problem ends the loop, but not what is in flight: replies of other requests are paid
            # for.
            problems += await self._drain(problems)
        finally:
            stopping.cancel()
            syncing.cancel()
            await asyncio.wait((syncing,))
            # Also after an error of the store: a task that is left would keep the process alive.
            await self._cancel()
            self._world.store.sync()
        if not syncing.cancelled():
            syncing.result()
        return Failure(problems[0]) if problems else Success(self.state)

    def record(self, *events: Event) -> None:
        """Append events, in one write, then step through them."""
        # In this order: a state that is ahead of its recording could not be resumed, while an event
        # that was appended and not stepped is stepped by the next session.
        self._world.store.append(b"".join(map(checkpoint.frame, events)))
        for event in events:
            self._step(event)

    def _step(self, event: Event) -> None:
        self.state, effects = step(self.state, event)
        self.effects.extend(effects)
        self._observe(self.state, event)
        if isinstance(event, StageEnded):
            self._world.store.sync()
            self._stage_began = clock.monotonic()
            for row in self.state.rows:
                if (row.iteration, row.stage) == (event.iteration, event.stage):
                    self._world.tracker(row, event.seconds)

    def _dispatch_all(self) -> list[Problem]:
        """Perform the effects that need no waiting, start the others as tasks; why one cannot."""
        while self.effects:
            match self.effects.popleft():
                case FetchBatch(split, indices):
                    self.record(BatchFetched(self._world.source(split, indices)))
                case EndStage(iteration, stage):
                    seconds = clock.monotonic() - self._stage_began
                    self.record(StageEnded(iteration, stage, digest(self.state), seconds))
                case CreateJob(job):
                    self.record(JobCreated(job.name, job.data_hash))
                    self._world.store.sync()  # before anything is paid
                case SampleReplies() | CheckAnswer() | Train() | Publish() as effect:
                    task = asyncio.ensure_future(self._answer(effect))
                    task.add_done_callback(self._answered.put_nowait)
                    self._in_flight[task] = effect
                case Refuse(problem):
                    return [problem]
        return []

    async def _take_answers(self, deadline: "asyncio.Task[bool]") -> list[Problem]:
        """Wait for an answer, at most until `deadline` is done; record all that have arrived."""
        arrival = asyncio.ensure_future(self._answered.get())
        await asyncio.wait((arrival, deadline), return_when=asyncio.FIRST_COMPLETED)
        if not arrival.done():
            # A `get` that is cancelled leaves its item in the queue, so no answer is lost.
            arrival.cancel()
            return []
        problems = self._accept(arrival.result())
        while not self._answered.empty():
            problems += self._accept(self._answered.get_nowait())
        self._wave_came.set()
        return problems

    async def _sync_waves(self) -> None:
        """Make the replies of each wave durable while the requests that follow it are sent.

        A power cut may take the last wave: its replies are asked for again, and so are those that
        were under way in any case.
        """
        # Each sync takes some milliseconds, in which nothing else would happen: a wave is what came
        # during the last one.
        while True:
            await self._wave_came.wait()
            self._wave_came.clear()
            await asyncio.to_thread(self._world.store.sync)

    def _accept(self, task: "asyncio.Task[EffectAnswer]") -> list[Problem]:
        """Record what a task brought; return why it, or a part of it, failed."""
        del self._in_flight[task]
        if task.cancelled():  # the sampler had not asked for it yet when the run was stopped
            return []
        match task.result():
            case Success(answers):
                return self._record_all(answers)
            case Failure(problem):
                return [problem]
        return []

    def _record_all(self, answers: tuple[Event | Unanswered, ...]) -> list[Problem]:
        self.record(*(answer for answer in answers if not isinstance(answer, Unanswered)))
        missing = (answer for answer in answers if isinstance(answer, Unanswered))
        return [Problem(answer.problem) for answer in missing if answer.problem]

    async def _drain(self, causes: list[Problem]) -> list[Problem]:
        """Record the replies that still arrive within the grace: they may be paid for."""
        problems: list[Problem] = []
        self._world.drain()
        seconds = grace_seconds(self._text_rl)
        if causes and self._is_sampling():
            self._tell(
                f"{causes[0]}; waiting for the replies that are under way (at most {seconds:,.0f} "
                "s); press Ctrl-C twice to stop at once"
            )
        grace = asyncio.create_task(asyncio.sleep(seconds, True))
        # Trainings are not waited for: they take hours, and resuming looks them up.
        while not grace.done() and self._is_sampling():
            problems += await self._take_answers(grace)
        grace.cancel()
        return problems

    @property
    def _text_rl(self) -> TextRlParameters:
        return self._session_text_rl or self.state.params.text_rl

    def _is_sampling(self) -> bool:
        return any(isinstance(effect, SampleReplies) for effect in self._in_flight.values())

    async def _cancel(self) -> None:
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    async def _answer(self, effect: SampleReplies | CheckAnswer | Train | Publish) -> EffectAnswer:
        match effect:
            case SampleReplies():
                sampled = await self._world.sampler(request(self.state, effect))
                return sampled.map(lambda completions: _replied(effect, completions))
            case CheckAnswer(tree, answer):
                checked = await self._world.checker(answered_datapoint(self.state, tree), answer)
                return checked.map(lambda result: (Checked(tree, answer, *result),))
            case Train(job):
                return await self._train(job)
            case Publish():
                published = await self._world.publisher(effect)
                stops = self._text_rl.refused_adapters == "stop"
                return published.bind(lambda served: _published(effect, served, stops=stops))

    async def _train(self, job: Job) -> EffectAnswer:
        """The event of a training's end, or a failure if the run is to stop there."""
        policy = self._text_rl.failed_trainings
        for _ in range(TRAINING_TRIES if policy == "retry" else 1):
            match await self._world.tuner(job):
                case Success(done):
                    return _finished(job.name, done)
                case Failure(problem):
                    if not isinstance(problem, FailedTraining):
                        return Failure(problem)
        if policy == "skip":
            return Success((JobFinished(job.name, None, problem=str(problem)),))
        skip = "to go on without it, resume with --set text_rl.failed_trainings=skip"
        remedy = "; ".join(filter(None, (problem.remedy, skip)))
        return Failure(dataclasses.replace(problem, remedy=remedy))


def _replied(
    effect: SampleReplies, completions: tuple[Completion | Unanswered, ...]
) -> tuple[Replied | Unanswered, ...]:
    """The event of the completions that came, if any did, and each place without one."""
    tree, ask = effect.tree, effect.ask
    missing = tuple(completion for completion in completions if isinstance(completion, Unanswered))
    came = [
        (index, _encodable(completion))
        for index, completion in zip(ask.indices, completions, strict=True)
        if not isinstance(completion, Unanswered)
    ]
    if not came:
        return missing
    (index, first), *rest = came
    return Replied(tree, ask.path, ask.agent, index, ask.attempt, first, tuple(rest)), *missing


def _finished(job: str, tuned: Tuned) -> EffectAnswer:
    """The event of a training's end; a failure if its adapter has a name that no file can have."""
    if tuned.adapter is not None and not is_plain_name(tuned.adapter):
        problem = f"its adapter {tuned.adapter!r} has a name that no folder can have"
        return Failure(Problem(problem, job, "train it at another provider", lasting=True))
    return Success((JobFinished(job, tuned.adapter, tuned.report, tuned.scores, tuned.problem),))


def _published(effect: Publish, served: Served, *, stops: bool) -> EffectAnswer:
    """The event of a switch of adapters, or a failure if a refused adapter `stops` the run.

    An adapter is refused by its publisher, or by the canary: the wrong model seems to answer.
    """
    problem = served.problem or canary_problem(effect.expected, served.scores, served.dtype)
    if not problem:
        published = Published(effect.group, effect.adapter, served.scores, dtype=served.dtype)
        return Success((published,))
    if not stops:
        return Success((Published(effect.group, effect.adapter, problem=str(problem)),))
    return Failure(
        Problem(
            f"{effect.adapter} is refused for {effect.group}: {problem}",
            remedy="to leave such adapters out, resume with --set text_rl.refused_adapters=skip",
        )
    )


def _encodable(completion: Completion) -> Completion:
    """The completion without lone surrogates, which no file can hold as UTF-8."""
    if completion.text is None or completion.text.isascii():
        return completion
    text = completion.text.encode("utf-8", "replace").decode("utf-8")
    return replace(completion, text=text)
