"""`nip-fn sweep` with a search: real cells without a model, Ray Tune's real algorithms."""

import fcntl
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nip_fn.config.search import Entry, Reported, Suggested, tried
from nip_fn_adapters.experiments.studies import tune
from nip_fn_adapters.experiments.studies.searching import SEARCH, read_search
from nip_fn_adapters.experiments.studies.tune import suggest
from nip_fn_adapters.recording.runs import load_run
from nip_fn_cli.studies import read_study

from ..adapters import clusters
from ..core.games import one_by_one
from .conftest import RunCli
from .test_sweep_ray import NODE, ended, facts, sweep

pytest.importorskip("ray.tune")

BASE = """
[base]
dataset = "builtin:tea"
agents._default.model_provider = "dummy"
agents.prover = { model_provider = "scripted", model_name = "silent" }
rl.num_iterations = 2
rl.rollouts_per_iteration = 8
malt.num_responses_per_timestep = 2
nip_protocol.max_message_rounds = 3
dataset_options.max_test_size = 20
text_rl.test_scheme = "all"
"""
# A cell that is not stopped would take many minutes.
SLOW = """
import time


def slow(protocol, datapoint, episode, agent, key):
    time.sleep(0.02)
    return "..."
"""
ARMS = """
[arms.good]

[arms.bad]
agents.prover.model_name = "slow.py:slow"
rl.num_iterations = 1000
dummy.decision_rate = 0.02

[search]
stop = "asha"
"""
TESTED = """
[tests.rare]
dummy.decision_rate = 0.2
"""
DRAWS = """
[random]
num = 3
dummy.decision_rate = { uniform = [0.0, 1.0] }

[search]
algorithm = "optuna"
"""


def written(folder: Path, text: str) -> Path:
    """The folder of a study that has this text."""
    (folder / "s.toml").write_text(BASE + text)
    (folder / "slow.py").write_text(SLOW)
    return folder / "studies/s"


