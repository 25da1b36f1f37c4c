"""A fake vLLM on two simulated nodes of a real Ray cluster, one of which is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.wire import Needs, RestartPolicy
from nip_fn_cli.exits import Exit
from nip_fn_cli.main import app

from .fleets import Machine, online, until_status
from .serving import TINY

pytest.importorskip("ray")

# Not 127.0.0.1, which Ray replaces by the machine's address in a network.
NODE = {"node_ip_address": "127.0.0.2", "num_cpus": 1}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head has no room for anything."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_replica_whose_node_is_lost_comes_back_on_another_at_its_address(
    cluster: Any, tmp_path: Path
) -> None:
    from nip_fn_adapters.serving.on_ray import RayCluster, connect

    machine = Machine(tmp_path)
    settings = machine.settings(replicas=2, restarts=RestartPolicy(first_wait=0.01, most=1))
    first = cluster.add_node(**NODE)
    cluster.add_node(**NODE)
    connect(cluster.address)

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
