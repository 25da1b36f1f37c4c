"""Evaluations from Python: what is tested, what is measured, and what is refused."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nip_fn.config.codec import merge
from nip_fn.config.study import ARM
from nip_fn.metrics.evaluation import accuracy, verdicts
from nip_fn_adapters import evaluate, evaluate_async
from nip_fn_adapters.experiments.evaluating import EvaluationReport, evaluation_study
from nip_fn_adapters.recording.store import CHECKPOINT

from ..registries import restored_registries

SETTINGS: dict[str, Any] = {
    "seed": 3,
    "dataset_options": {"max_test_size": 12},
    "nip_protocol": {"max_message_rounds": 5},
}
PROTOCOLS = ("debate", "solo_verifier", "nip")

evaluated = partial(evaluate, SETTINGS, provider="dummy")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, below which lie the runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with restored_registries():
        yield tmp_path


def accuracies(report: EvaluationReport) -> list[tuple[str, float]]:
    return [(row.protocol, row.measured.accuracy.value) for row in report.rows]


def sizes(report: EvaluationReport) -> dict[Path, int]:
    return {path: path.stat().st_size for path in report.folder.rglob(CHECKPOINT)}


# ----------------------------------------------------------------------------------- what is tested


def test_the_measures_are_those_of_the_recorded_runs(capfd: pytest.CaptureFixture[str]) -> None:
    report = evaluated(protocols=PROTOCOLS, repeats=8, name="e").unwrap()
    assert [row.protocol for row in report.rows] == [*PROTOCOLS]
    _, alone, _ = (row.measured for row in report.rows)
    for row in report.rows:
        measured, (stage,) = row.measured, row.measured.run.stages("test")
        assert measured.run.path == Path("runs/e") / row.protocol / CHECKPOINT
        assert measured.accuracy == accuracy(verdicts(stage.batch.datapoints, stage.batch.trees))
        metrics = dict(measured.run.state.rows[0].metrics)
        for name, estimate in (
            ("accuracy", measured.accuracy),
            ("balanced_accuracy", measured.balanced_accuracy),
        ):
            ends = [metrics[f"{name}{end}"] for end in ("", "_low", "_high")]
            assert estimate == pytest.approx(ends, rel=1e-12)
        assert measured.always_fails is not None
        assert measured.always_fails.value == pytest.approx(metrics["always_fail_share"])
        assert (measured.datapoints, measured.games) == (12, 8)
        if row.protocol == "solo_verifier":
            assert measured.gain is None
        else:
            assert measured.gain is not None
            gained = measured.accuracy.value - alone.accuracy.value
            assert measured.gain.value == pytest.approx(gained)
    assert capfd.readouterr() == ("", "")


def test_a_protocol_is_compared_with_the_verifier_alone_by_default() -> None:
    assert [row.protocol for row in evaluated().unwrap().rows] == ["nip", "solo_verifier"]


def test_an_evaluation_that_is_done_is_read_and_asks_no_model() -> None:
    first = evaluated(name="e").unwrap()
    before, lines = sizes(first), list[str]()
    second = evaluated(name="e", tell=lines.append).unwrap()
    assert accuracies(second) == accuracies(first)
    assert sizes(second) == before
    (line,) = (line for line in lines if "played before" in line)
    assert "no model was asked" in line


def test_evaluations_are_awaited_where_a_loop_is_running() -> None:
    async def main() -> list[EvaluationReport]:
        tables = [merge(SETTINGS, {"seed": seed}) for seed in (3, 4)]
        results = await asyncio.gather(*(evaluate_async(t, provider="dummy") for t in tables))
        inside = evaluated(name="inside")
        return [result.unwrap() for result in (*results, inside)]

    three, four, inside = asyncio.run(main())
    assert three.folder != four.folder
    assert accuracies(inside) == accuracies(three)


def test_models_are_compared_each_with_its_own_baseline() -> None:
    report = evaluated(models=("a/b", "c"), name="e").unwrap()
    assert [(row.protocol, row.models["verifier"]) for row in report.rows] == [
        ("nip", "a/b"),
        ("solo_verifier", "a/b"),
        ("nip", "c"),
        ("solo_verifier", "c"),
    ]
    assert [row.measured.gain is None for row in report.rows] == [False, True, False, True]


def test_a_weak_verifier_meets_a_strong_prover() -> None:
    strong = ("strong", "stronger")
    protocols = ("debate", "nip", "solo_verifier")
    report = evaluated(models=strong, verifier_model="weak", protocols=protocols).unwrap()
    assert [(row.protocol, row.models) for row in report.rows] == [
        ("debate", {"verifier": "weak", "prover0": "strong", "prover1": "strong"}),
        ("nip", {"verifier": "weak", "prover": "strong"}),
        ("solo_verifier", {"verifier": "weak"}),  # once, whoever the provers are
        ("debate", {"verifier": "weak", "prover0": "stronger", "prover1": "stronger"}),
        ("nip", {"verifier": "weak", "prover": "stronger"}),
    ]
    gains = [row.measured.gain for row in report.rows]
    assert [gain is None for gain in gains] == [False, False, True, False, False]
    (row,) = evaluated(prover_model="p", protocols=("nip",)).unwrap().rows
    assert row.models["prover"] == "p"
    assert row.models["verifier"] != "p"


def test_agents_that_a_protocol_does_not_have_are_not_used_by_it() -> None:
    models = {"prover0": {"model_name": "a"}, "prover1": {"model_name": "b"}}
    protocols = ("nip", "debate", "solo_verifier")
    settings = {**SETTINGS, "agents": models}
    nip, debate, _ = evaluate(settings, protocols=protocols, provider="dummy").unwrap().rows
    assert nip.models["prover"] == "a"  # the first one that the settings name
    assert (debate.models["prover0"], debate.models["prover1"]) == ("a", "b")
    unknown = {**SETTINGS, "agents": {"provr": {"model_name": "a"}}}
    refused = evaluate(unknown, protocols=protocols, provider="dummy").failure()
    assert "agents.provr" in str(refused)


def test_the_temperature_is_that_of_all() -> None:
    report = evaluated(temperature=0.3).unwrap()
    params = [row.measured.run.params for row in report.rows]
    assert [one.text_rl.test_temperature for one in params] == [0.3, 0.3]


# -------------------------------------------------------------------------------------- which rows


def test_another_split_and_other_data() -> None:
    settings = merge(SETTINGS, {"dataset": "builtin:python"})
    report = evaluate(settings, split="validation", provider="dummy").unwrap()
    assert [row.measured.datapoints for row in report.rows] == [12, 12]
    (row, _) = evaluated(split="train").unwrap().rows
    (stage,) = row.measured.run.stages("test")
    assert row.measured.run.params.test_dataset_split == "train"
    assert len(stage.batch.datapoints) == 12
    refused = evaluated(split="dev").failure()
    assert "there is no split 'dev'; choose one of all, train" in str(refused)


def rows_of(path: Path, *labels: int) -> Path:
    lines = (
        {"question": f"Add {n}.", "solution": f"def f(x): return x + {n}", "label": label}
        for n, label in enumerate(labels)
    )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_every_row_of_a_file_is_tested(home: Path) -> None:
    path = rows_of(home / "mine.jsonl", *[1, 0, 0, 0] * 5)
    of_file = partial(evaluate, {"dataset": str(path)}, provider="dummy")
    measured = [row.measured for row in of_file().unwrap().rows]
    assert [test.datapoints for test in measured] == [20, 20]
    assert all(test.majority_class_share == 0.75 for test in measured)
    drawn = []
    for seed in (1, 2):
        (row, _) = of_file(limit=5, shuffle=seed).unwrap().rows
        (stage,) = row.measured.run.stages("test")
        drawn.append({game.datapoint.id for game in stage.games()})
    assert len(drawn[0]) == len(drawn[1]) == 5
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("label", [0, 1])
def test_a_file_of_one_row_is_tested(home: Path, label: int) -> None:
    lines: list[str] = []
    settings = {"dataset": str(rows_of(home / "one.jsonl", label))}
    report = evaluate(settings, provider="dummy", tell=lines.append).unwrap()
    assert any(f"the only datapoint in 'test' has label {label}" in line for line in lines)
    for row in report.rows:
        assert (row.measured.datapoints, row.measured.run.faults) == (1, ())
        assert 0 <= row.measured.accuracy.low <= row.measured.accuracy.high <= 1


ALWAYS_REJECTS = """
def play(protocol, datapoint, episode, agent, key):
    return "Decision: reject"
