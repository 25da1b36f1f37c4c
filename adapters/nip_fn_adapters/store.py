"""A run's folder and its append-only checkpoint."""

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.run import checkpoint
from nip_fn.run.checkpoint import ReadError, Recording

CHECKPOINT = "checkpoint.msgpack"


class AppendStore:
    """An open checkpoint, locked against other writers.  Fulfils the `Store` port."""

    def __init__(self, descriptor: int) -> None:
        """Take over an open, locked descriptor that stands at the end of the file."""
        self._descriptor = descriptor

    def append(self, frame: bytes) -> None:
        """Write a frame at the end; `OSError` where the file system refuses."""
        view = memoryview(frame)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        """Return once all that was appended would survive a power cut."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Give up the file and its lock."""
        os.close(self._descriptor)


class Opened(NamedTuple):
    """A checkpoint opened for going on."""

    store: AppendStore
    recording: Recording


def create(run: Path) -> Result[AppendStore, str]:
    """A new run's store in the folder `run`, which must not hold a run yet."""
    run.mkdir(parents=True, exist_ok=True)
    path = run / CHECKPOINT
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    except FileExistsError:
        return Failure(
            f"{run} holds a run already; go on with it (--resume) or name another (--run)"
        )
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    store = AppendStore(descriptor)
    store.append(checkpoint.header())
    store.sync()
    sync_path(run)
    return Success(store)


def read(path: Path, limit: int | None = None) -> Result[Recording, ReadError]:
    """What the checkpoint at `path` holds; `OSError` where it cannot be read at all."""
    return checkpoint.read(path.read_bytes(), limit)


def reopen(run: Path) -> Result[Opened, ReadError | str]:
    """The run's checkpoint opened for going on, its torn tail cut off.

    Nothing is changed in a file that cannot be read whole.
    """
    path = run / CHECKPOINT
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        return Failure(f"{run} holds no run to resume; start it without --resume")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return Failure(f"{run} is being written by another process; stop that one first")
    reading = read(path)
    if isinstance(reading, Failure):
        os.close(descriptor)
        return Failure(reading.failure())
    recording = reading.unwrap()
    store = AppendStore(descriptor)
    if recording.torn:
        os.ftruncate(descriptor, recording.size)
        os.fsync(descriptor)
    if not recording.size:
        store.append(checkpoint.header())
        store.sync()
    return Success(Opened(store, recording))


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that, whenever we die, the old or the new content is there whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Return once the file, or the names in the folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
