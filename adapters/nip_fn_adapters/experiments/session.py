"""A session of a run, which goes on until the run is done or stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace as with_fields
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.config.toml import to_toml
from nip_fn.errors import Problem, ProblemKind
from nip_fn.params.run import HyperParameters
from nip_fn.params.training import TextRlParameters, grace_seconds
from nip_fn.run.events import Event, Extended, RunStarted, StageEnded
from nip_fn.run.ports import World
from nip_fn.run.state import RunState
from nip_fn.run.step import step
from nip_fn_adapters.costs.note import keep_prices
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.experiments.budgets import (
    Money,
    RunningCost,
    lost_line,
    money_of_run,
    with_budget,
)
from nip_fn_adapters.experiments.checking import answer_checker
from nip_fn_adapters.experiments.concurrency import run_in_own_loop
from nip_fn_adapters.experiments.outcomes import refuse, refused_by_system
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.experiments.wiring import Models
from nip_fn_adapters.interpreter import Observer, interpret
from nip_fn_adapters.processes.garbage import rare_collections
from nip_fn_adapters.recording.store import AppendStore
from nip_fn_adapters.recording.tracker import JsonLines
from nip_fn_adapters.recording.transcripts import TranscriptFiles

CONFIG = "config.toml"  # the run's parameters, in its folder; nip-fn train takes it


class Session(NamedTuple):
    """A run that is ready to be started or resumed.

    store: its checkpoint, open at its end.
    models: the adapters that sample and train.
    state: the state to begin in.
    data: its data set.
    first: the event to record before anything else, if there is one.
    changes: the parameters that are others than those recorded, in this session alone.
    """

    store: AppendStore
    models: Models
    state: RunState
    data: Data
    first: tuple[RunStarted | Extended, ...]
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def text_rl(self) -> TextRlParameters:
        """The session's parameters for waiting and for going on after failures."""
        prefix = "text_rl."
        changed = {
            address.removeprefix(prefix): value
            for address, value in self.changes
            if address.startswith(prefix)
        }
        return replace(self.params.text_rl, **changed)

    @property
    def params(self) -> HyperParameters:
        """The run's parameters, after the first event."""
        return reduce(lambda state, event: step(state, event)[0], self.first, self.state).params


def run_session(
    session: Session, folder: Path, again: str, money: Money, watch: Watch = NOBODY
) -> RunState:
    """Run to the end.

    Args:
        session: The run.
        folder: Its folder.
        again: The command that resumes it, for the problem of an early end.
        money: The prices and the budget.
        watch: Whoever watches.

    Returns:
        The state in which the run is done.  Refuses a run that is stopped before; it is resumable.
    """
    try:
        money = money_of_run(money, folder)
        keep_prices(folder, money.prices.own)
        # In each session: an earlier one may have been killed before it, or extended the run.
        replace_file(folder / CONFIG, to_toml(session.params).encode())
        running_cost = RunningCost(session.state, folder, money)
        try:
            result = _interpreted(session, folder, running_cost, money, watch)
        except OSError as error:
            remedy = f"what was recorded before is kept, resume with: {again}"
            refuse(refused_by_system(error, remedy))
        finally:
            running_cost.budget.close()
    finally:
        session.store.close()
    if lost := lost_line(running_cost.budget.unrecorded):
        watch.tell(lost)
    return (
        result.bind(_done)
        .alt(lambda problem: _resumable(problem, running_cost.budget.refusal, again))
        .unwrap()
    )


def _done(state: RunState) -> Result[RunState, Problem]:
    """The state of a run that is done; a failure if it was stopped before."""
    if state.stage.name == "done":
        return Success(state)
    return Failure(Problem("stopped", remedy="nothing is lost", kind="interrupted"))


def _resumable(problem: Problem, refusal: Problem | None, again: str) -> Problem:
    """The problem of a run that has ended early, and how it is resumed.

    Args:
        problem: The cause.
        refusal: Why the budget allows no more requests; None if it does.
        again: The command that resumes the run.
    """
    if problem.kind == "interrupted":
        return with_fields(problem, remedy=f"nothing is lost, resume with: {again}")
    problem_kind: ProblemKind = "adapter"
    if refusal is not None and str(problem) == str(refusal):
        kept, problem_kind = f"resume with: {again} --budget MORE", "budget"
    elif problem.lasting:
        # To resume a run is to keep its parameters, so it would end in the same place.
        kept = "this run keeps its parameters: start a new one that differs"
    else:
        kept = f"all replies so far are kept, resume with: {again}"
    return with_fields(
        problem, remedy="; ".join(filter(None, (problem.remedy, kept))), kind=problem_kind
    )


def _interpreted(
    session: Session, folder: Path, running_cost: RunningCost, money: Money, watch: Watch
) -> Result[RunState, Problem]:
    """The last state that the session comes to, or why it has ended early."""
    models = with_budget(session.models, session.params, running_cost, money)
    world = World(
        sampler=models.sampler,
        tuner=models.tuner,
        publisher=models.publisher,
        source=session.data.source,
        store=session.store,
        tracker=JsonLines(folder, session.params, session.state, money.prices),
        drain=models.drain,
        checker=answer_checker(session.params, session.data),
    )
    showing = watch.display(session.state, lambda: str(running_cost), folder)
    with rare_collections(), showing as display:
        # In this order: the display shows the cost with that of the event included.
        observers: list[Observer] = [running_cost, display]
        if models.progress is not None:
            models.progress.follow = display.follow
        if session.params.text_rl.save_transcripts:
            observers.append(TranscriptFiles(folder))
        tidying = _Tidying(session.state, models.tidy, watch)
        interpreting = partial(_interpret, session, world, [*observers, tidying], tidying, watch)
        return run_in_own_loop(interpreting)


class _Tidying:
    """Deletes what was uploaded for a stage once the stage is over, as an observer of events."""

    def __init__(
        self, state: RunState, tidy: Callable[[RunState], Awaitable[None]], watch: Watch
    ) -> None:
        self._state, self._tidy, self._watch = state, tidy, watch
        self._tasks: list[asyncio.Task[None]] = []

    def __call__(self, state: RunState, event: Event) -> None:
        self._state = state
        if isinstance(event, StageEnded):
            self._tasks.append(asyncio.ensure_future(self._try(state)))

    async def close(self) -> None:
        """Return once all uploads that no resumed run needs are deleted."""
        await asyncio.gather(*self._tasks)
        await self._try(self._state)

    async def _try(self, state: RunState) -> None:
        try:
            await self._tidy(state)
        except OSError as error:  # of the notes about them; no run ends for files that are left
            self._watch.warn(f"uploaded files may be left at the provider: {error}")


async def _interpret(
    session: Session,
    world: World,
    observers: Iterable[Observer],
    tidying: _Tidying,
    watch: Watch,
) -> Result[RunState, Problem]:
    def observe(state: RunState, event: Event) -> None:
        for observer in observers:
            observer(state, event)

    with watch.stopping(grace_seconds(session.text_rl)) as stop:
        result = await interpret(
            session.state,
            world,
            first=session.first,
            stop=stop,
            observe=observe,
            tell=watch.tell,
            text_rl=session.text_rl,
        )
        await tidying.close()
    return result