"""


@pytest.mark.parametrize("dataset", ["python", "tea", "tea-public", "bug-hunt"])
def test_a_verifier_that_always_rejects_is_at_one_half(home: Path, dataset: str) -> None:
    (home / "player.py").write_text(ALWAYS_REJECTS)
    verifier = {"model_provider": "scripted", "model_name": "player.py:play"}
    settings = {"dataset": f"builtin:{dataset}", "agents": {"verifier": verifier}}
    ((_, _, test),) = evaluate(settings, protocols=("solo_verifier",)).unwrap().rows
    assert test.balanced_accuracy is not None
    assert test.balanced_accuracy.value == 0.5
    share = test.majority_class_share
    assert test.accuracy.value == pytest.approx(share) or share == pytest.approx(0.5, abs=0.03)
    assert test.datapoints >= 360


# --------------------------------------------------------------------------------- what is refused


def test_one_name_holds_tests_of_the_same_datapoints() -> None:
    mine = partial(evaluate, {"dataset": "builtin:tea"}, provider="dummy", name="mine")
    assert mine(protocols=("nip",), limit=4).unwrap()
    assert mine(protocols=("adp",), limit=4).unwrap()  # another game beside it
    refused = str(mine(protocols=("debate",), limit=5).failure())
    assert "runs/mine: adp was tested there with dataset_options.max_test_size = 4" in refused


def test_other_parameters_need_another_name() -> None:
    evaluated(name="e").unwrap()
    refused = evaluate(merge(SETTINGS, {"seed": 4}), provider="dummy", name="e").failure()
    assert "seed differs" in str(refused)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"models": ("a/b", "a:b")}, "same name"),
        ({"protocols": ("chess",)}, "chess"),
        ({"name": "../e"}, "cannot be a path"),
    ],
)
def test_what_cannot_be_tested_is_refused(arguments: dict[str, Any], words: str) -> None:
    problem = evaluated(**arguments).failure()
    assert (problem.kind, words in str(problem)) == ("usage", True)


# --------------------------------------------------------------------------------------- many seeds


def test_the_study_of_an_evaluation_compares_each_model_with_its_own_baseline() -> None:
    study = evaluation_study(SETTINGS, seeds=(2, 5), models=("a", "b"), provider="dummy").unwrap()
    assert study.compare.baseline == {"nip-a": "solo_verifier-a", "nip-b": "solo_verifier-b"}
    arms, seeds = study.axes
    assert (arms.name, len(arms.levels), len(seeds.levels)) == (ARM, 4, 2)
    assert study.name.endswith("-seeds")
