"""Recordings that are read and derived again."""

from pathlib import Path

from nip_fn.run.checkpoint import Recording
from nip_fn.run.replay import Replayed
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.recording import runs


def open_recording(path: Path, until: int | None = None) -> Recording:
    """The events in the file, or the first `until` of them."""
    return runs.begun(path, until).unwrap()


def replay_recording(path: Path, recording: Recording, watch: Watch = NOBODY) -> Replayed:
    """The run that a recording leads to; warns where the source of its own values has changed."""
    replayed = runs.derive(recording).alt(lambda problem: problem.at(str(path))).unwrap()
    for problem in runs.changed_sources(recording):
        watch.warn(problem)
    return replayed


def read_run(path: Path, watch: Watch = NOBODY) -> runs.Run:
    """The run in the file, derived; warns as `replay_recording` does."""
    recording = open_recording(path)
    replayed = replay_recording(path, recording, watch)
    return runs.Run(path, recording, replayed, runs.changed_sources(recording))
