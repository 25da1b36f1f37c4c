"""Retests from Python: the models of every iteration, tested again."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nip_fn.config.codec import merge
from nip_fn_adapters import load_run, retest, train
from nip_fn_adapters.recording.runs import Run

SETTINGS: dict[str, Any] = {
    "trainer": "ei",
    "rl": {"num_iterations": 2},
    "ei": {"rollouts_per_iteration": 20},
    "dataset_options": {"max_test_size": 6},
    "dummy": {"decision_rate": 0.7},
    "text_rl": {"test_scheme": "all"},
}

trained = partial(train, provider="dummy")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `a` of two iterations, and `b`, which goes on from its verifier."""
    folder = tmp_path_factory.mktemp("retested") / "runs"
    trained(SETTINGS, name="a", runs=folder).unwrap()
    verifier = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "a"}
    trained(merge(SETTINGS, {"agents": {"verifier": verifier}}), name="b", runs=folder).unwrap()
    return folder


@pytest.fixture(autouse=True)
def _home(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def models(run: Run, iteration: int) -> set[str]:
    """The models with which the verifier spoke in a test."""
    games = (game.rollout for game in run.rollouts("test", iteration))
    utterances = (utterance for game in games for turn in game.rounds for utterance in turn)
    return {one.model for one in utterances if run.protocol.is_verifier(one.agent)}


@pytest.mark.parametrize("name", ["a", "b"])
def test_each_iteration_plays_with_the_models_that_it_had(name: str) -> None:
    report = retest(name, name="again").unwrap()
    run = load_run(name).unwrap()
    assert [row.iteration for row in report.rows] == [0, 1, 2]
    for row in report.rows:
        assert row.measured.run.path.parent == Path(f"runs/again/iteration-{row.iteration}")
        assert models(row.measured.run, 0) == models(run, row.iteration)
        assert (row.measured.gain is None) == (row.iteration == 0)
    # The same models on the same keys: the first test is the recorded one.
    assert report.rows[0].measured.accuracy == report.rows[0].recorded_accuracy


def test_a_retest_may_be_given_the_run_itself() -> None:
    by_name, by_run = (retest(run, limit=3).unwrap() for run in ("a", load_run("a").unwrap()))
    assert by_name.folder == by_run.folder


def test_other_tests_than_those_of_the_run() -> None:
    report = retest("a", repeats=3, split="validation", limit=5).unwrap()
    assert {(row.measured.datapoints, row.measured.games) for row in report.rows} == {(5, 3)}


def test_iterations_with_one_model_are_tested_once() -> None:
    frozen = merge(SETTINGS, {"agents": {"_default": {"freeze_agent": True}}})
    trained(frozen, name="f").unwrap()
    report = retest("f", name="g").unwrap()
    assert [path.name for path in report.folder.iterdir()] == ["iteration-0"]
    accuracies = {row.measured.accuracy for row in report.rows}
    assert accuracies == {retest("a").unwrap().rows[0].measured.accuracy}


@pytest.mark.parametrize(
    ("run", "words", "kind"),
    [
        ("a@1", "a@1: all iterations are tested; write a", "usage"),
        ("nobody", "there is no such run", "run"),
    ],
)
def test_what_cannot_be_tested_again_is_refused(run: str, words: str, kind: str) -> None:
    problem = retest(run).failure()
    assert (problem.kind, words in str(problem)) == (kind, True)
