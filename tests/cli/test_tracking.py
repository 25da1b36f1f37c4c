"""Trackers, read back by their own readers, which live in an environment of their own."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from nip_fn_adapters.recording.tracking import SINKS, About, send, tracked

from .conftest import SMALL, RunCli, plain_environment

PYTHON = Path(__file__).parents[2] / ".venv-track" / "bin" / "python"
needs_trackers = pytest.mark.skipif(
    not PYTHON.exists(), reason="no trackers are installed (make .venv-track)"
)
Curves = dict[str, dict[str, float]]  # metric -> iteration -> value

READERS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator("runs/r/tensorboard", size_guidance={"scalars": 0}).Reload()
curves = {name: [(e.step, e.value) for e in read.Scalars(name)] for name in read.Tags()["scalars"]}
""",
    "trackio": """
from trackio.sqlite_storage import SQLiteStorage
curves = {}
for row in SQLiteStorage.get_logs("nip-fn", "r"):
    for name, value in row.items():
        if "/" in name:
            curves.setdefault(name, []).append((row["iteration"], value))
""",
    "mlflow": """
import mlflow
(run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
client = mlflow.MlflowClient()
curves = {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
          for name in run.data.metrics}
""",
    # A file of W&B is LevelDB's log: blocks of 32 KiB, in them parts with their length and kind
    # (1 a whole record; 2, 3, 4 its beginning, middle and end); a header of 7 bytes comes first.
    "wandb": """
import glob
from wandb.proto.wandb_internal_pb2 import Record
def records(data):
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        record += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(record)
            record = b""
steps = {}
for path in sorted(glob.glob("runs/r/wandb/offline-run-*/run-*.wandb")):
    for record in records(open(path, "rb").read()):
        if record.HasField("history"):
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json)
                   for i in record.history.item}
            steps.setdefault(record.history.step.num, {}).update(row)
curves = {}
for row in steps.values():
    for name, value in row.items():
        if "/" in name:
            curves.setdefault(name, []).append((row["iteration"], value))
""",
}


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Every tracker keeps what it is told in this folder, and nothing leaves the machine."""
    return {
        **plain_environment(tmp_path),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }


def train(folder: Path, environment: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON.parent / "nip-fn", "train", *SMALL, "--run", "r", *options],
        cwd=folder, env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def recorded(folder: Path) -> Curves:
    """The curves in `metrics.jsonl`."""
    curves: Curves = {}
    for line in (folder / "runs" / "r" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, value in record.items():
            if name not in ("stage", "iteration") and value is not None:
                curves.setdefault(f"{record['stage']}/{name}", {})[str(record["iteration"])] = value
    return curves


def read_back(tracker: str, folder: Path, environment: Mapping[str, str]) -> Curves:
    """The curves in a tracker; each point must be there once."""
    done = subprocess.run(
        [PYTHON, "-c", f"import json\n{READERS[tracker]}\nprint('\\n' + json.dumps(curves))"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(len(dict(points)) == len(points) for points in found.values())
    return {name: {str(at): value for at, value in points} for name, points in found.items()}


@needs_trackers
@pytest.mark.parametrize("tracker", SINKS)
def test_a_tracker_has_the_run_also_after_a_kill(
    tracker: str, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    killed = train(tmp_path, environment, "--track", tracker)
    metrics = tmp_path / "runs" / "r" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_bytes():
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    resumed = train(tmp_path, environment, "--resume", "--track", tracker)
    _, told = resumed.communicate()
    assert (resumed.returncode, f"warning: {tracker}" in told) == (0, False), told
    wanted = recorded(tmp_path)
    found = read_back(tracker, tmp_path, environment)
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert found[name] == pytest.approx(points, rel=1e-6)  # TensorBoard keeps 32 bits


# --------------------------------------------------------------- sinks that are of no use to anyone


class Deaf:
    """A tracker that fails, or takes for ever, after its first record."""

    known = 0

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def log(self, number: int, iteration: int, values: Mapping[str, float]) -> None:
        if self.fails and number:
            raise RuntimeError("no space left\nanywhere")

    def close(self) -> None:
        pass


@pytest.fixture
def run(run_cli: RunCli, tmp_path: Path) -> Path:
    assert run_cli("train", *SMALL, "--run", "r").returncode == 0
    return tmp_path / "runs" / "r"


def test_what_a_tracker_raises_is_a_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, "deaf", lambda about: Deaf(fails=True))
    assert str(send("deaf", run).failure()) == "deaf: RuntimeError: no space left"
    monkeypatch.setitem(SINKS, "deaf", lambda about: Deaf(fails=False))
    assert send("deaf", run).unwrap() == len((run / "metrics.jsonl").read_text().splitlines())


def test_a_tracker_that_hangs_is_left_behind(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child that never reads its input, in the place of the one that sends."""
    (tmp_path / "sleeps").write_text(f"#!{os.sys.executable}\nimport time\ntime.sleep(60)\n")
    (tmp_path / "sleeps").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "sleeps"))
    monkeypatch.setattr("nip_fn_adapters.recording.tracking.GRACE", 0.5)
    told: list[str] = []
    began = time.monotonic()
    with tracked(["wandb"], run, told.append):
        pass
    assert time.monotonic() - began < 45
    (line,) = told
    assert "has not taken the run" in line
    assert f"nip-fn export {run} --to wandb" in line


def test_runs_that_differ_in_their_seed_alone_are_one_group(
    run: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli("train", *SMALL, "--seed", "6", "--run", "s").returncode == 0
    seen: list[About] = []
    monkeypatch.setitem(SINKS, "deaf", lambda about: seen.append(about) or Deaf(fails=False))
    for folder in (run, run.parent / "s"):
        send("deaf", folder).unwrap()
    one, other = seen
    assert one.group == other.group
    assert one.id != other.id
    assert one.config["seed"] == 5


def test_a_tracker_that_is_none_or_not_there_is_refused(run_cli: RunCli) -> None:
    done = run_cli("train", *SMALL, "--track", "wandbb")
    assert (done.returncode, "choose from wandb" in done.stderr) == (2, True)
    done = run_cli("train", *SMALL, "--track", "wandb")
    if done.returncode:  # where it is not installed
        assert "pip install wandb" in done.stderr
