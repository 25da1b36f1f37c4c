"""Training jobs through accelerate: one process or several, and to the hub."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from nip_fn.run.ports import Progress, Tuned
from nip_fn.training.losses import Loss, OwnLoss
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local import models
from nip_fn_adapters.providers.local.jobs import JobFiles, failure_reason, finished, write_job
from nip_fn_adapters.providers.local.policy import load_policy, probe_scores
from nip_fn_adapters.providers.local.progress import read_progress
from nip_fn_adapters.serving.training import TrainingSettings, run_training
from nip_fn_adapters.trust import VARIABLE

from ..lazily import torch
from ..own_losses import KTO
from . import several_jobs
from .fake_hub import fake_hub
from .test_local_packed import LOSSES, make_rows
from .tiny_llama import make_tiny_llama
from .training import make_job, tune, two_processes

# `test_server_training` trains through accelerate, too, in one process.
pytestmark = [pytest.mark.exhaustive, pytest.mark.xdist_group("trainings")]

ID = "run-verifier-0"  # not the job's own name


class Done(NamedTuple):
    """A training that has ended."""

    files: JobFiles
    job: Job
    code: int
    starts: int
    seen: Progress | None

    @property
    def left(self) -> Tuned:
        """The result of the training."""
        tuned = finished(self.files, self.job)
        assert tuned is not None, self.files.log.read_text("utf-8")
        return tuned


def do(
    folder: Path,
    job: Job,
    settings: TrainingSettings,
    train: Callable[..., Coroutine[Any, Any, int]] = run_training,
) -> Done:
    """Lay down the job under an id and train it."""
    files, starts = JobFiles(folder, ID), []
    write_job(files, job)
    train_it = train(folder, ID, lambda: starts.append(read_progress(files)), settings)
    code = asyncio.run(train_it)
    return Done(files, job, code, len(starts), starts[0] if starts else None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> TrainingSettings:
    return two_processes(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A training in one process."""
    return do(tmp_path_factory.mktemp("one"), make_job(model), TrainingSettings(threads=1))


