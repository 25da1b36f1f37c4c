"""`nip-fn retest`: the models of every iteration, tested again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters import load_run
from nip_fn_adapters.recording.runs import Run

from .conftest import Finished, RunCli, call_cli
from .test_loading import SMALL, load


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `a` of two iterations, and `b`, which goes on from its verifier."""
    home = tmp_path_factory.mktemp("retested")
    whole = ("--set", "text_rl.test_scheme=all")
    first = call_cli(home, "train", *SMALL, *whole, "--run", "a")
    second = call_cli(home, "train", *SMALL, *whole, *load("verifier"), "--run", "b")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    return home


@pytest.fixture
def retest(home: Path, tmp_path: Path, run_cli: RunCli) -> RunCli:
    shutil.copytree(home / "runs", tmp_path / "runs")
    return lambda *options: run_cli("retest", *options)


def rows(finished: Finished) -> list[dict[str, Any]]:
    assert finished.returncode == 0, finished.stderr
    found: list[dict[str, Any]] = json.loads(finished.stdout)["tests"]
    return found


def models(run: Run, iteration: int) -> set[str]:
    """The models with which the verifier spoke in a test."""
    games = (game.rollout for game in run.rollouts("test", iteration))
    said = (one for game in games for turn in game.rounds for one in turn)
    return {one.model for one in said if run.protocol.is_verifier(one.agent)}


@pytest.mark.parametrize("name", ["a", "b"])
def test_each_iteration_plays_with_the_models_that_it_had(
    retest: RunCli, tmp_path: Path, name: str
) -> None:
    found = rows(retest(name, "--run", "again", "--json"))
    assert [one["iteration"] for one in found] == [0, 1, 2]
    trained = load_run(tmp_path / "runs" / name).unwrap()
    for one in found:
        number = one["iteration"]
        again = load_run(tmp_path / f"runs/again/iteration-{number}").unwrap()
        assert models(again, 0) == models(trained, number)
        assert one["gain"] is None if number == 0 else one["gain"] is not None
    # The same models on the same keys: the first test is the recorded one.
    assert found[0]["accuracy"] == found[0]["recorded_accuracy"]


def test_other_tests_than_those_of_the_run(retest: RunCli) -> None:
    options = ("--repeats", 3, "--split", "validation", "--limit", 5, "--run", "v")
    shown = retest("a", *options)
    assert "5 x 3" in shown.stdout
    assert "over iteration 0" in shown.stdout
    again = retest("a", *options)
    assert again.stdout == shown.stdout
    assert "all tests were played before" in again.stderr


def test_iterations_with_one_model_are_tested_once(retest: RunCli, tmp_path: Path) -> None:
    kept = retest("a", "--run", "k", "--json")
    assert len(list((tmp_path / "runs/k").iterdir())) == 3
    frozen = (*SMALL, "--set", "agents._default.freeze_agent=true", "--run", "f")
    assert call_cli(tmp_path, "train", *frozen).returncode == 0
    found = rows(retest("f", "--run", "g", "--json"))
    assert [path.name for path in (tmp_path / "runs/g").iterdir()] == ["iteration-0"]
    assert found[2]["accuracy"] == found[0]["accuracy"] == rows(kept)[0]["accuracy"]


@pytest.mark.parametrize(
    ("run", "words", "code"),
    [
        ("a@1", "a@1: all iterations are tested; write a", 2),
        ("nobody", "there is no such run", 3),
    ],
)
def test_what_cannot_be_tested_again_is_refused(
    retest: RunCli, run: str, words: str, code: int
) -> None:
    refused = retest(run)
    assert refused.returncode == code
    assert words in refused.stderr
