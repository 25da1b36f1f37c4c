"""Agents that go on from an earlier run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .conftest import Finished, RunCli, call_cli

SMALL = (
    "--dataset", "builtin:tea",
    "--provider", "dummy", "--trainer", "ei", "--iterations", "2",
    "--set", "ei.rollouts_per_iteration=20", "--set", "dataset_options.max_test_size=4",
    "--set", "dummy.decision_rate=0.7",
)  # fmt: skip


def load(agent: str, **fields: object) -> tuple[str, ...]:
    given = {"load_checkpoint_and_parameters": "true", "checkpoint_run_id": "a", **fields}
    return tuple(
        part
        for name, value in given.items()
        for part in ("--set", f"agents.{agent}.{name}={value}")
    )


def facts(run_cli: RunCli, run: str) -> dict[str, Any]:
    replayed = run_cli("replay", f"runs/{run}", "--json")
    assert replayed.returncode == 0, replayed.stderr
    told: dict[str, Any] = json.loads(replayed.stdout)
    assert told["digests_match"]
    return told


def train(run_cli: RunCli, run: str, *options: str) -> Finished:
    return run_cli("train", *SMALL, "--run", run, *options)


def test_an_agent_goes_on_with_the_adapter_and_the_parameters_it_had(run_cli: RunCli) -> None:
    train(run_cli, "a", "--set", "agents.verifier.lora_rank=8")
    lineage = facts(run_cli, "a")["lineage"]["verifier"]
    assert len(lineage) == 2
    for version, first in (("latest", lineage[1]), ("0", lineage[0])):
        done = train(run_cli, f"b-{version}", *load("verifier", checkpoint_version=f"'{version}'"))
        assert done.returncode == 0, done.stderr
        told = facts(run_cli, f"b-{version}")
        assert told["lineage"]["verifier"][0] == first
        assert len(told["lineage"]["verifier"]) == 3
        assert told["iterations"][0]["test.verifier.serving"] == 1
        assert told["iterations"][0]["test.prover.serving"] == 0
    resumed = run_cli("train", "--resume", "--run", "b-0", "--set", "agents.verifier.lora_rank=8")
    assert resumed.returncode == 0
    other = run_cli("train", "--resume", "--run", "b-0", "--set", "agents.verifier.lora_rank=64")
    assert other.returncode == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run from which agents can be loaded."""
    home = tmp_path_factory.mktemp("trained")
    done = call_cli(home, "train", *SMALL, "--run", "a")
    assert done.returncode == 0, done.stderr
    return home / "runs/a"


@pytest.fixture
def earlier(trained: Path, tmp_path: Path) -> Path:
    """That run as `runs/a` of the test's own folder."""
    return Path(shutil.copytree(trained, tmp_path / "runs/a"))


@pytest.mark.usefixtures("earlier")
def test_a_frozen_agent_speaks_with_what_it_loaded(run_cli: RunCli) -> None:
    recorded = facts(run_cli, "a")["lineage"]["verifier"]
    done = train(run_cli, "b", *load("verifier", freeze_agent="true"))
    assert done.returncode == 0, done.stderr
    told = facts(run_cli, "b")
    assert told["lineage"]["verifier"] == recorded[-1:]
    assert all(row["test.verifier.serving"] == 1 for row in told["iterations"])


@pytest.mark.usefixtures("earlier")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (load("verifier", checkpoint_run_id="zzz"), ["checkpoint_run_id", "zzz"]),
        (load("verifier", checkpoint_version="'7'"), ["checkpoint_version", "0, 1, latest, base"]),
        (
            ("--set", "agents.verifier.load_checkpoint_and_parameters=true"),
            ["agents.verifier.checkpoint_run_id", "name the run"],
        ),
        (
            ("--set", "agents.verifier.checkpoint_run_id=a"),
            ["agents.verifier.checkpoint_run_id", "load_checkpoint_and_parameters"],
        ),
        (("--protocol", "debate", *load("prover0")), ["agents.prover0", "no such agent"]),
        (
            load("prover", checkpoint_agent="zzz"),
            ["agents.prover.checkpoint_agent", "no such agent"],
        ),
        (
            ("--set", "agents.prover.checkpoint_agent=verifier"),
            ["agents.prover.checkpoint_agent", "load_checkpoint_and_parameters"],
        ),
    ],
)
def test_what_cannot_be_loaded_stops_the_run_before_it_starts(
    options: tuple[str, ...], words: list[str], run_cli: RunCli, tmp_path: Path
) -> None:
    refused = train(run_cli, "b", *options)
    assert refused.returncode == (3 if "there is no such run" in refused.stderr else 2)
    assert refused.stderr.count("\n") == 1
    assert all(word in refused.stderr for word in words), refused.stderr
    assert not (tmp_path / "runs/b").exists()


@pytest.mark.usefixtures("earlier")
def test_an_agent_plays_another_part_and_the_base_model_its_own(run_cli: RunCli) -> None:
    recorded = facts(run_cli, "a")["lineage"]
    parts = (
        *load("prover0", checkpoint_agent="prover"),
        *load("prover1", checkpoint_agent="verifier"),
        *load("verifier", checkpoint_version="base"),
    )
    done = train(run_cli, "b", "--protocol", "debate", *parts, "--iterations", "0")
    assert done.returncode == 0, done.stderr
    assert facts(run_cli, "b")["lineage"] == {
        "prover0": recorded["prover"][-1:],
        "prover1": recorded["verifier"][-1:],
        "verifier": [],
    }


def test_without_training_agents_of_one_group_may_play_different_versions(
    run_cli: RunCli,
) -> None:
    shared = ("--set", "agents._default.shared_model_group=one")
    train(run_cli, "a", *shared)
    (lineage,) = facts(run_cli, "a")["lineage"].values()
    versions = (*load("verifier"), *load("prover", checkpoint_version="'0'"))
    refused = train(run_cli, "b", *versions)
    assert refused.returncode == 2
    assert "cannot load different adapters" in refused.stderr
    done = train(run_cli, "c", *versions, "--iterations", "0")
    assert done.returncode == 0, done.stderr
    assert facts(run_cli, "c")["lineage"] == {"verifier": lineage[1:], "prover": lineage[:1]}


@pytest.mark.xdist_group("trainings")  # whose worker has torch
@pytest.mark.usefixtures("forked")
def test_a_loaded_adapter_answers_though_its_run_is_gone(run_cli: RunCli, tmp_path: Path) -> None:
    """With the embedded model: the adapter is copied, served, scored and trained further."""
    small = (
        "--trainer", "ei", "--iterations", "1", "--set", "ei.rollouts_per_iteration=30",
        "--set", "dataset_options.max_test_size=4",
    )  # fmt: skip
    first = run_cli("train", *small, "--run", "a")
    assert first.returncode == 0, first.stderr
    (adapter,) = facts(run_cli, "a")["lineage"]["verifier"]
    loaded = run_cli("train", *small, "--run", "b", *load("verifier"))
    assert loaded.returncode == 0, loaded.stderr
    shutil.rmtree(tmp_path / "runs/a")
    told = facts(run_cli, "b")
    assert told["lineage"]["verifier"][0] == adapter
    assert len(told["lineage"]["verifier"]) == 2
    assert (tmp_path / "runs/b/adapters" / adapter / "adapter_model.safetensors").exists()
    more = run_cli("train", "--resume", "--run", "b", "--more-iterations", "1")
    assert more.returncode == 0, more.stderr
