"""`nip-fn attack`: its output, its options, and a kill; see tests/adapters for what is computed."""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters.recording.runs import load_run

from .conftest import Finished, RunCli, call_cli

SMALL = (
    "--dataset", "builtin:python",
    "--provider", "dummy", "--seed", "5", "--set", "dataset_options.max_test_size=10",
    "--set", "rl.rollouts_per_iteration=12", "--set", "dummy.decision_rate=0.6",
    "--set", "nip_protocol.max_message_rounds=3",
)  # fmt: skip
FEW = (
    "--datapoints", "8", "--games", "2", "--best-of", "4", "--starts", "1", "--iterations", "1",
    "--set", "rl.rollouts_per_iteration=12", "--strategies", "liar",
)  # fmt: skip


def report(finished: Finished) -> dict[str, Any]:
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two iterations."""
    home = tmp_path_factory.mktemp("trained")
    done = call_cli(home, "train", *SMALL, "--iterations", 2, "--run", "a")
    assert done.returncode == 0, done.stderr
    return home / "runs/a"


@pytest.fixture
def attacked(trained: Path, tmp_path: Path) -> Path:
    """That run as `runs/a` of the test's own folder."""
    return Path(shutil.copytree(trained, tmp_path / "runs/a"))


def test_the_same_command_goes_on_after_a_kill_and_plays_nothing_twice(
    attacked: Path, run_cli: RunCli, start: Callable[..., Any]
) -> None:
    whole = report(run_cli("attack", "a", *FEW, "--json", "--name", "whole"))
    process = start("attack", "a", *FEW, "--json", "--name", "killed")
    late = attacked / "attacks/killed/best-of-4/checkpoint.msgpack"
    while process.poll() is None and not (late.exists() and late.stat().st_size > 999):
        time.sleep(0.01)  # however long the machine takes to begin
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = report(run_cli("attack", "a", *FEW, "--json", "--name", "killed"))
    assert without_places(again) == without_places(whole)
    sizes = sizes_in(attacked / "attacks/killed")
    assert sorted(path.parent.name for path in sizes) == ["best-of-4", "liar", "own", "trained-0"]
    for path in sizes:
        uninterrupted = attacked / "attacks/whole" / path.parent.name
        assert load_run(path).unwrap().digest == load_run(uninterrupted).unwrap().digest
    assert report(run_cli("attack", "a", *FEW, "--json", "--name", "killed")) == again
    assert sizes_in(attacked / "attacks/killed") == sizes


def without_places(found: Any) -> Any:
    match found:
        case dict():
            return {
                k: without_places(v)
                for k, v in found.items()
                if k not in ("run", "runs", "attacks")
            }
        case list():
            return [without_places(one) for one in found]
    return found


def sizes_in(place: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in place.rglob("checkpoint.msgpack")}


def test_the_table_and_the_json_say_the_same(attacked: Path, run_cli: RunCli) -> None:
    dry = run_cli("attack", "a", *FEW, "--dry-run")
    names = ["own", "liar", "best-of-4", "trained-0"]
    assert [line.split()[0] for line in dry.stdout.splitlines()[3:]] == names, dry.stderr
    found = report(run_cli("attack", "a", *FEW, "--seeds", "2", "--json"))
    (place,) = (attacked / "attacks").iterdir()
    assert [found["run"], found["iteration"]] == ["runs/a", 2]
    assert attacked.parents[1] / found["attacks"] == place
    shown = run_cli("attack", "a", *FEW, "--seeds", "2").stdout
    titles, *lines = shown.splitlines()
    assert titles.split()[:2] == ["prover", "runs"]
    for line, prover in zip(lines, found["provers"], strict=False):
        assert line.startswith(prover["prover"])
        assert f"{prover['accepts_wrong']['value']:.1%} [" in line
    error = found["soundness_error"]
    worst = f"with the worst of {error['of']} provers: {error['prover']}"
    assert f"{error['value']:.1%} [{error['low']:.1%}, {error['high']:.1%}]" in shown
    assert worst in shown
    assert f"The worst case: {found['worst_case']['prover']}, datapoint " in shown
    assert f"nip-fn show {found['attacks']}/seed-1/own" in shown


@pytest.mark.usefixtures("attacked")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strategies", "lair"), ["--strategies", "did you mean 'liar'?"]),
        (("--best-of", "4,many"), ["--best-of", "1,4,16"]),
        (("--seeds", "2", "--seed", "1"), ["leave out --seeds"]),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    run_cli: RunCli, tmp_path: Path, options: tuple[str, ...], words: list[str]
) -> None:
    refused = run_cli("attack", "a", *options)
    assert refused.returncode == 2, refused.stdout
    assert all(word in refused.stderr.splitlines()[-1] for word in words), refused.stderr
    assert not (tmp_path / "runs/a/attacks").exists()


def test_the_best_reply_is_computed_and_printed(tmp_path: Path, run_cli: RunCli) -> None:
    scripts = {"verifier": "asks_1", "prover": "blind"}
    fields = [
        f"agents.{agent}.{field}={value}"
        for agent, script in scripts.items()
        for field, value in (("model_provider", "scripted"), ("model_name", script))
    ]
    sets = [word for field in fields for word in ("--set", field)]
    tea = ("--dataset", "builtin:tea", "--iterations", 0)
    done = run_cli("train", *tea, *sets, "--run", "scripts")
    assert done.returncode == 0, done.stderr
    computed = report(run_cli("attack", "scripts", "--exact", "--datapoints", 1, "--json"))
    assert computed["iterations"][0]["success"]["value"] == pytest.approx(0.5)
    shown = run_cli("attack", "scripts", "--exact", "--every-iteration", "--datapoints", 1)
    assert shown.returncode == 0, shown.stderr
    assert "50.0% to 50.0%" in shown.stdout
    assert "Question for Expert:" in shown.stdout
    other = run_cli("attack", "scripts", "--exact", "--iteration", 3)
    assert other.returncode != 0
    assert "no iteration 3" in other.stderr
    drawn = report(run_cli("attack", "scripts", "--exact", "--questions", 2, "--json"))
    assert (drawn["questions"], drawn["problems"]) == (2, 2)
    assert drawn["iterations"][0]["success"]["value"] == pytest.approx(0.5)
    for useless in (["--exact", "--strategies", "liar", "--dry-run"], ["--questions", 2]):
        refused = run_cli("attack", "scripts", *useless)
        assert refused.returncode == 2
        assert str(useless[-1 if "--exact" in useless else 0]) in refused.stderr


def test_show_prints_what_an_exact_attack_has_found(run_cli: RunCli) -> None:
    agents = ("verifier", "prover")
    scripts = [f"--set=agents.{agent}.model_provider=scripted" for agent in agents]
    names = ["--set=agents.verifier.model_name=asks_2", "--set=agents.prover.model_name=blind"]
    tea = ("--dataset", "builtin:tea", "--iterations", 1, *scripts, *names)
    trained = run_cli("train", *tea, "--run", "shown")
    assert trained.returncode == 0, trained.stderr
    computed = run_cli("attack", "shown", "--exact", "--every-iteration", "--datapoints", 1)
    assert computed.returncode == 0, computed.stderr
    (row,) = [
        line for line in run_cli("show", "shown").stdout.splitlines() if "the best reply" in line
    ]
    *_, before, after, optimum = row.split()
    assert float(before.rstrip("%")) == pytest.approx(30, abs=2)
    assert (after, optimum) == (before, "-")
