"""Comparisons from Python, of runs of scripted players, whose accuracies are known."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters import compare, load_run, train


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs a side: an honest prover is believed, a random one is found out."""
    runs = tmp_path_factory.mktemp("tested")
    for prover in ("honest", "random"):
        for seed in (1, 2):
            settings = {
                "seed": seed,
                "dataset": "builtin:tea",
                "rl": {"num_iterations": 0},
                "text_rl": {"test_scheme": "all"},
                "dataset_options": {"max_test_size": 40},
                "agents": {"prover": scripted(prover), "verifier": scripted("asks_3")},
            }
            train(settings, name=f"{prover}-{seed}", runs=runs).unwrap()
    return runs


@pytest.fixture(autouse=True)
def runs(tested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those runs in the working directory."""
    shutil.copytree(tested, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)


def scripted(name: str) -> dict[str, str]:
    return {"model_provider": "scripted", "model_name": name}


def test_two_sides_are_compared_problem_by_problem() -> None:
    found = compare("random-1,random-2", "honest-*").unwrap()
    assert found.second.runs == ("honest-1", "honest-2")
    comparison = found.comparison
    assert (found.pair, comparison.datapoints, comparison.p) == ("seed", 40, None)
    assert comparison.difference.low > 0.1
    assert comparison.difference.value == pytest.approx(
        comparison.second.value - comparison.first.value
    )
    assert found.parameters == (("agents.prover.model_name", "random", "honest"),)


def test_sides_are_names_patterns_or_runs() -> None:
    random, honest = (load_run(f"{name}-1").unwrap() for name in ("random", "honest"))
    found = compare(random, honest).unwrap()
    assert (found.first.name, found.second.runs) == ("random-1", ("honest-1",))
    assert found.comparison.is_of_two_models
    assert found.comparison.difference.p < 0.001
    assert found == compare("random-1", ["honest-1"]).unwrap()
    assert compare([random, "random-2"], "honest-?").unwrap().pair == "seed"
    crossed = compare("random-1", "honest-2").unwrap()
    assert crossed.pair == "datapoint"
    assert [address for address, *_ in crossed.parameters] == ["agents.prover.model_name", "seed"]


@pytest.mark.parametrize(
    ("sides", "options", "kind", "words"),
    [
        (("honest-1", "nobody-*"), {}, "run", "no run has such a name"),
        (("honest-1", "nobody"), {}, "run", "no such run"),
        (("honest-1@7", "honest-1"), {}, "run", "its tests are of iterations 0"),
        (("honest-?", "random-1"), {"pair": "seed"}, "usage", "cannot be paired by seed"),
    ],
)
def test_a_side_that_is_not_there_is_named(
    sides: tuple[str, str], options: dict[str, Any], kind: str, words: str
) -> None:
    problem = compare(*sides, **options).failure()
    assert problem.kind == kind
    assert words in str(problem)
