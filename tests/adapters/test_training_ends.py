"""Trainings through accelerate end whole: killed, cancelled, or left by their parent."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from nip_fn_adapters.providers.local.jobs import (
    JobFiles,
    failure_reason,
    finished,
    read_job,
    write_job,
)
from nip_fn_adapters.serving.training import TrainingSettings, run_training

from .tiny_llama import make_tiny_llama
from .training import make_job, two_processes

# `test_server_training` cancels such a training, and `test_local_tuner` kills one of its own.
pytestmark = pytest.mark.exhaustive

ID = "run-verifier-0"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> TrainingSettings:
    return two_processes(tmp_path_factory.mktemp("config"))


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """A job that would train for hours, laid down."""
    made = JobFiles(tmp_path, ID)
    write_job(made, replace(make_job(make_tiny_llama(tmp_path / "model")), num_epochs=100_000))
    return made


def test_one_process_that_is_killed_ends_all(two: TrainingSettings, files: JobFiles) -> None:
    family: list[psutil.Process] = []

    def kill_one() -> None:
        family.extend(family_of(psutil.Process(), files))
        launcher, *workers = family
        assert [worker.ppid() for worker in workers] == [launcher.pid] * 2
        workers[-1].kill()

    code = asyncio.run(run_training(files.run, ID, kill_one, two))
    assert code != 0
    assert "SIGKILL" in failure_reason(files, code)
    assert not any(map(runs, family))
    assert finished(files, read_job(files)) is None


def test_none_is_left_of_a_training_that_is_no_longer_wanted(files: JobFiles) -> None:
    settings = TrainingSettings(threads=1)

    async def cancel() -> list[psutil.Process]:
        begun = asyncio.Event()
        training = asyncio.ensure_future(run_training(files.run, ID, begun.set, settings))
        await asyncio.wait_for(begun.wait(), 300)
        family = family_of(psutil.Process(), files)
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        assert training.cancelled()
        return family

    family = asyncio.run(cancel())
    assert len(family) == 2
    assert not any(map(runs, family))


def test_all_processes_end_with_a_parent_that_is_killed(
    two: TrainingSettings, files: JobFiles
) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from nip_fn_adapters.serving.training import TrainingSettings, run_training\n"
        "folder, name, config = sys.argv[1:]\n"
        "settings = TrainingSettings(Path(config), threads=2)\n"
        "asyncio.run(run_training(Path(folder), name, lambda: print('begun'), settings))\n"
    )
    arguments = [sys.executable, "-u", "-c", script, str(files.run), ID, str(two.accelerate_config)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        family = family_of(psutil.Process(parent.pid), files)
        parent.kill()
    assert len(family) == 3
    wait_until(lambda: not any(map(runs, family)))
    assert list(files.adapters.iterdir()) == []


def family_of(parent: psutil.Process, files: JobFiles) -> list[psutil.Process]:
    """The parent's processes that train the job, the launcher first."""
    children = parent.children(recursive=True)
    return [child for child in children if str(files.run) in child.cmdline()]


def runs(process: psutil.Process) -> bool:
    """True if the process is there, and is more than a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
