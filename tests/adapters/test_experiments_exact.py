"""Exact attacks from Python: runs of scripts with known values, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters import attack_exact, train

SCRIPTED: dict[str, Any] = {
    "dataset": "builtin:tea",
    "dataset_options": {"max_test_size": 20},
    "rl": {"num_iterations": 0},
    "text_rl": {"test_scheme": "all"},
    "nip_protocol": {"max_message_rounds": 3},
}


def run_of(verifier: str, runs: Path) -> Path:
    """The folder of a run between scripts that trains nothing."""
    names = {"verifier": verifier, "prover": "honest"}
    agents = {
        agent: {"model_provider": "scripted", "model_name": name} for agent, name in names.items()
    }
    settings = {**SCRIPTED, "agents": agents}
    return train(settings, name=verifier, runs=runs).unwrap().path.parent


def test_the_value_of_a_sound_verifier_is_fisher_s(tmp_path: Path) -> None:
    folder = run_of("asks_2", tmp_path)
    computed = attack_exact(folder, problems=2, tolerance=0.0).unwrap()
    (measured,) = computed.iterations
    assert computed.attacked == "wrong"
    assert measured.success == pytest.approx((0.3, 0.3, 0.3))
    assert (measured.least, measured.most) == pytest.approx((0.3, 0.3))
    assert measured.honest.value == pytest.approx(1.0)
    assert measured.value.value == pytest.approx(0.85)
    assert sum(measured.sorts.values()) == pytest.approx(1.0)
    written = json.loads(computed.file.read_text())
    assert computed.file.parent == folder / "attacks"
    assert written["iterations"][0]["success"] == list(measured.success)
    assert written["problems"] == 2


def test_whoever_believes_everything_is_misled_always(tmp_path: Path) -> None:
    (measured,) = attack_exact(run_of("believes", tmp_path), problems=1).unwrap().iterations
    assert measured.success.value == pytest.approx(1.0)
    assert measured.value.value == pytest.approx(0.5)


def test_a_provider_without_probabilities_is_refused_with_a_remedy(tmp_path: Path) -> None:
    run = train(SCRIPTED, provider="dummy", name="dummy", runs=tmp_path).unwrap()
    problem = attack_exact(run).failure()
    assert problem.address == "agents.verifier.model_provider"
    assert "without --exact" in problem.remedy


def test_an_iteration_that_there_is_not_is_refused(tmp_path: Path) -> None:
    problem = attack_exact(run_of("asks_1", tmp_path), iterations=(7,)).failure()
    assert "no iteration 7" in problem.problem