def halved(model: Path) -> Job:
    """The same training for two processes, each with half of each batch."""
    return replace(make_job(model), batch_size=make_job(model).batch_size // 2)


@pytest.fixture(scope="module")
def shared(model: Path, two: TrainingSettings, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The same by two processes."""
    return do(tmp_path_factory.mktemp("two"), halved(model), two)


def test_accelerate_leaves_what_the_local_tuner_leaves(alone: Done, tmp_path: Path) -> None:
    (local,) = tune(tmp_path, alone.job)
    assert alone.code == 0
    assert alone.left.adapter == local.unwrap().adapter
    assert alone.left.scores == local.unwrap().scores


def test_two_processes_train_as_one_does_and_in_full_precision(alone: Done, shared: Done) -> None:
    assert_the_same(alone, shared)


def test_two_processes_that_hold_half_of_the_model_do_too(
    model: Path, alone: Done, tmp_path: Path
) -> None:
    """By trl, as yet."""
    parts = do(tmp_path, halved(model), two_processes(tmp_path, in_parts=True))
    assert_the_same(alone, parts)
    assert "it is trained in parts" in parts.files.log.read_text("utf-8")


def assert_the_same(alone: Done, shared: Done) -> None:
    """Up to rounding, the same figures and the same model."""
    assert_equal(alone.left, shared.left)


def assert_equal(alone: Tuned, shared: Tuned) -> None:
    """The same of what the trainings left."""
    one, two = dict(alone.report), dict(shared.report)
    assert one.keys() == two.keys()
    for name in one.keys() - {"seconds", "forwarded_tokens"}:  # they share fewer tokens
        assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-5), name
    for before, after in zip(alone.scores, shared.scores, strict=True):
        assert after.after == pytest.approx(before.after, abs=1e-4)


class ByEveryLoss(NamedTuple):
    """A job for each loss, and what they leave in one process."""

    jobs: list[Job]
    alone: list[Tuned]


@pytest.fixture(scope="module")
def by_every_loss(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ByEveryLoss:
    folder = tmp_path_factory.mktemp("losses")
    (folder / "own.py").write_text(KTO)
    losses: list[Loss] = [*LOSSES.values(), OwnLoss(f"{folder / 'own.py'}:KTO")]
    jobs = [
        replace(
            make_job(model),
            name=f"verifier-{index}",
            loss=loss,
            rows=make_rows("ragged trees", loss),
            batch_size=4,
        )
        for index, loss in enumerate(losses)
    ]
    return ByEveryLoss(jobs, train_several(folder, jobs))


def train_several(folder: Path, jobs: list[Job], *launch: str) -> list[Tuned]:
    """What the jobs leave, all trained in one process, or in those of one launch."""
    files = [JobFiles(folder, job.name) for job in jobs]
    for job, job_files in zip(jobs, files, strict=True):
        write_job(job_files, job)
    names = [job.name for job in jobs]
    ended = subprocess.run(
        [sys.executable, "-m", *launch, several_jobs.__name__, str(folder), "1", *names],
        env={**os.environ, VARIABLE: "1", "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,  # not a pipe, whose end would end the training
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return [Done(f, job, 0, 0, None).left for f, job in zip(files, jobs, strict=True)]


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
def test_two_processes_train_by_every_loss_as_one_does(
    by_every_loss: ByEveryLoss, tmp_path: Path, in_parts: bool
) -> None:
    """Each with the whole model (DDP), or with a half of it (FSDP2)."""
    config = two_processes(tmp_path, in_parts=in_parts).accelerate_config
    launch = ("accelerate.commands.launch", "--config_file", str(config), "--module")
    jobs = [replace(job, batch_size=job.batch_size // 2) for job in by_every_loss.jobs]
    shared = train_several(tmp_path, jobs, *launch)
    for job, one, two in zip(jobs, by_every_loss.alone, shared, strict=True):
        assert one.adapter is not None, job.loss
        assert_equal(one, two)


@pytest.mark.parametrize("which", ["alone", "shared"])
def test_one_adapter_comes_out_and_serves_as_the_trainer_says(
    which: str, request: pytest.FixtureRequest
) -> None:
    done: Done = request.getfixturevalue(which)
    (folder,) = done.files.adapters.iterdir()
    assert folder.name == done.left.adapter
    assert folder.name.startswith(f"{done.job.name}-")
    policy = load_policy(done.job.model, done.files.adapters, folder.name).unwrap()
    after = [score.after for score in done.left.scores]
    assert probe_scores(policy, done.job.probes) == pytest.approx(after, abs=1e-3)
    assert done.starts == 1
    assert {path.name for path in done.files.folder.iterdir()} <= {
        *("job.msgpack", "result.json", "log.txt", "progress.json", "accelerate.json"),
    }


@pytest.mark.parametrize("which", ["alone", "shared"])
def test_progress_begins_with_the_training_and_ends_with_its_last_step(
    which: str, request: pytest.FixtureRequest
) -> None:
    done: Done = request.getfixturevalue(which)
    assert done.seen is not None
    assert done.seen.steps == 6
    last = read_progress(done.files)
    assert last is not None
    assert (last.step, last.steps, last.seconds_left) == (6, 6, 0)
    assert last.loss == dict(done.left.report)["loss_last"]


def test_what_a_training_lacks_is_told_in_one_line_by_several_processes_too(
    model: Path, two: TrainingSettings, tmp_path: Path
) -> None:
    failed = do(tmp_path, replace(make_job(model), start="verifier-9-none"), two)
    assert failed.code != 0
    assert failed.starts == 0
    cause = failure_reason(failed.files, failed.code)
    assert "verifier-9-none" in cause
    assert "\n" not in cause
    assert list(failed.files.adapters.iterdir()) == []


def test_a_configuration_that_is_none_is_told(model: Path, tmp_path: Path) -> None:
    failed = do(tmp_path, make_job(model), TrainingSettings(tmp_path / "nowhere.yaml"))
    assert failed.code != 0
    assert "nowhere.yaml" in failure_reason(failed.files, failed.code)


def test_an_adapter_that_cannot_be_pushed_stays_with_a_warning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_hub() as hub:
        hub.refuses_pushes = True
        for name, value in hub.environment(tmp_path / "home", HF_TOKEN="secret").items():
            monkeypatch.setenv(name, value)
        job = replace(make_job(model), num_epochs=1)
        done = do(tmp_path, job, TrainingSettings(hub_namespace="me", threads=1))
    assert done.code == 0
    (folder,) = done.files.adapters.iterdir()
    assert folder.name == done.left.adapter
    log = done.files.log.read_text("utf-8")
    warning = log.splitlines()[-1]
    assert warning.startswith(f"warning: {folder.name} was not pushed to me/{folder.name}: ")
    assert "loss" in log
    assert "secret" not in log


def test_an_adapter_is_pushed_to_a_private_repository(alone: Done, tmp_path: Path) -> None:
    (folder,) = alone.files.adapters.iterdir()
    with (
        fake_hub() as hub,
        subprocess.Popen(
            [sys.executable, "-m", "nip_fn_adapters.providers.local.hub", str(folder), "me"],
            env=hub.environment(tmp_path, HF_TOKEN="secret"),
            stdin=subprocess.PIPE,  # it would end with this pipe
            stdout=subprocess.PIPE,
            text=True,
        ) as pushing,
    ):
        assert pushing.stdout is not None
        told = pushing.stdout.read().splitlines()[-1]
    assert told == f"pushed {folder.name} to me/{folder.name}"
    pushed = hub.models[f"me/{folder.name}"]
    assert pushed.items() >= {path.name: path.read_bytes() for path in folder.iterdir()}.items()
    assert [created["visibility"] for created in hub.created] == ["private"]


@pytest.mark.parametrize(
    ("available", "bf16", "capability", "expected"),
    [
        (False, False, (0, 0), "no"),
        (True, True, (9, 0), "bf16"),
        (True, False, (7, 5), "fp16"),
        (True, False, (6, 1), "no"),
    ],
)
def test_the_precision_is_what_the_device_is_fast_at(
    monkeypatch: pytest.MonkeyPatch,
    available: bool,
    bf16: bool,
    capability: tuple[int, int],
    expected: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert models.precision() == expected
