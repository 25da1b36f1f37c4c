"""A fake vLLM on two simulated nodes of a real Ray cluster, one of which is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_fn_adapters.cluster import join
from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.wire import Needs, RestartPolicy
from nip_fn_cli.exits import Exit
from nip_fn_cli.main import app

from . import clusters
from .fleets import Machine, online, until_status
from .serving import TINY

pytest.importorskip("ray")

NODE = {**clusters.JOINED, "num_cpus": 1}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head has no room for anything."""
    import ray

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with clusters.ray_cluster(NODE) as made:
        yield made
        ray.shutdown()


def test_a_replica_whose_node_is_lost_comes_back_on_another_at_its_address(
    cluster: Any, tmp_path: Path
) -> None:
    from nip_fn_adapters.serving.on_ray import RayCluster

    machine = Machine(tmp_path)
    settings = machine.settings(replicas=2, restarts=RestartPolicy(first_wait=0.01, most=1))
    first = cluster.add_node(**NODE)
    cluster.add_node(**NODE)
    join(cluster.address).unwrap()

    async def doing() -> None:
        fleet = Fleet(settings, model_directory, RayCluster(settings, for_training=0))
        try:
            await online(fleet, Needs(TINY))
            (await fleet.load("a", machine.adapter("a"))).unwrap()
            cluster.remove_node(first, allow_graceful=False)
            await until_status(fleet, "starting")
            cluster.add_node(**NODE)
            (await fleet.load("b", machine.adapter("b"))).unwrap()
            await until_status(fleet, "online")
            for place in range(2):
                assert await machine.served(place) == [TINY, "a", "b"]
            restarts = [replica.restarts for replica in (await fleet.status()).replicas]
            assert sorted(restarts) == [0, 1]
        finally:
            await fleet.close()

    asyncio.run(doing())


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
