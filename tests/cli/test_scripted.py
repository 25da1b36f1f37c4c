"""Scripted agents in runs: recorded, replayed and resumed like any other, and never trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from nip_fn_cli.shown.exits import Exit

from .conftest import SMALL, RunCli

OWN = """
def honest_or_not(protocol, datapoint, episode, agent, key):
    return f"Answer: {'yes' if datapoint.label else 'no'}, {key.hex()[:4]}"

def broken(protocol, datapoint, episode, agent, key):
    raise RuntimeError("no luck")

def numbers(protocol, datapoint, episode, agent, key):
    return 7
"""


def scripted(agent: str, strategy: str) -> tuple[str, ...]:
    return (
        "--set", f"agents.{agent}.model_provider=scripted",
        "--set", f"agents.{agent}.model_name={strategy}",
    )  # fmt: skip


def facts(run_cli: RunCli, run: str) -> dict[str, Any]:
    replayed = run_cli("replay", f"runs/{run}", "--json")
    assert replayed.returncode == 0, replayed.stderr
    told: dict[str, Any] = json.loads(replayed.stdout)
    assert told["digests_match"]
    return told


def said(run_cli: RunCli, run: str, agent: str) -> list[str]:
    """The agent's replies in the tests of a run."""
    tests = json.loads(run_cli("replay", f"runs/{run}", "--json").stdout)["iterations"]
    assert tests
    point = run_cli("replay", f"runs/{run}", "--transcript", "zzz").stderr
    name = point.rsplit(": ", 1)[1].split(",")[0].strip()
    games = json.loads(run_cli("replay", f"runs/{run}", "--transcript", name, "--json").stdout)
    return [turn[agent] for one in games for turn in one["rounds"] if agent in turn]


def test_a_scripted_prover_plays_beside_a_model_and_is_never_trained(run_cli: RunCli) -> None:
    code = ("--dataset", "builtin:python")
    done = run_cli("train", *SMALL, *code, "--run", "a", *scripted("prover", "honest"))
    assert done.returncode == 0, done.stderr
    told = facts(run_cli, "a")
    assert told["lineage"]["prover"] == []
    assert len(told["lineage"]["verifier"]) == 2
    last = told["iterations"][-1]
    assert last["test.prover.replies"] > 0
    assert last["test.prover.tokens"] == last["test.prover.prompt_tokens"] == 0
    assert set(said(run_cli, "a", "prover")) <= {
        "Answer: It is right, I am sure.",
        "Answer: It is wrong, I am sure.",
    }


def test_a_run_of_scripts_alone_is_tested_and_needs_no_model(run_cli: RunCli) -> None:
    cast = (*scripted("_default", "liar"), *scripted("verifier", "honest"))
    options = ("--split", "validation", "--seed", "3", "--set", "dataset_options.max_test_size=12")
    done = run_cli("eval", "--protocol", "nip", *options, *cast, "--json", "--run", "e")
    assert done.returncode == 0, done.stderr
    (nip,) = json.loads(done.stdout)["tests"]
    assert (nip["accuracy"]["value"], nip["tokens"], nip["dollars"]) == (1.0, 0.0, 0.0)
    again = run_cli("eval", "--protocol", "nip", *options, *cast, "--json", "--run", "e")
    assert again.stdout == done.stdout


def test_a_strategy_of_ones_own_is_recorded_with_its_source(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    done = run_cli("train", *SMALL, "--run", "a", *scripted("prover", "mine.py:honest_or_not"))
    assert done.returncode == 0, done.stderr
    facts(run_cli, "a")
    assert all(text.startswith("Answer: ") for text in said(run_cli, "a", "prover"))
    (tmp_path / "mine.py").write_text(OWN.replace("yes", "oh yes"))
    assert "its source has changed" in run_cli("replay", "runs/a").stderr
    going_on = (
        "train", *SMALL, "--run", "b", "--set", "agents.prover.checkpoint_run_id=a",
        "--set", "agents.prover.load_checkpoint_and_parameters=true",
    )  # fmt: skip
    assert run_cli(*going_on).returncode == Exit.MISMATCH
    loaded = run_cli(*going_on, "--trust")
    assert loaded.returncode == 0, loaded.stderr
    assert any("oh yes" in text or "no," in text for text in said(run_cli, "b", "prover"))


@pytest.mark.parametrize(
    ("strategy", "code", "words"),
    [
        ("lair", 2, ["agents.prover.model_name", "did you mean 'liar'?"]),
        ("mine.py:missing", 2, ["agents.prover.model_name", "it defines no missing"]),
        ("mine.py:broken", 9, ["mine.py:broken", "RuntimeError: no luck"]),
        ("mine.py:numbers", 9, ["mine.py:numbers", "the strategy fails"]),
    ],
)
def test_a_strategy_that_cannot_play_ends_the_command_in_one_line(
    run_cli: RunCli, tmp_path: Path, strategy: str, code: int, words: list[str]
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    refused = run_cli("train", *SMALL, "--run", "a", *scripted("prover", strategy))
    assert refused.returncode == code
    last = refused.stderr.splitlines()[-1]
    assert all(word in last for word in words), refused.stderr


@pytest.mark.parametrize("written", ["5", "mimic"])
def test_opponents_that_are_no_list_are_refused_in_one_line(run_cli: RunCli, written: str) -> None:
    refused = run_cli("train", *SMALL, "--set", f"agents.verifier.opponent_scripts={written}")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "agents.verifier.opponent_scripts: expected `array`" in line
