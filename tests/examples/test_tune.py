"""The search of examples/tune.py: Ray Tune's real algorithms over real runs, and kills."""

import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nip_fn.config.codec import from_dict, merge, nest
from nip_fn.config.presets import with_preset
from nip_fn_adapters import load_run, train

from ..adapters import clusters
from ..core.games import one_by_one

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(2400),
]

SCRIPT = Path(__file__).parents[2] / "examples" / "tune.py"
NUM = 5
# Accuracy follows the decision rate: what decides seldom falls behind.
DRIVER = f"""
import runpy
from pathlib import Path
from ray import tune

search = runpy.run_path({str(SCRIPT)!r})["search"]
base = {{
    "dataset": "builtin:tea",
    "agents": {{"_default": {{"model_provider": "dummy"}}}},
    "rl": {{"num_iterations": 4, "rollouts_per_iteration": 20}},
    "text_rl": {{"test_scheme": "all"}},
    "dataset_options": {{"max_test_size": 60}},
}}
space = {{"dummy.decision_rate": tune.uniform(0.0, 1.0)}}
trials = search(base, space, Path("runs/tune"), num={NUM}, jobs=1)
assert not trials.errors, trials.errors[0]
assert len(trials) == {NUM}
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        (sys.executable, "-c", DRIVER),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("a"),
        text=True,
    )


def recorded(folder: Path) -> list[Path]:
    """The runs that have the results of a test."""
    return [path.parent for path in folder.glob("runs/tune/*/metrics.jsonl")]


def test_a_search_that_is_killed_goes_on_and_asks_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clusters.ray_cluster() as cluster:
        cluster.add_node(**{**clusters.NODE, "num_cpus": 1})
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        for kill in (1, 2):  # each in the middle of another trial
            driver = start(tmp_path)
            while driver.poll() is None and len(recorded(tmp_path)) < kill:
                time.sleep(0.05)
            driver.send_signal(signal.SIGKILL)
            assert driver.wait() == -signal.SIGKILL
        driver = start(tmp_path)
        assert driver.wait() == 0, (tmp_path / "stderr").read_text()[-2000:]
    runs = [load_run(folder).unwrap() for folder in recorded(tmp_path)]
    assert len(runs) == NUM
    assert all(not run.faults for run in runs)
    ends = [run.state.stage.name for run in runs]
    assert ends.count("done") < NUM  # ASHA has stopped some
    finished = runs[ends.index("done")]
    plain = train(finished.params, name="plain", runs=tmp_path).unwrap()
    assert finished.digest == plain.digest
    asked = [len(one_by_one(run.recording.events)) for run in (finished, plain)]
    assert asked[0] == asked[1]


def test_every_trial_of_the_default_search_is_a_configuration() -> None:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    table = script["BASE"]
    for address, domain in script["SPACE"].items():
        table = merge(table, nest(address, domain.sample()))
    assert 3e-5 <= from_dict(with_preset(table)).unwrap().rl.lr <= 3e-3
