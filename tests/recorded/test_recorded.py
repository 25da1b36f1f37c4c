"""Recorded runs that every build replays: what was derived once is derived again.

A build that means to derive something else records these anew, on purpose.  All are of two
iterations: `dummy` is a run of the dummy provider, `debate` one of a sequential debate with graded
decisions, unusable replies and games that are broken off, `embedded` one of the embedded model,
warmed up by Expert Iteration.
"""

import re
from pathlib import Path

import pytest

from nip_fn import digest
from nip_fn.run.replay import replay
from nip_fn_adapters import store

DIGESTS = {
    "dummy": "7ae932cb4b99e81d9cdafb414194907b",
    "debate": "7d2a07b70658770c5f9f1bc92f2e402d",
    "embedded": "25dbf53014be72c6b099eeb1c8493203",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_recorded_run_is_derived_again(name: str) -> None:
    recording = store.read(Path(__file__).parent / f"{name}.msgpack").unwrap()
    assert recording.torn == 0
    replayed = replay(recording.events).unwrap()
    assert replayed.state.faults == ()
    assert replayed.state.stage == "done"
    assert digest(replayed.state) == DIGESTS[name]
    assert all(group.lineage for group in replayed.state.groups if group.name == "verifier")


@pytest.mark.parametrize("name", DIGESTS)
def test_a_recording_that_was_tampered_with_is_noticed(name: str) -> None:
    from msgspec.structs import replace

    from nip_fn.run.events import Replied

    events = list(store.read(Path(__file__).parent / f"{name}.msgpack").unwrap().events)
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
