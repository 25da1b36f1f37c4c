"""Metrics of a run in experiment trackers: while it goes on, or afterwards.

    python -m nip_fn_adapters.recording.tracking wandb RUN

sends what `metrics.jsonl` holds, then what is added to it, until its standard input is closed.  It
is a process of its own, so that a tracker that hangs, fails or leaks harms nobody, and since all it
reads is the file, a run that was killed, or never tracked, can be sent later: each tracker is
asked how much of the run it has.

A metric is named STAGE/NAME, as in `test/accuracy`.  Its step is the iteration.
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, Protocol

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.config.codec import params_hash, to_dict
from nip_fn.errors import Problem
from nip_fn.run.checkpoint import outline
from nip_fn.run.events import Forked, RunStarted
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_adapters.recording.tracker import METRICS, read_metrics

PROJECT = "nip-fn"
LOOK = 0.5  # seconds between two looks at the file
GRACE = 60.0  # seconds that trackers may take after the end of a run


class About(NamedTuple):
    """A run, as trackers are told of it.

    name: the name of its folder.
    id: the same for all sessions of the run, and for no other.
    group: runs that differ in their seed alone have the same.
    config: its parameters.
    folder: its folder.
    """

    name: str
    id: str
    group: str
    config: dict[str, Any]
    folder: Path


class Sink(Protocol):
    """A tracker that has been opened for a run."""

    known: int
    """The number of records that it has of the run; it is told those after them."""

    def log(self, number: int, iteration: int, values: Mapping[str, float]) -> None:
        """Keep a record; they are numbered from 0."""
        ...

    def close(self) -> None:
        """Keep the run's files, and return once everything is kept."""
        ...


class _Wandb:
    def __init__(self, about: About) -> None:
        import wandb

        self._wandb, self._about = wandb, about
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=about.id,
            name=about.name,
            group=about.group,
            tags=[str(about.config[name]) for name in ("interaction_protocol", "trainer")],
            config=about.config,
            resume="allow",
            dir=about.folder,
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("iteration")
        self._run.define_metric("*", step_metric="iteration")
        self.known = self._run.step  # 0 of what was tracked offline: it is told again, and merged

    def log(self, number: int, iteration: int, values: Mapping[str, float]) -> None:
        self._run.log({"iteration": iteration, **values}, step=number)

    def close(self) -> None:
        recording = self._wandb.Artifact(f"{self._about.id}-recording", type="nip-fn-run")
        recording.add_file(str(self._about.folder / CHECKPOINT))
        self._run.log_artifact(recording)
        for folder in _adapters(self._about):
            trained = self._wandb.Artifact(folder.name, type="model")
            trained.add_dir(str(folder))
            self._run.log_artifact(trained)
        self._run.finish()


