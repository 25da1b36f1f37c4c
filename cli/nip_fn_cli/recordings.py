"""The recordings that commands read and derive again; a failure ends the command."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nip_fn.run.checkpoint import Recording
from nip_fn.run.replay import Replayed
from nip_fn_adapters.recording import runs
from nip_fn_cli.shown.exits import Exit, or_exit, say


def read_recording(path: Path, until: int | None = None) -> Recording:
    """The events in the file, or the first `until` of them."""
    return or_exit(runs.begun(path, until), Exit.RUN)


def replay_recording(path: Path, recording: Recording) -> Replayed:
    """The run that a recording leads to; warns where the source of its own values has changed."""
    with rare_collections():
        derived = runs.derive(recording)
    replayed = or_exit(derived.alt(lambda problem: problem.at(str(path))), Exit.MISMATCH)
    for problem in runs.changed_sources(recording):
        say(f"nip-fn: warning: {problem}")
    return replayed


@contextmanager
def rare_collections() -> Iterator[None]:
    """Make the garbage collector look less often, and never at what is loaded already."""
    # It took a quarter of a fast run's time: states and trees are many, and live long.
    threshold = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
