"""A fake vLLM on two simulated nodes of a real Ray cluster, one of which is lost."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from nip_fn_adapters.processes.cluster import join_cluster
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.service import Service
from nip_fn_adapters.serving.settings import ServerSettings
from nip_fn_adapters.serving.training import TrainingSettings
from nip_fn_adapters.serving.wire import Needs, RestartPolicy
from nip_fn_cli.main import app
from nip_fn_cli.shown.exits import Exit

from ..lazily import needs
from . import clusters
from .fleets import Machine, online, refusal, until, until_status
from .serving import MODEL
from .training import make_job

pytestmark = needs("ray")

NODE = {**clusters.JOINED, "num_cpus": 1}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head has no room for anything."""
    import ray

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with clusters.ray_cluster(NODE) as made:
        yield made
        ray.shutdown()


async def test_a_replica_whose_node_is_lost_comes_back_on_another_at_its_address(
    cluster: Any, tmp_path: Path
) -> None:
    from nip_fn_adapters.serving.on_ray import RayCluster

    machine = Machine(tmp_path)
    settings = machine.settings(replicas=2, restarts=RestartPolicy(first_wait=0.01, most=1))
    first = cluster.add_node(**NODE)
    cluster.add_node(**NODE)
    join_cluster(cluster.address).unwrap()
    fleet = Fleet(settings, model_directory, RayCluster(settings, for_training=0))
    try:
        await online(fleet, Needs(MODEL))
        (await fleet.load("a", machine.adapter("a"))).unwrap()
        cluster.remove_node(first, allow_graceful=False)
        await until_status(fleet, "starting")
        cluster.add_node(**NODE)
        (await fleet.load("b", machine.adapter("b"))).unwrap()
        await until_status(fleet, "online")
        for place in range(2):
            assert await machine.served(place) == [MODEL, "a", "b"]
        restarts = [replica.restarts for replica in (await fleet.status()).replicas]
        assert sorted(restarts) == [0, 1]
    finally:
        await fleet.close()


def test_the_log_of_what_always_crashes_is_at_the_server_and_named(
    cluster: Any, tmp_path: Path
) -> None:
    from nip_fn_adapters.serving.on_ray import RayCluster

    machine = Machine(tmp_path)
    settings = machine.settings("--fake-fail-starts", "9", restarts=RestartPolicy(most=0))
    cluster.add_node(**NODE)
    join_cluster(cluster.address).unwrap()

    async def doing() -> str:
        fleet = Fleet(settings, model_directory, RayCluster(settings, for_training=0))
        try:
            (await fleet.start(Needs(MODEL), {})).unwrap()
            return str(refusal(await fleet.load("a", machine.adapter("a"))))
        finally:
            await fleet.close()

    reason = asyncio.run(doing())
    log = Path(reason.rpartition("; see ")[2])
    assert "ValueError: no memory is left" in reason
    assert "ValueError: no memory is left" in log.read_text()


async def test_vllm_and_trainings_take_turns_on_the_only_gpu(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is one in name; a training that waited for it would wait for ever."""
    from nip_fn_adapters.serving.on_ray import RayCluster, keeps_serving
    from nip_fn_adapters.serving.training_on_ray import trainers_on_ray

    machine = Machine(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    cluster.add_node(**{**NODE, "num_gpus": 1})
    join_cluster(cluster.address).unwrap()
    assert "--keep-serving" in str(keeps_serving(True, 1, 1).failure())
    keep_serving = keeps_serving(None, 1, 1).unwrap()

    async def train(folder: Path, name: str, started: Callable[[], None]) -> int:
        async with trainers_on_ray(TrainingSettings()) as trainers:
            await trainers[0].address.remote()
        JobFiles(folder, name).log.write_text("it had the GPU")
        return 1

    vllm = machine.settings()
    server = ServerSettings(tmp_path / "state", keep_serving=keep_serving)
    fleet = Fleet(vllm, model_directory, RayCluster(vllm, for_training=int(keep_serving)))
    service = Service(server, fleet, train)
    working = asyncio.create_task(service.queue.work())
    try:
        (await service.start(Needs(MODEL))).unwrap()
        await until_status(fleet, "online")
        job = msgspec.structs.replace(make_job(Path(MODEL)), model=MODEL)
        service.put_job("job", job).unwrap()
        await until(lambda: service.queue.info("job").status == "failed")
        assert "it had the GPU" in service.queue.info("job").reason
        await until_status(fleet, "online")
        assert len([*tmp_path.glob("*.jsonl")]) == 2  # starts, each at a port of its own
    finally:
        working.cancel()
        await service.close()


@pytest.mark.parametrize("address", ["127.0.0.2:1", "nowhere"])
def test_a_cluster_that_is_none_is_told(tmp_path: Path, address: str) -> None:
    options = ("--ray", address, "--state", str(tmp_path / "state"), "--port", "0")
    ended = CliRunner().invoke(app, ("serve", *options))
    assert ended.exit_code == Exit.SYSTEM
    assert f"no Ray cluster answers at {address}" in ended.stderr


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("num_machines: 2\nnum_processes: 3\n", "num_processes = 3 is no multiple of num_mach"),
        ("num_machines: many\n", "Expected `int`, got `str` - at `$.num_machines`"),
        ("[", "while parsing a flow node"),
    ],
)
def test_machines_that_make_no_sense_are_told(tmp_path: Path, config: str, why: str) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text(config)
    options = ("--ray", "auto", "--state", str(tmp_path / "state"), "--accelerate-config")
    ended = CliRunner().invoke(app, ("serve", *options, str(file), "--port", "0"))
    assert ended.exit_code == Exit.USAGE
    assert why in ended.stderr
    assert str(file) in ended.stderr
