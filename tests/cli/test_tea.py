"""The lady's tea with its own model: what an honest start is, and that the words matter."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters import load_run

from .conftest import RunCli

GAMES = 120
TEST_ONLY = (
    "--set=rl.num_iterations=0",
    "--set=text_rl.test_scheme=all",
    f"--set=dataset_options.max_test_size={GAMES}",
)


def metrics_of(run_cli: RunCli, tmp_path: Path, *options: str) -> dict[str, Any]:
    """The metrics of one test of the model that comes with the package."""
    run_cli("train", f"--runs={tmp_path}", "--run=test", *TEST_ONLY, *options)
    (row,) = load_run(tmp_path / "test").unwrap().state.rows
    return dict(row.metrics)


@pytest.mark.parametrize(
    ("model", "temperature"),
    [
        ("builtin:tea", 0),
        ("builtin:tea", 1),
        # At temperature 0 it judges 67.5 % of 120 games rightly: its last stage left it careful.
        pytest.param("builtin:tea@3", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_the_untrained_model_judges_no_better_than_a_coin(
    run_cli: RunCli, tmp_path: Path, model: str, temperature: int
) -> None:
    """Greedy play, too: a training that only sharpens must not look like one that teaches."""
    metrics = metrics_of(
        run_cli,
        tmp_path,
        f"--set=agents._default.model_name={model}",
        f"--set=text_rl.test_temperature={temperature}",
    )
    # 0.5 and three standard errors of 120 games.
    assert metrics["accuracy"] < 0.5 + 3 * (0.25 / GAMES) ** 0.5
    assert metrics["no_decision_rate"] < 0.05


def test_the_untrained_verifier_listens(run_cli: RunCli, tmp_path: Path) -> None:
    """It accepts right answers more often than wrong ones, or there were nothing to learn from."""
    metrics = metrics_of(run_cli, tmp_path)
    assert metrics["tea.accepts.right"] > metrics["tea.accepts.wrong"]


def test_a_verifier_that_checks_needs_its_prover(run_cli: RunCli, tmp_path: Path) -> None:
    """Scripts stand for trained players: honest words are worth 0.95, silence a coin."""
    found = {}
    for prover in ("honest", "silent"):
        scripts = (
            "--set=agents.verifier.model_provider=scripted",
            "--set=agents.prover.model_provider=scripted",
            "--set=agents.verifier.model_name=asks_4",
            f"--set=agents.prover.model_name={prover}",
        )
        folder = tmp_path / prover
        found[prover] = metrics_of(run_cli, folder, *scripts)
    assert found["honest"]["accuracy_1"] == 1.0
    assert found["honest"]["accuracy"] > 0.9
    assert found["silent"]["accuracy"] == 0.5
    assert found["honest"]["tea.fisher"] == pytest.approx(0.1)


def test_training_tells_what_it_taught_beside_the_theory(run_cli: RunCli, tmp_path: Path) -> None:
    """The table and the dialogues at the end; the table in `show` and in the report, too."""
    out = run_cli(
        "train",
        f"--runs={tmp_path}",
        "--run=short",
        "--provider=dummy",
        "--iterations=1",
        "--set=rl.rollouts_per_iteration=4",
        "--set=dataset_options.max_test_size=40",
    ).stdout
    assert "optimum" in out
    assert "97.5%" in out  # of the accuracy
    assert "soundness error: accepted where she cannot" in out
    assert "The same problem before and after; the claim is false." in out
    assert "Poured: " in out
    assert "prover: " in out
    replayed = run_cli("replay", str(tmp_path / "short"), "--json").stdout
    assert json.loads(replayed)["digests_match"]
    # The same table whenever it is asked for.
    table = improvements_in(out)
    assert len(table) == 12
    folder = tmp_path / "short"
    assert improvements_in(run_cli("show", str(folder)).stdout) == table
    run_cli("report", str(folder))
    page = unescape((folder / "report.html").read_text("utf-8"))
    for line in table[1:]:
        name, *cells = re.split("  +", line.strip())
        values = "".join(f"<td class=r>{cell}" for cell in cells)
        assert f"{name}{values}" in page


def improvements_in(output: str) -> list[str]:
    """The lines of the table, its titles first."""
    lines = output.splitlines()
    start = next(
        i for i, line in enumerate(lines) if line.split() == ["before", "after", "optimum"]
    )
    return lines[start : lines.index("", start)]