def test_asha_stops_a_cell_that_falls_behind_and_it_replays(
    tmp_path: Path, run_cli: RunCli
) -> None:
    place = written(tmp_path, ARMS + TESTED)
    done = run_cli("sweep", "s.toml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["row"] for row in found["rows"]] == ["good"]
    (stop,) = found["search"]["stopped"]
    assert (stop["cell"], stop["iteration"]) == ("bad", 1)
    assert f"bad: stopped early  after iteration 1: test.accuracy {stop['value']:g}" in done.stderr
    # It is an ordinary run, whose models are not tested any further.
    bad = json.loads(run_cli("replay", place / "bad", "--json").stdout)
    assert bad["digests_match"]
    assert bad["iterations"][1]["test.accuracy"] == stop["value"]
    assert {path.name for path in place.iterdir() if path.is_dir()} == {
        *("good", "good-rare-base", "good-rare-latest", "bad")
    }
    log = (place / SEARCH).read_bytes()
    again = run_cli("sweep", "s.toml", "--json")
    assert json.loads(again.stdout) == found
    assert "6 cells, 3 of them done before, 1 stopped early" in again.stderr
    assert (place / SEARCH).read_bytes() == log
    # By another metric the same recordings are judged again.
    other = 'metric = "test.no_decision_rate"\nmode = "min"\n'
    written(tmp_path, f"{ARMS}{other}{TESTED}")
    (again_stopped,) = json.loads(run_cli("sweep", "s.toml", "--json").stdout)["search"]["stopped"]
    rate = bad["iterations"][1]["test.no_decision_rate"]
    assert again_stopped == {"cell": "bad", "iteration": 1, "value": rate}
    assert (place / SEARCH).read_bytes().startswith(log)


@pytest.mark.xdist_group("ray")
def test_so_it_does_on_a_cluster(tmp_path: Path, run_cli: RunCli) -> None:
    place = written(tmp_path, ARMS)
    with clusters.ray_cluster() as cluster:
        cluster.add_node(**NODE)
        ended(sweep(tmp_path, "--ray", cluster.address, "--jobs", "1"))
    stopped = [one.cell for one in read_search(place) if isinstance(one, Reported) and one.stop]
    assert stopped == ["bad"]
    bad = json.loads(run_cli("replay", place / "bad", "--json").stdout)
    assert bad["digests_match"]
    assert len(bad["iterations"]) < 1000


def follows(folder: Path) -> list[str]:
    """The lines of a log, each of which is derived from those above it again."""
    study = read_study(folder / "s.toml").unwrap()
    assert study.search is not None
    assert study.draws is not None
    above: list[Entry] = []
    for entry in read_search(folder / "studies/s"):
        if isinstance(entry, Suggested):
            number = int(entry.draw.removeprefix("draw-"))
            known = tried(study, above)
            assert entry.values == suggest(study.search, study.draws, number, known)
        above.append(entry)
    return [type(entry).__name__ for entry in above]


def check_kills(folder: Path, run_cli: RunCli, kills: int, start: Callable[[], Any]) -> None:
    """A search whose driver is killed so often loses nothing, and asks nothing twice."""
    draws = kills + 1
    place = written(folder, DRAWS.replace("num = 3", f"num = {draws}"))
    for kill in range(kills):
        driver = start()
        # Each in the middle of another cell.
        while driver.poll() is None and len(list(place.glob("*/metrics.jsonl"))) <= kill:
            time.sleep(0.01)
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
    ended(start())
    assert follows(folder) == ["Begun", *["Suggested", *["Reported"] * 3, "Ended"] * draws]
    known = facts(folder)
    for name, found in known.items():
        whole = run_cli("train", place / name / "given.json", "--run", name)
        assert whole.returncode == 0, whole.stderr
        plain = load_run(folder / "runs" / name).unwrap()
        replies = len(one_by_one(plain.recording.events))
        assert found[:2] == (plain.digest, replies)
    assert len(known) == draws


def test_a_search_whose_driver_is_killed_goes_on_with_the_same_draws(
    tmp_path: Path, run_cli: RunCli, start: Callable[..., Any]
) -> None:
    pytest.importorskip("optuna")
    check_kills(tmp_path, run_cli, 1, lambda: start("sweep", "s.toml"))


@pytest.mark.exhaustive
@pytest.mark.xdist_group("ray")
def test_so_it_does_where_the_cells_are_tasks_of_a_cluster(tmp_path: Path, run_cli: RunCli) -> None:
    pytest.importorskip("optuna")
    with clusters.ray_cluster() as cluster:
        cluster.add_node(**NODE)
        words = ("--ray", cluster.address, "--jobs", "1")
        check_kills(tmp_path, run_cli, 3, lambda: sweep(tmp_path, *words))


def test_a_metric_that_no_run_has_stops_the_study_after_a_cell(
    tmp_path: Path, run_cli: RunCli
) -> None:
    place = written(tmp_path, ARMS.replace("[search]", '[search]\nmetric = "test.acuracy"'))
    refused = run_cli("sweep", "s.toml")
    assert refused.returncode == 2
    assert "test.acuracy" in refused.stderr
    assert "did you mean 'test.accuracy'?" in refused.stderr
    again = run_cli("sweep", "s.toml")
    assert (again.returncode, "did you mean 'test.accuracy'?" in again.stderr) == (2, True)
    assert not (place / "bad").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("grace_period = 1000", "no cell has a test from grace_period = 1000 to its end"),
        ('text_rl.test_scheme="last"', "ask for more iterations, or for text_rl.test_scheme"),
    ],
)
def test_a_search_that_could_stop_nothing_is_refused(
    tmp_path: Path, run_cli: RunCli, change: str, told: str
) -> None:
    written(tmp_path, f"{ARMS}{change if 'grace' in change else ''}")
    sets = () if "grace" in change else ("--set", change)
    refused = run_cli("sweep", "s.toml", "--dry-run", *sets)
    assert refused.returncode == 2
    assert told in refused.stderr


def test_one_command_at_a_time_carries_a_search_on(tmp_path: Path, run_cli: RunCli) -> None:
    place = written(tmp_path, ARMS)
    place.mkdir(parents=True)
    with (place / SEARCH).open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        refused = run_cli("sweep", "s.toml")
    assert refused.returncode == 3
    assert "another command carries on this search" in refused.stderr


def test_a_forecast_of_a_search_writes_nothing(tmp_path: Path, run_cli: RunCli) -> None:
    pytest.importorskip("optuna")
    written(tmp_path, DRAWS)
    done = run_cli("sweep", "s.toml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[3:6]] == [
        *("draw-1", "draw-2", "draw-3")
    ]
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize("package", ["ray", "optuna"])
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr(tune, "find_spec", lambda name: None if name == package else name)
    written(tmp_path, DRAWS)
    refused = run_cli("sweep", "s.toml")
    assert refused.returncode == 2
    assert f"{package} is not installed; install it: pip install 'nip-fn[search]'" in refused.stderr
