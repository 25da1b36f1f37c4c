"""Configurations as the *nip* library writes them: all convert, say what differs, and run."""

import json
from pathlib import Path

import pytest

from nip_fn.config.compat.nip import nip_differences
from nip_fn_adapters import load_run

from ..nip_library import CONFIGURATIONS
from .conftest import RunCli

# Of nobody's own models and data, and little of everything; all else is as it was saved.
LITTLE = (
    *("--provider", "dummy", "--dataset", "builtin:python", "--iterations", "1"),
    *("--set", "rl.rollouts_per_iteration=1", "--set", "dataset_options.max_test_size=2"),
    *("--set", "rl.num_test_iterations=1"),
)


@pytest.mark.parametrize("name", ["script-nip", "script-mnip", "rerun-tests", "sections-none"])
def test_a_saved_configuration_runs(name: str, tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "c.json").write_text(json.dumps(CONFIGURATIONS[name]))
    done = run_cli("train", "c.json", *LITTLE)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("c.json: ")]
    assert lines == [f"c.json: {line}" for line in nip_differences(CONFIGURATIONS[name])]


GRID = """
kind: grid
parameters:
  trainer: pure_text_ei
  num_iterations: 1
  rollouts_per_iteration: 2
  learning_rate: 1e-6  # a word in YAML 1.1
  test_scheme: all
  max_test_size: 2
  seed: [1, 2]
  verifier:
    decision_spectrum: [accept_reject, out_of_100]
"""


def test_a_grid_of_experiments_is_swept(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(GRID)
    little = ("--provider", "dummy", "--set", "dataset=builtin:python", "--jobs", 2)
    done = run_cli("sweep", "g.yaml", *little, "--json")
    assert done.returncode == 0, done.stderr
    assert "g.yaml: rl.num_iterations: 1 iterations train 1 times" in done.stderr
    rows = {row["row"]: row["runs"] for row in json.loads(done.stdout)["rows"]}
    assert rows == {"decision_spectrum-accept_reject": 2, "decision_spectrum-out_of_100": 2}
    params = load_run(tmp_path / "studies/g/decision_spectrum-out_of_100-seed-2").unwrap().params
    assert (params.seed, params.rl.lr) == (2, 1e-6)
    assert params.protocol_common.verifier_decision_spectrum == "out_of_100"


def test_a_single_experiment_is_a_configuration_and_a_grid_is_none(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "g.yaml").write_text(GRID)
    refused = run_cli("train", "g.yaml", *LITTLE)
    assert refused.returncode == 2
    assert "g.yaml: parameters.seed: it has several values; use nip-fn sweep" in refused.stderr
    one = GRID.replace("[1, 2]", "2").replace("[accept_reject, out_of_100]", "out_of_100")
    (tmp_path / "e.yml").write_text(one.replace("grid", "single_experiment"))
    done = run_cli("train", "e.yml", *LITTLE, "--run", "e")
    assert done.returncode == 0, done.stderr
    assert load_run(tmp_path / "runs/e").unwrap().params.seed == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [", "not valid YAML: while parsing"),
        ("1: 2", "expected a table of parameters"),
        ("kind: !!python/object:os.system {}", "not valid YAML: could not determine a constructor"),
    ],
)
def test_bad_yaml_is_told_in_one_line(
    run_cli: RunCli, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "g.yaml").write_text(text)
    refused = run_cli("sweep", "g.yaml")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"nip-fn: g.yaml: {words}")
    assert len(refused.stderr.splitlines()) == 1
