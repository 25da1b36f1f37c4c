"""`nip-fn sweep --ray` on a real cluster of three nodes, whose parts are killed."""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nip_fn.run.events import JobCreated, Replied
from nip_fn_adapters.runs import load_run

from .conftest import plain_environment
from .test_sweep import STUDY, digests

pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(1200)]

# Long enough to be killed in the middle.
LONGER = {
    "rl.num_iterations = 1": "rl.num_iterations = 3",
    "rl.rollouts_per_iteration = 20": "rl.rollouts_per_iteration = 60",
    "ei.rollouts_per_iteration = 20": "ei.rollouts_per_iteration = 200",
}
# By this Python: the environment with Ray need not be the one that has the script `nip-fn`.
DRIVER = (sys.executable, "-c", "from nip_fn_cli.main import main; main()", "sweep", "s.toml")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of three nodes with a processor each, on the loopback alone."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        # Otherwise Ray takes "127.0.0.1" for the address of a network card.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_TMPDIR", folder)
        from ray.cluster_utils import Cluster

        # No cell runs on the head, so that any node with cells may be removed.
        made = Cluster(
            initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False}
        )
        made.nodes_of_cells = [made.add_node(**NODE) for _ in range(2)]
        yield made
        made.shutdown()


NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}


def driver(folder: Path, cluster: Any, *options: str) -> "subprocess.Popen[str]":
    """The command on the cluster."""
    variables = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_TMPDIR")
    environment = {**plain_environment(folder), **{name: os.environ[name] for name in variables}}
    return subprocess.Popen(
        (*DRIVER, "--ray", cluster.address, *options),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def counts(place: Path) -> dict[str, tuple[int, int]]:
    """(replies, trainings) in each recording: as many, if nothing was asked or trained twice."""
    found = {}
    for path in place.glob("*/checkpoint.msgpack"):
        events = load_run(path).unwrap().recording.events
        kinds = [sum(isinstance(event, kind) for event in events) for kind in (Replied, JobCreated)]
        found[path.parent.name] = (kinds[0], kinds[1])
    return found


def size(place: Path) -> int:
    """The bytes of all recordings."""
    return sum(path.stat().st_size for path in place.glob("*/checkpoint.msgpack"))


def kill_driver(process: "subprocess.Popen[str]", cluster: Any) -> None:
    process.kill()
    process.wait()


def kill_worker(process: "subprocess.Popen[str]", cluster: Any) -> None:
    """Kill a worker of Ray that has started a cell."""
    below = psutil.Process().children(recursive=True)
    cells = [one for one in below if "nip_fn_adapters.serving.reaper" in cmdline(one)]
    workers = [parent for one in cells if (parent := one.parent()) is not None]
    if workers:
        random.choice(workers).kill()


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def remove_node(process: "subprocess.Popen[str]", cluster: Any) -> None:
    """Remove a node without a farewell, and let another one join."""
    node = cluster.nodes_of_cells.pop(0)
    cluster.remove_node(node, allow_graceful=False)
    cluster.nodes_of_cells.append(cluster.add_node(**NODE))


KILLS: dict[str, Callable[["subprocess.Popen[str]", Any], None]] = {
    "driver": kill_driver,
    "worker": kill_worker,
    "node": remove_node,
}


def swept(folder: Path, cluster: Any, kills: list[str], *options: str) -> str:
    """What the last command printed, of those that were needed beside these kills."""
    place = folder / "studies/s"
    process = driver(folder, cluster, *options)
    for kind in kills:
        before = size(place)
        while process.poll() is None and size(place) <= before + 20_000:
            time.sleep(0.05)
        KILLS[kind](process, cluster)
        if process.poll() is not None:
            process = driver(folder, cluster, *options)
    told, _ = process.communicate(timeout=900)
    assert process.returncode == 0, told
    return told


def written(folder: Path, seeds: int) -> Path:
    text = STUDY.replace("seeds = 2", f"seeds = {seeds}")
    for plain, longer in LONGER.items():
        text = text.replace(plain, longer)
    folder.mkdir()
    (folder / "s.toml").write_text(text)
    return folder


def check(tmp_path: Path, cluster: Any, seeds: int, kills: list[str]) -> None:
    """Every cell of a study that is killed ends as it does undisturbed, and asks nothing twice."""
    quiet, killed = (written(tmp_path / name, seeds) for name in ("quiet", "killed"))
    swept(killed, cluster, kills)
    options = ("--jobs", "2")
    done = subprocess.run((*DRIVER, *options), cwd=quiet, env=plain_environment(quiet), check=False)
    assert done.returncode == 0
    places = [folder / "studies/s" for folder in (quiet, killed)]
    assert len(digests(places[0])) == 2 * seeds
    assert digests(places[0]) == digests(places[1])
    assert counts(places[0]) == counts(places[1])


def test_cells_end_as_undisturbed_where_driver_worker_and_node_are_lost(
    tmp_path: Path, cluster: Any
) -> None:
    check(tmp_path, cluster, 2, ["worker", "node", "driver"])


@pytest.mark.exhaustive
def test_so_do_twelve_cells_and_ten_kills_at_random(tmp_path: Path, cluster: Any) -> None:
    chance = random.Random(17)
    kills = [*KILLS, *(chance.choice(list(KILLS)) for _ in range(8))]
    chance.shuffle(kills)
    check(tmp_path, cluster, 6, kills)
