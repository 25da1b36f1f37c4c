"""Configurations as the *nip* library writes them: all convert, say what differs, and run."""

import json
from pathlib import Path

import pytest

from nip_fn.config.codec import from_dict, get, merge
from nip_fn.config.compat.nip import from_nip_config, nip_differences
from nip_fn_adapters import load_run

from ..nip_library import CONFIGURATIONS, SECTIONS, experiment
from .conftest import RunCli

# Of nobody's own models and data, and little of everything; all else is as it was saved.
LITTLE = (
    *("--provider", "dummy", "--dataset", "builtin:python", "--iterations", "1"),
    *("--set", "rl.rollouts_per_iteration=1", "--set", "dataset_options.max_test_size=2"),
    *("--set", "rl.num_test_iterations=1"),
)


def differences(name: str) -> str:
    return "\n".join(map(str, nip_differences(CONFIGURATIONS[name])))


def test_there_are_twenty_and_more() -> None:
    assert len(CONFIGURATIONS) >= 20


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_saved_configuration_runs(name: str, tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "c.json").write_text(json.dumps(CONFIGURATIONS[name]))
    done = run_cli("train", "c.json", *LITTLE)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("c.json: ")]
    assert lines == [f"c.json: {line}" for line in nip_differences(CONFIGURATIONS[name])]
    assert any("rl.num_iterations" in line or "rerun" in name for line in lines)


def test_what_is_left_out_is_as_in_that_library() -> None:
    bare = {key: CONFIGURATIONS["sections-none"][key] for key in ("scenario", "trainer", "dataset")}
    whole, sparse = (
        from_nip_config(one).bind(from_dict).unwrap() for one in (CONFIGURATIONS["defaults"], bare)
    )
    assert sparse == whole
    assert get(sparse, "rl.lr") == SECTIONS["rl"]["lr"]
    assert get(sparse, "rl.num_test_iterations") == 10
    assert get(sparse, "rl.rollouts_per_iteration") == 125  # 1000 rounds of dialogues of 8
    told = "\n".join(map(str, nip_differences(bare)))
    assert "rl.num_iterations = 1000" in told
    assert "rl.lr = 0.003" in told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test-data", ["dataset", "builtin:python"]),
        ("rerun-tests", ["base_run.base_run_type", "nip-fn eval --of RUN"]),
        ("from-parameters", ["none are fetched"]),
        ("random-prover", ["agents.prover.is_random", "script"]),
        ("frames-not-divisible", ["rl.frames_per_batch", "1000", "111"]),
        ("schedules-and-factors", ["update_schedule", "body_lr_factor", "orthogonal"]),
        ("script-debate", ["interaction_protocol", "paid"]),
        ("script-nip", ["8 iterations train 8 times", "value_backup=leaves", "batch size"]),
    ],
)
def test_each_difference_is_told(name: str, words: list[str]) -> None:
    told = differences(name)
    assert all(word in told for word in words), told


def test_factors_of_one_leave_the_rate_to_the_provider() -> None:
    """They are written for every agent, whether or not anybody set them."""
    params = from_nip_config(CONFIGURATIONS["script-nip"]).bind(from_dict).unwrap()
    assert all(agent.agent_lr_factor is None for agent in params.agents)
    named = from_nip_config(CONFIGURATIONS["schedules-and-factors"]).bind(from_dict).unwrap()
    assert get(named, "agents.prover.agent_lr_factor.actor") == 2.0
    assert get(named, "agents.verifier.body_lr_factor") is None


def test_a_random_agent_is_never_trained() -> None:
    params = from_nip_config(CONFIGURATIONS["random-prover"]).bind(from_dict).unwrap()
    assert params.agents[0].model_provider == "scripted"
    assert params.agents[1].model_provider == "OpenAI"


def test_tests_that_are_run_again_train_nothing() -> None:
    params = from_nip_config(CONFIGURATIONS["rerun-tests"]).bind(from_dict).unwrap()
    assert params.rl.num_iterations == 0
    assert params.text_rl.test_scheme == "all"


def test_what_has_no_meaning_here_is_still_refused() -> None:
    zero = experiment(protocol_common={"zero_knowledge": True})
    assert "zero_knowledge" in str(from_nip_config(zero).bind(from_dict).failure())
    tensors = merge(CONFIGURATIONS["defaults"], {"trainer": "spg"})
    assert "trainer" in str(from_nip_config(tensors).failure())


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
