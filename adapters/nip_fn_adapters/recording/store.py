"""A run's folder and its append-only checkpoint."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EPERM
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.params.names import is_plain_name
from nip_fn.run import checkpoint
from nip_fn.run.checkpoint import Recording
from nip_fn_adapters.durable import make_folder, replace_file, sync_path

CHECKPOINT = "checkpoint.msgpack"


class AppendStore:
    """An open checkpoint, locked against other writers: the `Store` port as a file."""

    def __init__(self, descriptor: int, path: Path) -> None:
        """Take over an open, locked descriptor of `path` that stands at the end of the file."""
        # Not one of Python's buffered files, which could hold back events that count as appended.
        self._descriptor, self._path = descriptor, path

    def append(self, frames: bytes) -> None:
        """Write frames at the end; raises `OSError` if the file system refuses."""
        view = memoryview(frames)  # a full disk or a signal may cut a write short
        with self._named():
            while view:
                view = view[os.write(self._descriptor, view) :]

    def begin(self, frames: bytes) -> None:
        """Write the first frames so that a crash leaves all of them or none."""
        replace_file(self._path, checkpoint.header() + frames)
        os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def sync(self) -> None:
        """Return once everything that was appended would survive a power cut."""
        with self._named():
            os.fsync(self._descriptor)

    def cut(self, size: int) -> None:
        """Drop all bytes after the first `size`, durably."""
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self._descriptor)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file to an error, since the system knows only its descriptor."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise


class Reopened(NamedTuple):
    """A checkpoint opened to be continued.

    store: the open file, at its end.
    recording: the events that it held, and how many torn bytes were cut off it.
    """

    store: AppendStore
    recording: Recording


def create(run: Path) -> Result[AppendStore, Problem]:
    """The store of a new run in the folder `run`, which must not hold a run yet."""
    make_folder(run)
    path = run / CHECKPOINT
    try:
        # Created exclusively: of two commands that choose the same name at once, one must lose.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    except FileExistsError:
        return Failure(
            Problem(
                f"{run} holds a run already",
                remedy=f"resume it with nip-fn train --resume --run {quote(run.name)}, or give the "
                "new run another name (`name`)",
                kind="run",
            )
        )
    store = AppendStore(descriptor, path)
    with _closed_on_failure(store):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        store.append(checkpoint.header())
        store.sync()
        # Without this the file itself may be missing after a power cut, though its bytes were
        # synced.
        sync_path(run)
    return Success(store)


def read_recording(path: Path, limit: int | None = None) -> Result[Recording, Problem]:
    """The events in the checkpoint at `path`, or the first `limit` of them."""
    try:
        data = path.read_bytes()
    except OSError as error:
        remedy = "name a run's folder, or its checkpoint.msgpack"
        return Failure(Problem(error.strerror or str(error), str(path), remedy, kind="run"))
    return checkpoint.read(data, limit).alt(lambda problem: problem.at(str(path)))


def reopen(run: Path) -> Result[Reopened, Problem]:
    """The run's checkpoint, opened to be continued, its torn tail cut off.

    A file that cannot be read as a checkpoint is left as it is.
    """
    try:
        descriptor = os.open(run / CHECKPOINT, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        remedy = "start it without `resume`"
        return Failure(Problem(f"{run} holds no run to resume", remedy=remedy, kind="run"))
    store = AppendStore(descriptor, run / CHECKPOINT)
    with _closed_on_failure(store):
        # The lock is the kernel's and ends with its process, so that none is ever left behind by a
        # crash, as a lock file would be.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"{run} is being written by another process"
            return _refused(store, Problem(problem, remedy="stop that one first", kind="run"))
        # Read under the lock: before it, another process might still append.
        reading = read_recording(run / CHECKPOINT)
        if isinstance(reading, Failure):
            return _refused(store, reading.failure())
        recording = reading.unwrap()
        # Cut before anything is appended: frames after a torn one could not be found again.
        if recording.torn:
            store.cut(recording.size)
        if not recording.size:  # its writer died while it wrote the header
            store.append(checkpoint.header())
        # What the last writer did not sync may be an intent, which this one carries out.
        store.sync()
    return Success(Reopened(store, recording))


@contextmanager
def _closed_on_failure(store: AppendStore) -> Iterator[None]:
    """Give the file back if the block raises, so that the same process may try again."""
    try:
        yield
    except BaseException:
        store.close()
        raise


def _refused(store: AppendStore, problem: Problem) -> Result[Reopened, Problem]:
    store.close()
    return Failure(problem)


def below(folder: Path, *names: str) -> Path:
    """The path of `names`, as found in a recording, below a folder.

    Raises:
        PermissionError: It would lie elsewhere: a name is no plain one, or a link leads away.
    """
    path = folder.joinpath(*names)
    if not all(map(is_plain_name, names)) or not path.resolve().is_relative_to(folder.resolve()):
        raise PermissionError(EPERM, f"leads out of {folder}; nothing was written", str(path))
    return path
