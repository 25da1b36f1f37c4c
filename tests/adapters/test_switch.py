"""The run around a training: a failed one changes nothing, a wrong switch stops the run."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from returns.result import Result, Success

from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Event, Publish, RunStarted
from nip_fn.run.ports import Publisher, Served, Tuned, Tuner, World
from nip_fn.run.replay import replay
from nip_fn.run.state import EMPTY, RunState
from nip_fn.training.canary import NUM_PROBES, Score
from nip_fn.training.tuning import Job
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.recording import store

from .conftest import small_dataset, small_params

BEFORE, AFTER = -7.0, -3.0


def scored_tuner() -> Tuner:
    """The dummy tuner, which claims to have scored the probes."""
    tune = dummy.dummy_tuner()

    async def scored(job: Job) -> Result[Tuned, Problem]:
        left = (await tune(job)).unwrap()
        return Success(left._replace(scores=(Score(BEFORE, AFTER),) * len(job.probes)))

    return scored


def failing_tuner(iteration: int) -> Tuner:
    """The dummy tuner, whose trainings diverge in one iteration."""
    tune = dummy.dummy_tuner()

    async def failing(job: Job) -> Result[Tuned, Problem]:
        if job.iteration == iteration:
            return Success(Tuned(None, (("steps", 3.0),), problem="the loss is not a number"))
        return await tune(job)

    return failing


def serving(score: float) -> Publisher:
    """A publisher whose model gives every probe that log-probability."""

    async def serve(effect: Publish) -> Result[Served, Problem]:
        assert 0 < len(effect.probes) <= NUM_PROBES
        return Success(Served((score,) * len(effect.probes)))

    return serve


def run(
    folder: Path, tuner: Tuner, publisher: Publisher, params: HyperParameters | None = None
) -> Result[RunState, Problem]:
    """A small run, or what is left of it."""
    params = params or small_params()
    first: tuple[Event, ...] = (RunStarted(params, in_memory(small_dataset()).info, "0"),)
    if (folder / store.CHECKPOINT).exists():
        opened, recording = store.reopen(folder).unwrap()
        state, first = replay(recording.events).unwrap().state, ()
    else:
        opened, state = store.create(folder).unwrap(), EMPTY
    world = World(
        sampler=dummy.dummy_sampler(params.dummy),
        tuner=tuner,
        publisher=publisher,
        source=in_memory(small_dataset()).source,
        store=opened,
        tracker=lambda row, seconds: None,
    )
    try:
        return asyncio.run(interpret(state, world, first=first))
    finally:
        opened.close()


def test_a_switch_to_what_was_trained_goes_on_and_is_measured(tmp_path: Path) -> None:
    state = run(tmp_path / "a", scored_tuner(), serving(AFTER + 0.004)).unwrap()
    assert state.stage.name == "done"
    rows = [dict(row.metrics) for row in state.rows if row.stage == "publish"]
    assert len(rows) == 2
    for row in rows:
        assert row["verifier.canary_gap"] == pytest.approx(0.004)
        assert row["verifier.canary_shift"] == pytest.approx(AFTER - BEFORE)


@pytest.mark.parametrize(
    ("served", "words"),
    [(BEFORE, "before the training"), (-40.0, "another model"), (float("nan"), "another model")],
)
def test_a_wrong_switch_stops_the_run_which_goes_on_once_it_is_mended(
    served: float, words: str, tmp_path: Path
) -> None:
    stopped = str(run(tmp_path / "a", scored_tuner(), serving(served)).failure())
    assert words in stopped
    assert "\n" not in stopped
    mended = run(tmp_path / "a", scored_tuner(), serving(AFTER)).unwrap()
    straight = run(tmp_path / "b", scored_tuner(), serving(AFTER)).unwrap()
    assert mended.stage.name == "done"
    assert replace(mended, seconds=()) == replace(straight, seconds=())


def test_a_failed_training_keeps_the_adapter_before_it(tmp_path: Path) -> None:
    state = run(tmp_path / "a", failing_tuner(iteration=1), dummy.serve_at_once).unwrap()
    assert state.stage.name == "done"
    trained = [dict(row.metrics) for row in state.rows if row.stage == "train"]
    assert [row["jobs_failed"] for row in trained] == [0, trained[1]["jobs"]]
    assert trained[1]["jobs"] > 0
    (verifier,) = (group for group in state.groups if group.name == "verifier")
    assert [adapter.iteration for adapter in verifier.lineage] == [0]
    assert verifier.serving == verifier.lineage[0].name
