"""Recorded runs of every version: whatever was derived once is derived again.

A folder for each version holds its recordings (`record.py` made them).  Those of a tagged version
are never written again: where a test here fails, the code is wrong.
"""

import re

import pytest
from msgspec.structs import replace

from nip_fn.run.digest import digest
from nip_fn.run.events import BatchFetched, Event, FetchBatch, Replied, StageEnded
from nip_fn.run.replay import replay
from nip_fn.run.state import EMPTY
from nip_fn.run.step import pending, step
from nip_fn_adapters.recording import store

from .record import FOLDER, RUNS

RECORDINGS = [str(path.relative_to(FOLDER)) for path in sorted(FOLDER.glob("*/*.msgpack"))]


def events_of(name: str) -> list[Event]:
    recording = store.read_recording(FOLDER / name).unwrap()
    assert recording.torn == 0
    return list(recording.events)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recorded_run_is_derived_again(name: str) -> None:
    """Every stage ends in the digest that was recorded, the first as well as the last."""
    state, ends = EMPTY, 0
    for event in events_of(name):
        if isinstance(event, StageEnded):
            assert digest(state) == event.digest, (event.iteration, event.stage)
            ends += 1
        state, _ = step(state, event)
    assert (state.stage.name, state.faults) == ("done", ())
    assert ends


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_resumed_run_asks_for_the_datapoints_that_the_recorded_one_asked_for(name: str) -> None:
    """Replay is given the datapoints of a batch, and so does not notice which it asked for.

    The order of the data is therefore held to the recording: one place in a split, one datapoint.
    """
    state, at = EMPTY, dict[tuple[str, int], str]()
    for event in events_of(name):
        if isinstance(event, BatchFetched):
            (asked,) = (effect for effect in pending(state) if isinstance(effect, FetchBatch))
            for index, datapoint in zip(asked.indices, event.datapoints, strict=True):
                assert at.setdefault((asked.split, index), datapoint.id) == datapoint.id
        state, _ = step(state, event)
    assert len(set(at.values())) == len(at)


def test_every_recording_is_there() -> None:
    """A recording that goes missing would be a test that goes missing."""
    names = [path.split("/")[1] for path in RECORDINGS]
    assert set(names) == {f"{name}.msgpack" for name in RUNS}


@pytest.mark.parametrize("name", ["ei-weighted", "debate", "local"])
def test_a_recording_that_was_tampered_with_is_noticed(name: str) -> None:
    events = events_of(f"0.3/{name}.msgpack")
    at = next(
        i
        for i, event in enumerate(events)
        if isinstance(event, Replied)
        and re.search(r"Decision: (?!perhaps)", event.completion.text or "")
    )
    told = events[at]
    assert isinstance(told, Replied)
    other = replace(told.completion, text="Never mind.")
    events[at] = replace(told, completion=other)
    outcome = replay(events)
    assert outcome.value_or(None) is None or outcome.unwrap().state.faults
