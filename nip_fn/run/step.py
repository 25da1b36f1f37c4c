"""A run is a scan over recorded events.

    step : (RunState, Event) -> (RunState, tuple[Effect, ...])

Training feeds `step` with the answers of live adapters, resuming with what was recorded and then
live, replaying with what was recorded alone.  An iteration is

    test     dialogues about held-out problems, with the models as they are
    sample   trees of replies about training problems; selection
    train    a job for each trained group that has enough rows
    publish  the new adapters

and after the last iteration one more test.  The state is a function of the *set* of events, not of
the order in which the answers to concurrent effects came in.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nip_fn.run import iteration, jobs, sampling
from nip_fn.run.events import (
    BatchFetched,
    Checked,
    Effect,
    EndStage,
    Event,
    Extended,
    Forked,
    JobCreated,
    JobFinished,
    Published,
    Refuse,
    Replied,
    RunStarted,
    StageEnded,
)
from nip_fn.run.sizes import MOST_ITERATIONS
from nip_fn.run.stages import Done, Fetching, Growing, NotStarted, Publishing, Training, is_over
from nip_fn.run.state import EMPTY, RunState

Stepped = tuple[RunState, tuple[Effect, ...]]


def step(state: RunState, event: Event) -> Stepped:
    """The state after one more event, and the effects that it asks for.

    The names in a run's parameters are looked up with `RunStarted` and `Forked`, by which runs
    begin; no other event reads a registry.

    Raises:
        ValueError: The event answers nothing that the state has asked for.
    """
    # The event is matched together with the stage.  What fits no pair falls through to the error,
    # so a damaged or foreign recording is refused before any part of it is applied.
    match event, state.stage:
        case RunStarted(), NotStarted():
            return _entered(iteration.begin(iteration.start(event)))
        case BatchFetched(datapoints), Fetching() as stage:
            return _entered(sampling.open_trees(state, stage, datapoints))
        case Replied() | Checked(), Growing() as stage:
            return _answered(*sampling.insert_event(state, stage, event))
        case JobCreated() | JobFinished(), Training() as stage:
            return _answered(*jobs.train(state, stage, event))
        case Published(), Publishing() as stage:
            return _answered(jobs.publish(state, stage, event))
        case StageEnded(), stage if is_over(stage):
            return _entered(_advance(iteration.seal(state, event)))
        case Extended(num), Done() if state.params.rl.num_iterations < num <= MOST_ITERATIONS:
            return _entered(iteration.extend(state, event))
        case Forked(), Fetching(name="sample"):
            return _entered(iteration.fork(state, event))
    raise ValueError(f"stage {state.stage.name!r} does not wait for {type(event).__name__}")


def scan(events: Iterable[Event], state: RunState = EMPTY) -> Iterator[RunState]:
    """The state after each of the events, starting from `state`."""
    for event in events:
        # The effects can be dropped: the events that follow are their answers.
        state, _ = step(state, event)
        yield state


def pending(state: RunState) -> tuple[Effect, ...]:
    """Everything that the state waits for: the effects to perform when a run is resumed."""
    # Derived from the state and stored nowhere: a list of open effects would be a second account of
    # the same facts, and a crash could come between the two.
    match state.stage:
        case Growing() as stage if problem := sampling.update_problem(state, stage):
            return (Refuse(problem),)
        case stage if is_over(stage):
            return (EndStage(state.iteration, stage.name),)
        case Fetching():
            return (sampling.fetch(state),)
        case Growing() as stage:
            return sampling.requests(stage)
        case Training() as stage:
            return jobs.trainings(stage)
        case Publishing() as stage:
            return jobs.publications(stage)
    return ()


def _entered(state: RunState) -> Stepped:
    """The first state of a stage, and all that the stage asks for."""
    return state, pending(state)


def _answered(state: RunState, effects: tuple[Effect, ...] = ()) -> Stepped:
    """The state after an answer, the effects that follow from it, or else the end of the stage."""
    return state, effects or (pending(state) if is_over(state.stage) else ())


def _advance(state: RunState) -> RunState:
    """From an ended stage into the next one."""
    match state.stage:
        case Growing(name="test"):
            return iteration.after_test(state)
        case Growing() as sampled:
            return jobs.start_training(state, sampled)
        case Training() as stage:
            return jobs.start_publishing(state, stage)
    return iteration.begin(replace(state, iteration=state.iteration + 1))
