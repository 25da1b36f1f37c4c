"""A run's recording, read and derived again; what goes wrong ends the command with one line."""

from pathlib import Path
from typing import NoReturn

from returns.result import Failure

from nip_fn.run.checkpoint import ReadError, Recording
from nip_fn.run.replay import Replayed, replay
from nip_fn_adapters import store
from nip_fn_cli.exits import READ_EXITS, Exit, die


def read_recording(path: Path, until: int | None = None) -> Recording:
    """What the file holds, or its first `until` events."""
    try:
        reading = store.read(path, until)
    except OSError as error:
        die(Exit.RUN, f"{path}: {error.strerror}")
    if isinstance(reading, Failure):
        refuse(path, reading.failure())
    recording: Recording = reading.unwrap()
    return recording


def replay_recording(path: Path, recording: Recording) -> Replayed:
    """All that the recording leads to."""
    replayed = replay(recording.events)
    if isinstance(replayed, Failure):
        die(Exit.MISMATCH, f"{path}: {replayed.failure()}")
    return replayed.unwrap()


def refuse(path: Path, problem: ReadError) -> NoReturn:
    """End the command over a file that cannot be read as a recording."""
    die(READ_EXITS[problem.kind], f"{path}: {problem.message}")
