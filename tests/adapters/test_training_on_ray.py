"""Real trainings on two simulated nodes of a real Ray cluster, one process on each of them."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from nip_fn_adapters.processes.cluster import join_cluster
from nip_fn_adapters.providers.local.jobs import (
    JobFiles,
    failure_reason,
    finished,
    read_job,
    write_job,
)
from nip_fn_adapters.serving.training import TrainingSettings, over_machines

from ..lazily import needs
from . import clusters
from .test_training_ends import runs, wait_until
from .test_training_job import Done, assert_the_same, do, halved
from .tiny_llama import make_tiny_llama
from .training import make_job, two_processes

pytestmark = [needs("ray"), pytest.mark.exhaustive, pytest.mark.xdist_group("trainings")]

NODE = {**clusters.JOINED, "num_cpus": 1}  # room for one process


def train_on_ray(*asked: Any) -> Any:
    """The function of that name, with which Ray is imported."""
    from nip_fn_adapters.serving.training_on_ray import train_on_ray

    return train_on_ray(*asked)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes, which this process has joined."""
    import ray

    with clusters.ray_cluster(NODE) as made:
        made.add_node(**NODE)
        made.add_node(**NODE)
        join_cluster(made.address).unwrap()
        yield made
        ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


def on_two_nodes(folder: Path, *, in_parts: bool = False) -> TrainingSettings:
    """Two processes on two machines."""
    settings = two_processes(folder, in_parts=in_parts)
    config = settings.accelerate_config
    assert config is not None
    config.write_text(config.read_text().replace("num_machines: 1", "num_machines: 2"))
    return over_machines(settings).unwrap()


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The training in one process."""
    return do(tmp_path_factory.mktemp("alone"), make_job(model), TrainingSettings(threads=1))


@pytest.mark.parametrize("in_parts", [False, True])
def test_two_nodes_train_as_one_process_does(
    cluster: Any, model: Path, alone: Done, tmp_path: Path, in_parts: bool
) -> None:
    """Each node with the whole model, or with a half of it (FSDP2)."""
    settings = on_two_nodes(tmp_path, in_parts=in_parts)
    shared = do(tmp_path, halved(model), settings, train_on_ray)
    assert (shared.code, shared.starts > 0) == (0, True)
    assert_the_same(alone, shared)
    assert ("it is trained in parts" in shared.files.log.read_text("utf-8")) == in_parts


@pytest.fixture
def long(model: Path, tmp_path: Path) -> JobFiles:
    """A training of hours, laid down under an id that no other process has in its arguments."""
    files = JobFiles(tmp_path, f"long-{os.getpid()}")
    write_job(files, replace(make_job(model), num_epochs=100_000))
    return files


def ranks(files: JobFiles) -> list[psutil.Process]:
    """The processes that train the job, on all nodes."""
    wanted = {files.name, "nip_fn_adapters.providers.local.train"}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if wanted <= set(process.cmdline()):
                found.append(process)
    return found


def train_until_started(
    files: JobFiles, settings: TrainingSettings, do: Callable[[list[psutil.Process]], None]
) -> int:
    """The exit code of a training to whose processes something is done once it has started."""
    done: list[bool] = []

    def started() -> None:
        if not done:
            done.append(True)
            do(ranks(files))

    return asyncio.run(train_on_ray(files.run, files.name, started, settings))


def test_one_process_that_is_killed_ends_all_with_its_reason(
    cluster: Any, long: JobFiles, tmp_path: Path
) -> None:
    seen: list[psutil.Process] = []

    def kill_one(found: list[psutil.Process]) -> None:
        seen.extend(found)
        found[-1].kill()

    code = train_until_started(long, on_two_nodes(tmp_path), kill_one)
    assert code != 0
    assert failure_reason(long, code).startswith("killed by SIGKILL")
    assert len(seen) == 2
    wait_until(lambda: not any(map(runs, seen)))
    assert finished(long, read_job(long)) is None


def test_what_is_cancelled_is_dead_on_all_nodes(
    cluster: Any, long: JobFiles, tmp_path: Path
) -> None:
    async def doing() -> list[psutil.Process]:
        begun = asyncio.Event()
        settings = on_two_nodes(tmp_path)
        training = asyncio.ensure_future(train_on_ray(long.run, long.name, begun.set, settings))
        await asyncio.wait_for(begun.wait(), 300)
        found = ranks(long)
        training.cancel()
        await asyncio.wait([training])
        assert training.cancelled()
        return found

    seen = asyncio.run(doing())
    assert len(seen) == 2
    wait_until(lambda: not any(map(runs, seen)))


def test_a_training_whose_node_is_lost_begins_anew_on_others(
    cluster: Any, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = JobFiles(tmp_path, f"short-{os.getpid()}")
    write_job(files, replace(make_job(model), num_epochs=40))

    def lose(found: list[psutil.Process]) -> None:
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        cluster.add_node(**NODE)

    assert train_until_started(files, on_two_nodes(tmp_path), lose) == 0
    assert finished(files, read_job(files)) is not None
    assert f"{files.name} has ended: its node was lost" in caplog.text
