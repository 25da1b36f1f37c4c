"""`nip-fn sweep --ray` on a real cluster of three nodes, whose parts are killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
import pytest

from nip_fn.run.events import JobCreated
from nip_fn_adapters.recording.runs import load_run
from nip_fn_cli.shown.exits import Exit

from ..adapters import clusters
from ..core.games import one_by_one
from ..lazily import needs
from .conftest import plain_environment

pytestmark = [needs("ray"), pytest.mark.xdist_group("ray"), pytest.mark.timeout(2400)]

Part = Literal["driver", "worker", "node"]
PARTS: tuple[Part, ...] = ("driver", "worker", "node")

BASE = """
[base]
dataset = "builtin:tea"
agents._default.model_provider = "dummy"
rl.num_iterations = 3
rl.rollouts_per_iteration = 60
malt.num_responses_per_timestep = 2
nip_protocol.max_message_rounds = 3
dataset_options.max_test_size = 20
"""
# Cells with the model that comes with the package, whose verifier is trained once in each.
EMBEDDED = """
[arms.tea]
dataset = "builtin:tea"
agents._default.model_provider = "local"
rl.num_iterations = 1
rl.rollouts_per_iteration = 8
malt.num_responses_per_timestep = 3
dataset_options.max_test_size = 8
agents.prover.freeze_agent = true
"""
DUMMIES = """
[arms.malt]

[arms.ei]
trainer = "ei"
ei.rollouts_per_iteration = 200
"""
MORE_DUMMIES = """
[arms.longer]
nip_protocol.max_message_rounds = 5
"""

# By this Python: the environment with Ray need not be the one that has the script `nip-fn`.
SWEEP = (sys.executable, "-c", "from nip_fn_cli.main import main; main()", "sweep", "s.toml")
NODE = {**clusters.NODE, "num_cpus": 1}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of three nodes, two of which have room for a cell."""
    with clusters.ray_cluster() as made:
        for _ in range(2):
            made.add_node(**NODE)
        yield made


class Running(NamedTuple):
    """A cell that runs: its name, the process of Ray that began it, and the node of that."""

    cell: str
    worker: psutil.Process
    node: Any


def running(cluster: Any) -> list[Running]:
    """The cells that run on the nodes of a cluster."""
    found = []
    for node in cluster.worker_nodes:
        with suppress(psutil.Error):
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            for process in raylet.children(recursive=True):
                words = process.cmdline()
                worker = process.parent()
                if "nip_fn_adapters.processes.reaper" in words and "--run" in words and worker:
                    found.append(Running(words[words.index("--run") + 1], worker, node))
    return found


class Swept:
    """The command `nip-fn sweep --ray`, which is started again whenever its driver is killed."""

    def __init__(self, folder: Path, cluster: Any) -> None:
        self._folder, self._cluster = folder, cluster
        self._driver = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        return sweep(self._folder, "--ray", self._cluster.address)

    def kill(self, part: Part, arm: str, growth: int, chance: random.Random) -> None:
        """Kill a part that works on a cell of an arm, once the recordings have grown so much."""
        least, hit = size(self._folder) + growth, False
        while not hit:
            assert self._driver.poll() is None, f"it ended before a {part} could be killed"
            time.sleep(0.05)
            cells = [one for one in running(self._cluster) if one.cell.startswith(arm)]
            if cells and size(self._folder) >= least:
                hit = self._kill(part, chance.choice(cells))

    def _kill(self, part: Part, victim: Running) -> bool:
        """True if it was alive until now."""
        match part:
            case "driver":
                self._driver.kill()
                alive = self._driver.wait() == -signal.SIGKILL
                self._driver = self._start()
                return alive
            case "worker":
                with suppress(psutil.NoSuchProcess):
                    victim.worker.kill()
                    return True
                return False
            case "node":
                # Without a farewell; another one joins.
                self._cluster.remove_node(victim.node, allow_graceful=False)
                self._cluster.add_node(**NODE)
                return True

    def end(self) -> None:
        ended(self._driver)


def sweep(folder: Path, *options: str) -> "subprocess.Popen[str]":
    """Start the command in a folder."""
    of_ray = {name: os.environ[name] for name in clusters.VARIABLES}
    return subprocess.Popen(
        (*SWEEP, *options),
        cwd=folder,
        env={**plain_environment(folder), **of_ray},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> None:
    told, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, told


def recordings(folder: Path) -> list[Path]:
    return sorted(folder.glob("studies/s/*/checkpoint.msgpack"))


def size(folder: Path) -> int:
    """The bytes of all recordings."""
    return sum(path.stat().st_size for path in recordings(folder))


def facts(folder: Path) -> dict[str, tuple[str, int, int]]:
    """(digest, replies, trainings) of each run; as many, if nothing was asked or trained twice."""
    found = {}
    for path in recordings(folder):
        run = load_run(path).unwrap()
        assert not run.faults
        assert run.state.stage.name == "done"
        events = run.recording.events
        jobs = sum(isinstance(event, JobCreated) for event in events)
        found[path.parent.name] = (run.digest, len(one_by_one(events)), jobs)
    return found


def check(
    tmp_path: Path, cluster: Any, study: str, kills: list[tuple[Part, str, int]]
) -> dict[str, tuple[str, int, int]]:
    """Every cell of a study that is killed ends as it does undisturbed, and asks nothing twice."""
    folders = [tmp_path / "quiet", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
        (folder / "s.toml").write_text(study)
    undisturbed = sweep(folders[0], "--jobs", "2")
    swept, chance = Swept(folders[1], cluster), random.Random(17)
    for part, arm, growth in kills:
        swept.kill(part, arm, chance.randrange(growth), chance)
    swept.end()
    ended(undisturbed)
    quiet, killed = map(facts, folders)
    assert quiet == killed
    return quiet


def test_cells_end_as_undisturbed_where_driver_worker_and_node_are_lost(
    tmp_path: Path, cluster: Any
) -> None:
    kills: list[tuple[Part, str, int]] = [(part, "", 20_000) for part in PARTS]
    assert len(check(tmp_path, cluster, f"{BASE}{DUMMIES}", kills)) == 2


@pytest.mark.exhaustive
def test_so_do_cells_with_models_and_eleven_are_killed(tmp_path: Path, cluster: Any) -> None:
    """Twelve cells without a model and four with one: of these a part is killed five times."""
    chance = random.Random(1)
    arms = [("tea", 5_000)] * 5 + [("", 50_000)] * 6
    parts = [*PARTS * 3, *chance.choices(PARTS, k=2)]
    chance.shuffle(parts)
    kills = [(part, *arm) for part, arm in zip(parts, arms, strict=True)]
    study = f"seeds = 4\n{BASE}{EMBEDDED}{DUMMIES}{MORE_DUMMIES}"
    found = check(tmp_path, cluster, study, kills)
    assert len(found) == 16
    assert [trainings for name, (_, _, trainings) in found.items() if "tea" in name] == [1] * 4


@pytest.mark.exhaustive
def test_cells_that_no_node_can_hold_are_told_and_stay_queued(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "s.toml").write_text(f"{BASE}{DUMMIES}\n[resources]\ncpus = 8\n")
    running = sweep(tmp_path, "--ray", cluster.address)
    told = []
    assert running.stdout is not None
    for line in running.stdout:
        told.append(line)
        if line.startswith("ei: queued"):
            running.send_signal(signal.SIGINT)
    assert running.wait() == Exit.INTERRUPTED, told
    assert "needs 8 CPUs, and the largest node of the Ray cluster has 1:" in "".join(told)
    assert not any("running" in line for line in told)
