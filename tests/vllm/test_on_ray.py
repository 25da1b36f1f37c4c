"""The real vLLM on two simulated nodes of a Ray cluster, one of which is lost in the middle."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nip_fn.run.events import JobFinished, Published, Replied

from ..adapters import clusters
from ..adapters.fleets import free_ports
from ..adapters.serving import Server, ask
from .test_end_to_end import MODEL, SMALL, ended, events, options_of, replays, some, train, until

pytest.importorskip("ray")

NODE = {**clusters.NODE, "num_cpus": 2}  # for a vLLM and a training
LESS = ("--set", "dataset_options.max_test_size=8")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster without a node."""
    with clusters.ray_cluster() as made:
        yield made


def test_a_run_ends_although_a_node_is_lost(
    cluster: Any, command: tuple[str, ...], tmp_path: Path
) -> None:
    """Two groups; their adapters are at both replicas, whose addresses stay what they were."""
    first = cluster.add_node(**NODE)
    cluster.add_node(**NODE)
    port = free_ports(3)
    ports = ("--port", str(port), "--vllm-port", str(port + 1))
    on_ray = ("--ray", cluster.address, "--replicas", "2")
    with Server(tmp_path / "state", "--model", MODEL, *ports, *on_ray) as server:

        def restarts() -> int:
            replicas = server.ask("/vllm/status").json()["replicas"]
            return sum(replica["restarts"] for replica in replicas)

        how = ("--trainer", "malt", "--iterations", "1", *SMALL, *LESS, *options_of(port))
        running = train(tmp_path, *how)
        try:
            until(lambda: len(some(Replied, events(tmp_path))) > 20, "there are replies")
            cluster.remove_node(first, allow_graceful=False)
            until(restarts, "a replica was lost")
            cluster.add_node(**NODE)
            done = ended(running)
        finally:
            running.kill()
        assert done.returncode == 0, done.stderr + server.said
        assert "its node was lost" in server.said
        replays(tmp_path, done.stdout)
        published = {one.adapter for one in some(Published, events(tmp_path))}
        assert len(published) == len(some(JobFinished, events(tmp_path))) == 2
        until(lambda: server.ask("/vllm/status").json()["status"] == "online", "it is online")
        shown = {"Authorization": f"Bearer {server.ask('/vllm/status').json()['key']}"}
        for replica in (port + 1, port + 2):
            models = ask(f"http://127.0.0.1:{replica}/v1/models", headers=shown).json()["data"]
            assert {model["id"] for model in models} == {MODEL, *published}
