"""Rare states that schedules must have reached; see `__main__` for the count of each."""

from typing import TYPE_CHECKING

from nip_fn.run.checkpoint import Recording
from nip_fn.run.events import CreateJob, EndStage, Publish, SampleReplies, Train
from nip_fn.run.state import EMPTY, RunState
from nip_fn.run.step import pending
from nip_fn_adapters.costs.note import read_unrecorded

if TYPE_CHECKING:
    from .world import Schedule

STATES = (
    # what a session finds on its disk
    "a folder without a recording",
    "a recording without its header",
    "a recording without its start",
    "a torn frame",
    "a torn frame at a stage's end",
    "a torn frame among trainings",
    "recorded replies that a power cut has taken",
    "a stage that lacks only its end",
    "a training whose intent is not recorded",
    "a training whose intent alone is recorded",
    "dollars that may have been billed to a session that died",
    # at the provider
    "a job found by its tag",
    "a job found by its tag after two deaths",
    "a job that ended while nobody looked",
    "a job in place of one that failed",
    "a job in place of one that vanished",
    "an adapter that is not listed yet",
    "a batch found by its tag",
    "a batch in place of one that vanished",
    "a batch found by its tag after two deaths",
    "a row in a second batch",
    "siblings that came in parts",
    "a server that refuses n",
    "a server that ignores n",
    "a server that refuses the seed",
    # endings
    "a budget that refuses",
    "a budget that refuses with nothing lost",
    "a stop among trainings",
    "a stop in an outage",
    "a death in the grace of a stop",
    "a disk that is full",
    "a disk that fails",
    "an outage that outlasts a session",
    "a second session while one is under way",
    "a clock set back while an object is looked for",
    "three deaths in a row",
    # of the language-model server
    "a server that dies",
    "a server that dies while it trains",
    "a server in place of another",
    "a vLLM that crashes",
    "a vLLM that hangs",
    "a vLLM that sleeps",
    "an adapter that vLLM has lost",
)


def note_beginning(schedule: "Schedule", recording: Recording | None, state: RunState) -> None:
    """Note what a session finds."""
    reach, provider = schedule.reach, schedule.provider
    if recording is None:
        if schedule.run.exists():
            reach("a folder without a recording")
        return
    if not recording.size:
        reach("a recording without its header")
    elif not recording.events:
        reach("a recording without its start")
    effects = tuple(pending(state)) if state != EMPTY else ()
    is_at_end = any(isinstance(effect, EndStage) for effect in effects)
    training = [effect.job for effect in effects if isinstance(effect, Train)]
    if recording.torn:
        reach("a torn frame")
        if is_at_end:
            reach("a torn frame at a stage's end")
        if training:
            reach("a torn frame among trainings")
    if is_at_end:
        reach("a stage that lacks only its end")
    if any(isinstance(effect, CreateJob) for effect in effects):
        reach("a training whose intent is not recorded")
    if read_unrecorded(schedule.run).value_or(0.0) > 0:
        reach("dollars that may have been billed to a session that died")
    for job in training:
        remote = [created for created in provider.jobs.values() if job.name in created["name"]]
        if not remote:
            reach("a training whose intent alone is recorded")
        elif any(provider.state_of(created) != "running" for created in remote):
            reach("a job that ended while nobody looked")


def note_ending(schedule: "Schedule", state: RunState, problem: str, refusal: bool) -> None:
    """Note how a session ends."""
    effects = tuple(pending(state)) if state != EMPTY else ()
    is_training = any(isinstance(effect, Train | Publish) for effect in effects)
    is_sampling = any(isinstance(effect, SampleReplies) for effect in effects)
    if problem.startswith("stopped") and is_training:
        schedule.reach("a stop among trainings")
    if problem.startswith("stopped") and is_sampling and schedule.provider.is_out:
        schedule.reach("a stop in an outage")
    if refusal:
        schedule.reach("a budget that refuses")
        if "lost" not in problem:
            schedule.reach("a budget that refuses with nothing lost")
    if "No space" in problem:
        schedule.reach("a disk that is full")
    if "Input/output" in problem:
        schedule.reach("a disk that fails")
    if "given up after" in problem:
        schedule.reach("an outage that outlasts a session")
