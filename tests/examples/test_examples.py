"""The examples run, and print what they promise."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nip_fn.config.hosting import is_hosted, is_trained, server_url
from nip_fn_adapters import train
from nip_fn_adapters.experiments.plans import plan
from nip_fn_adapters.experiments.settings import read_table
from nip_fn_adapters.providers.selfhosted.needs import needs_of
from nip_fn_adapters.serving.wire import Needs

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, cwd: Path | None = None) -> str:
    """What an example prints, in that working directory."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_of_code(name: str) -> int:
    """Its lines, without docstrings, comments and empty ones."""
    text = (EXAMPLES / name).read_text("utf-8")
    docstrings = [
        (node.body[0].lineno, node.body[0].end_lineno or 0)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node)
    ]
    return sum(
        bool(line.strip())
        and not line.strip().startswith("#")
        and not any(first <= number <= last for first, last in docstrings)
        for number, line in enumerate(text.splitlines(), start=1)
    )


def test_compose_plays_grows_selects_and_updates_in_40_lines() -> None:
    assert lines_of_code("compose.py") <= 40
    first, *pairs, last = run("compose.py").splitlines()
    assert "of 200 games of the toy policy are decided rightly" in first
    assert len(pairs) >= 4
    assert all(" rather than " in line for line in pairs)
    rows = ast.literal_eval(last)
    assert rows.keys() == {"prover", "verifier"}
    assert all(row.endswith(" DPO rows") for row in rows.values())


def test_two_agents_learn_in_a_script_of_a_hundred_lines() -> None:
    assert lines_of_code("loop.py") <= 100
    before, after, greedy = run("loop.py", "1", "2", "4").splitlines()
    assert re.fullmatch(r"before: \d+\.\d%", before)
    assert re.fullmatch(r"after iteration 0: \d+\.\d%", after)
    assert re.fullmatch(r"at temperature 0: \d+\.\d%", greedy)


@pytest.mark.exhaustive
def test_the_values_of_the_turns_add_up_to_the_gain(tmp_path: Path) -> None:
    settings = {
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 12},
        "dataset_options": {"max_test_size": 8},
    }
    trained = train(settings, name="small", runs=tmp_path).unwrap()
    lines = run("shares.py", str(trained.path.parent), "6").splitlines()
    shares = [float(line[-40:].split()[-1].rstrip("%")) for line in lines[:8]]
    values = [float(line.split("%")[0].split()[-1]) for line in lines[8:]]
    assert len(values) == 3
    assert sum(values) == pytest.approx(shares[-1] - shares[0], abs=0.3)


def test_experiments_are_carried_out_from_python_in_40_lines(tmp_path: Path) -> None:
    assert lines_of_code("from_python.py") <= 40
    trained, *rows, honest, attacked, page = run("from_python.py", cwd=tmp_path).splitlines()
    assert trained.startswith("<Run runs/trained: nip, malt, tea, done, iteration 1, ")
    assert [row.partition(":")[0] for row in rows][:3] == ["nip, own", "nip, greedy", "nip, silent"]
    assert re.fullmatch(r"an honest prover: \+\d+% \[\+\d+%, \+\d+%\] accuracy", honest)
    assert re.fullmatch(r"\w+: \d+% of wrong claims are accepted", attacked)
    assert (tmp_path / page).read_text("utf-8").startswith("<!doctype html>")


def test_a_protocol_of_ones_own_is_checked_grown_and_selected_from_in_50_lines() -> None:
    assert lines_of_code("own_protocol.py") <= 50
    lines = run("own_protocol.py").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["defender", "prosecutor", "verifier"]
    for line in lines:
        chosen, rejected = re.findall(r"'([^']*)'", line)
        assert chosen != rejected


def test_a_trainer_of_ones_own_is_40_lines() -> None:
    assert lines_of_code("own_trainer.py") <= 40


def test_the_settings_for_open_weights_are_a_run(tmp_path: Path) -> None:
    params = plan(read_table(EXAMPLES / "open_weights.toml").unwrap(), None, tmp_path).params
    assert all(is_hosted(agent) and is_trained(params, agent) for agent in params.agents)
    assert params.rl.lr == 1e-5
    (url,) = {server_url(agent) for agent in params.agents}
    assert needs_of(params, url) == Needs("Qwen/Qwen2.5-7B-Instruct", 16, max_loras=2)