class _TensorBoard:
    known = 0  # all is written again, and what is there is purged

    def __init__(self, about: About) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(about.folder / "tensorboard"))
        begun = SessionLog(status=SessionLog.SessionStatus.START)
        self._writer.add_event(Event(wall_time=time.time(), step=0, session_log=begun))

    def log(self, number: int, iteration: int, values: Mapping[str, float]) -> None:
        scalars = [
            self._summary.Value(tag=name, simple_value=value) for name, value in values.items()
        ]
        summary = self._summary(value=scalars)
        self._writer.add_event(self._event(wall_time=time.time(), step=iteration, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    def __init__(self, about: About) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        self._trackio = trackio
        last = SQLiteStorage.get_max_step_for_run(PROJECT, run=about.name)
        self.known = 0 if last is None else last + 1
        trackio.init(
            PROJECT, name=about.name, group=about.group, config=about.config, resume="allow",
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def log(self, number: int, iteration: int, values: Mapping[str, float]) -> None:
        self._trackio.log({"iteration": iteration, **values}, step=number)

    def close(self) -> None:
        self._trackio.finish()


class _Mlflow:
    """The number of known records is a tag of the run, set after each."""

    TAG = "nip_fn.records"

    def __init__(self, about: About) -> None:
        import mlflow

        self._mlflow, self._about = mlflow, about
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        earlier = mlflow.search_runs(
            [experiment.experiment_id],
            f"tags.`nip_fn.id` = '{about.id}'",
            max_results=1,
            output_format="list",
        )
        self.known = int(earlier[0].data.tags.get(self.TAG, 0)) if earlier else 0
        run_id = earlier[0].info.run_id if earlier else None
        mlflow.start_run(run_id=run_id, run_name=about.name)
        if not earlier:
            mlflow.set_tags({"nip_fn.id": about.id, "nip_fn.group": about.group})
            mlflow.log_dict(about.config, "parameters.json")

    def log(self, number: int, iteration: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=iteration)
        self._mlflow.set_tag(self.TAG, number + 1)

    def close(self) -> None:
        self._mlflow.log_artifact(str(self._about.folder / CHECKPOINT))
        for folder in _adapters(self._about):
            self._mlflow.log_artifacts(str(folder), f"adapters/{folder.name}")
        self._mlflow.end_run()


SINKS: dict[str, Callable[[About], Sink]] = {
    "wandb": _Wandb,
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "mlflow": _Mlflow,
}


def about_run(folder: Path) -> Result[About, Problem]:
    """The run in a folder, as trackers are told of it; a failure if it has not begun."""
    events = outline((folder / CHECKPOINT).read_bytes())
    begun = [event.params for event in events if isinstance(event, RunStarted | Forked)]
    if not begun:
        return Failure(Problem("the run has not begun", str(folder), kind="run"))
    params, name = begun[-1], folder.resolve().name
    whole, config = params_hash(params), to_dict(params)
    alike = msgspec.structs.replace(params, seed=0)
    return Success(About(name, f"{name}-{whole[:8]}", params_hash(alike)[:8], config, folder))


def send(name: str, folder: Path, wait: Callable[[], bool] = lambda: False) -> Result[int, Problem]:
    """Send a run's records to a tracker, and the new ones as long as `wait` returns True.

    Returns:
        The number of records that the tracker has now.  Whatever the tracker raises is a failure.
    """
    described = about_run(folder)
    if isinstance(described, Failure):
        return described
    # One at a time: the sender of a run that was killed may still be about its last records.
    with (folder / f"{name}.log").open("ab") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        return _send(name, described.unwrap(), wait)


def _send(name: str, about: About, wait: Callable[[], bool]) -> Result[int, Problem]:
    try:
        sink = SINKS[name](about)
        number, is_last, read = 0, False, None
        while not is_last:
            is_last = not wait()  # before the file is read, so that the last record is not missed
            if (version := _version(about.folder / METRICS)) == read:
                continue
            read = version
            for number, record in enumerate(read_metrics(about.folder), 1):
                if number > sink.known:
                    sink.log(number - 1, int(record["iteration"]), _values(record))
                    sink.known = number
        sink.close()
    except ImportError as error:
        problem = f"{error.name or name} is not installed"
        return Failure(Problem(problem, name, f"pip install {name}", kind="adapter"))
    except Exception as error:  # of somebody else's program, for which no run may end
        return Failure(
            Problem(f"{type(error).__name__}: {error}".splitlines()[0], name, kind="adapter")
        )
    return Success(number)


def _version(path: Path) -> tuple[int, int] | None:
    """A version of a file, which changes when something is added or a resumed run rewrites it."""
    if not path.exists():
        return None
    status = path.stat()
    return status.st_ino, status.st_size


def _values(record: dict[str, Any]) -> dict[str, float]:
    stage = record["stage"]
    return {
        f"{stage}/{name}": float(value)
        for name, value in record.items()
        if name not in ("stage", "iteration") and value is not None
    }


def _adapters(about: About) -> list[Path]:
    return sorted(path for path in about.folder.glob("adapters/*") if path.is_dir())


def _until_closed() -> bool:
    """After a while, True unless standard input has been closed."""
    ready, _, _ = select.select([sys.stdin], [], [], LOOK)
    return not ready or bool(os.read(sys.stdin.fileno(), 1024))


def tracker_problem(names: Sequence[str]) -> Problem | None:
    """The reason why a run cannot be sent to these trackers."""
    for name in names:
        if name not in SINKS:
            return Problem(f"{name!r} is no tracker", remedy=f"choose from {', '.join(SINKS)}")
        if find_spec(name) is None:
            return Problem(f"{name} is not installed", remedy=f"pip install {name}")
    return None


@contextmanager
def tracked(names: Sequence[str], folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Send a run to trackers while the block is under way; what goes wrong is told in a line."""
    children = {name: _start(name, folder) for name in names}
    try:
        yield
    finally:
        for child in children.values():
            child.stdin.close()  # type: ignore[union-attr]
        deadline = time.monotonic() + GRACE
        for name, child in children.items():
            problem = _ended(name, child, folder, deadline)
            if problem is not None:
                tell(f"nip-fn: warning: {problem}")


def _start(name: str, folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the run, whose last records are still sent
        )


def _ended(
    name: str, child: "subprocess.Popen[bytes]", folder: Path, deadline: float
) -> Problem | None:
    """The reason why a tracker has not got the whole run; it is killed if it takes too long."""
    remedy = f"send the run again with: nip-fn export {quote(str(folder))} --to {name}"
    try:
        code = child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return Problem(f"has not taken the run within {GRACE:g} s of its end", name, remedy)
    if not code:
        return None
    lines = (folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
    return Problem(
        lines[-1].removeprefix(f"{name}: ") if lines else f"exit code {code}", name, remedy
    )


def main() -> None:
    """Send a run until standard input is closed; the exit code is 0 if all was sent."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    while isinstance(about_run(folder), Failure):
        if not _until_closed():
            return
    sent = send(name, folder, _until_closed)
    if isinstance(sent, Failure):
        print(sent.failure(), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
