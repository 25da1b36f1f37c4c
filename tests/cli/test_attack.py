"""`nip-fn attack`: the real command, on runs without a model and on scripts with known values."""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nip_fn.game.decision import ACCEPT
from nip_fn.metrics.exploits import share_by_datapoint
from nip_fn.metrics.inference import LEVEL
from nip_fn.metrics.stage import verdict
from nip_fn.protocols.strategies import STRATEGIES
from nip_fn.worlds.tea import blind_guess
from nip_fn_adapters.recording.runs import load_run

from .conftest import Finished, RunCli, call_cli

SMALL = (
    "--dataset", "builtin:tea",
    "--provider", "dummy", "--seed", "5", "--set", "dataset_options.max_test_size=10",
    "--set", "rl.rollouts_per_iteration=30", "--set", "dummy.decision_rate=0.6",
    "--set", "nip_protocol.max_message_rounds=3",
)  # fmt: skip
ATTACK = (
    "--datapoints", "12", "--games", "4", "--best-of", "1,4", "--starts", "2", "--iterations", "1",
    "--set", "rl.rollouts_per_iteration=60", "--strategies", "silent,liar,forger",
)  # fmt: skip
RUNS = ["own", "silent", "liar", "forger", "best-of-4", "trained-0", "trained-1"]


def report(finished: Finished) -> dict[str, Any]:
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def facts(run_cli: RunCli, folder: object) -> dict[str, Any]:
    replayed = run_cli("replay", folder, "--json")
    assert replayed.returncode == 0, replayed.stderr
    told: dict[str, Any] = json.loads(replayed.stdout)
    assert told["digests_match"]
    return told


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


def test_the_verifier_is_that_of_the_run_and_only_provers_change(
    attacked: Path, run_cli: RunCli
) -> None:
    lineage = facts(run_cli, attacked)["lineage"]
    found = report(run_cli("attack", "a", *ATTACK, "--name", "x", "--json"))
    place = attacked / "attacks/x"
    assert sorted(path.name for path in place.iterdir()) == sorted(RUNS)
    for name in RUNS:
        own = facts(run_cli, place / name)["lineage"]
        assert own["verifier"] == lineage["verifier"][-1:]
        start = lineage["prover"][-1:] if name in ("own", "best-of-4", "trained-0") else []
        assert own["prover"][: len(start)] == start
        assert len(own["prover"]) == len(start) + name.startswith("trained")
    assert [row["prover"] for row in found["provers"]] == [
        *("own", "silent", "liar", "forger", "own, best of 1", "own, best of 4"),
        *("trained from its own model", "trained from the base model"),
    ]


@pytest.mark.usefixtures("attacked")
def test_the_numbers_are_those_of_the_recorded_runs(run_cli: RunCli) -> None:
    found = report(run_cli("attack", "a", *ATTACK, "--json"))
    rows = {row["prover"]: row for row in found["provers"]}
    for name in ("own", "silent", "liar", "forger"):
        row = rows[name]
        (iteration,) = facts(run_cli, *row["runs"])["iterations"]
        # Right solutions are judged rightly where they are accepted; of wrong ones, those that were
        # never decided are neither.
        assert row["accepts_right"]["value"] == pytest.approx(iteration["test.accuracy_1"])
        share = iteration["test.acceptance_rate"]
        both = (row["accepts_right"]["value"] + row["accepts_wrong"]["value"]) / 2
        assert both == pytest.approx(share)
        assert (row["datapoints"], row["games"]) == (12, 4)
    for name in ("own, best of 4", "trained from the base model"):
        assert rows[name]["accepts_right"] is None
        assert rows[name]["datapoints"] == 6
    values = [row["accepts_wrong"]["value"] for row in rows.values()]
    error = found["soundness_error"]
    assert (error["value"], error["of"]) == (max(values), len(values))
    assert error["low"] <= error["value"] <= error["high"]
    assert error["high"] >= max(row["accepts_wrong"]["high"] for row in rows.values())
    assert found["completeness"] == rows["own"]["accepts_right"]
    worst = found["worst_case"]
    assert (worst["prover"], worst["label"]) == (error["prover"], "buggy")
    assert worst["rounds"][-1]["verifier"] == "Decision: accept"


def test_models_of_an_earlier_iteration_are_attacked(attacked: Path, run_cli: RunCli) -> None:
    lineage = facts(run_cli, attacked)["lineage"]["verifier"]
    few = ("--strategies", "liar", "--best-of", "0", "--starts", "0", "--datapoints", "4")
    for iteration, expected in ((0, []), (1, lineage[:1]), (2, lineage[1:])):
        options = (*few, "--iteration", iteration, "--name", f"i{iteration}", "--json")
        assert report(run_cli("attack", "runs/a", *options))["iteration"] == iteration
        told = facts(run_cli, attacked / f"attacks/i{iteration}/liar")
        assert told["lineage"]["verifier"] == expected


def test_the_same_command_goes_on_after_a_kill_and_plays_nothing_twice(
    attacked: Path, run_cli: RunCli, start: Callable[..., Any]
) -> None:
    few = (
        "--datapoints", "8", "--games", "2", "--best-of", "4", "--starts", "1", "--iterations", "1",
        "--set", "rl.rollouts_per_iteration=30", "--strategies", "liar", "--json",
    )  # fmt: skip
    whole = report(run_cli("attack", "a", *few, "--name", "whole"))
    process = start("attack", "a", *few, "--name", "killed")
    late = attacked / "attacks/killed/best-of-4/checkpoint.msgpack"
    while process.poll() is None and not (late.exists() and late.stat().st_size > 999):
        time.sleep(0.01)  # however long the machine takes to begin
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = report(run_cli("attack", "a", *few, "--name", "killed"))
    assert without_places(again) == without_places(whole)
    sizes = sizes_in(attacked / "attacks/killed")
    assert sorted(path.parent.name for path in sizes) == ["best-of-4", "liar", "own", "trained-0"]
    for path in sizes:
        kept = facts(run_cli, path)
        other = facts(run_cli, attacked / "attacks/whole" / path.parent.name)
        assert kept["digest"] == other["digest"]
    assert report(run_cli("attack", "a", *few, "--name", "killed")) == again
    assert sizes_in(attacked / "attacks/killed") == sizes


def test_seeds_are_as_many_attacks_and_one_table(attacked: Path, run_cli: RunCli) -> None:
    few = (
        "--datapoints", "8", "--games", "2", "--best-of", "4", "--starts", "2", "--iterations", "1",
        "--set", "rl.rollouts_per_iteration=30", "--strategies", "liar",
    )  # fmt: skip
    report(run_cli("attack", "a", *few, "--seeds", "1", "--json"))
    (place,) = (attacked / "attacks").iterdir()
    before = sizes_in(place)
    found = report(run_cli("attack", "a", *few, "--seeds", "2", "--json"))
    # Others are added, and what was played is not played again.
    after = sizes_in(place)
    assert {path: after[path] for path in before} == before
    assert len(after) == 2 * len(before) == 10
    tested = {path: load_run(path).unwrap() for path in after}
    assert len({run.params.seed for path, run in tested.items() if "trained" in str(path)}) == 4
    for seed in (1, 2):
        options = (*few, "--starts", "0", "--seed", seed, "--name", seed, "--json")
        single = report(run_cli("attack", "a", *options))
        for row, ours in zip(single["provers"], found["provers"][:3], strict=True):
            (own,) = row["runs"]
            whole = facts(run_cli, own)["digest"]
            assert facts(run_cli, ours["runs"][seed - 1])["digest"] == whole
    own = [run.stages("test")[-1] for path, run in tested.items() if path.parent.name == "own"]
    outcomes = [
        [
            (game.datapoint.id, float(verdict(game) == ACCEPT))
            for game in stage.games()
            if game.datapoint.label == 1
        ]
        for stage in own
    ]
    assert found["completeness"] == share_by_datapoint(outcomes, LEVEL)._asdict()  # type: ignore[union-attr]
    told = run_cli("attack", "a", *few, "--seeds", "2")
    assert told.stdout.splitlines()[0].split()[:2] == ["prover", "runs"]
    assert f"nip-fn show {place.relative_to(attacked.parents[1])}/seed-1/own" in told.stdout
    refused = run_cli("attack", "a", "--seeds", "2", "--seed", "1")
    assert (refused.returncode, "leave out --seeds" in refused.stderr) == (2, True)


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


def test_an_attack_is_not_continued_on_other_models(attacked: Path, run_cli: RunCli) -> None:
    few = ("--strategies", "liar", "--best-of", "0", "--starts", "0", "--datapoints", "4")
    for name in (("--name", "x"), ()):
        assert run_cli("attack", "a", *few, *name).returncode == 0
    longer = run_cli("train", "--resume", "--run", "a", "--more-iterations", 1)
    assert longer.returncode == 0, longer.stderr
    refused = run_cli("attack", "a", *few, "--name", "x")
    assert refused.returncode == 2
    assert "begun on other models" in refused.stderr.splitlines()[-1]
    assert run_cli("attack", "a", *few).returncode == 0
    assert len(list((attacked / "attacks").iterdir())) == 3


def test_a_forecast_plays_nothing(attacked: Path, run_cli: RunCli) -> None:
    told = run_cli("attack", "a", *ATTACK, "--dry-run")
    assert told.returncode == 0, told.stderr
    assert [line.split()[0] for line in told.stdout.splitlines()[3:]] == RUNS
    assert not (attacked / "attacks").exists()


def test_a_script_of_a_file_attacks_only_if_named(
    attacked: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another configuration of the same process has made it known.
    monkeypatch.setitem(STRATEGIES, "own.py:yes", lambda *played: "Decision: accept")
    told = run_cli("attack", "a", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "honest" in told.stdout
    assert "own.py" not in told.stdout


@pytest.mark.usefixtures("attacked")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strategies", "lair"), ["--strategies", "did you mean 'liar'?"]),
        (("--strategies", "none.py:x"), ["agents.prover.model_name", "there is no file none.py"]),
        (("--best-of", "4,many"), ["--best-of", "1,4,16"]),
        (("--games", "1"), ["--games", "2 or more"]),
        (("--trainer", "ppo"), ["--trainer", "malt or ei"]),
        (("--iteration", "3"), ["--iteration", "from 0 to 2"]),
        (("--set", "rl.num_iteration=1"), ["rl.num_iteration", "did you mean"]),
        (("--set", "agents.nobody.temperature=1"), ["agents.nobody", "prover, verifier"]),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    run_cli: RunCli, tmp_path: Path, options: tuple[str, ...], words: list[str]
) -> None:
    refused = run_cli("attack", "a", *options)
    assert refused.returncode == 2, refused.stdout
    assert all(word in refused.stderr.splitlines()[-1] for word in words), refused.stderr
    assert not (tmp_path / "runs/a/attacks").exists()


def test_a_run_without_a_prover_and_one_that_is_none_are_refused(run_cli: RunCli) -> None:
    options = ("--set", "dataset_options.max_test_size=4", "--provider", "dummy")
    assert run_cli("eval", "--protocol", "solo_verifier", *options, "--run", "e").returncode == 0
    refused = run_cli("attack", "runs/e/solo_verifier")
    assert refused.returncode == 2
    assert "nobody but the verifier speaks" in refused.stderr
    assert run_cli("attack", "nothing").returncode == 3


def test_debaters_attack_each_what_they_argue_against(run_cli: RunCli) -> None:
    options = ("--set", "debate_protocol.sequential=true", "--set",
               "debate_protocol.max_message_rounds=4")  # fmt: skip
    done = run_cli("eval", "--protocol", "debate", *options, *SMALL[:8], "--run", "e")
    assert done.returncode == 0, done.stderr
    found = report(run_cli("attack", "runs/e/debate", *ATTACK, "--json"))
    attacks = {(row["prover"], *row["agents"]): row["attacks"] for row in found["provers"]}
    assert attacks["own",] == ["wrong", "right"]
    assert attacks["liar", "prover0"] == attacks["own, best of 4", "prover0"] == ["right"]
    assert attacks["liar", "prover1"] == attacks["own, best of 4", "prover1"] == ["wrong"]
    under = found["completeness_under_attack"]
    assert under["low"] <= under["value"] <= found["completeness"]["value"]


# --------------------------------------------------------------------------------- known values

CAST = (
    "--set", "agents.prover.model_provider=scripted", "--set", "agents.prover.model_name=honest",
    "--set", "agents.verifier.model_provider=scripted", "--set",
    "nip_protocol.max_message_rounds=3", "--set", "dataset_options.max_test_size=4",
)  # fmt: skip


@pytest.mark.parametrize(
    ("dataset", "cups", "worst"),
    [("builtin:tea", 2, blind_guess(2)), ("builtin:tea-public", 4, 1.0)],
)
def test_fishers_bound_is_found_and_public_saucers_break_it(
    run_cli: RunCli, dataset: str, cups: int, worst: float
) -> None:
    """The verifier is a script that asks about so many cups: its soundness error is known."""
    script = (*CAST, "--set", f"agents.verifier.model_name=asks_{cups}", "--dataset", dataset)
    done = run_cli("eval", "--protocol", "nip", *script, "--run", "e")
    assert done.returncode == 0, done.stderr
    options = ("--strategies", "blind,saucers", "--datapoints", "60", "--games", "4")
    attack = run_cli("attack", "runs/e/nip", *options, "--json")
    found = report(attack)
    assert "follows a script" in attack.stderr
    assert found["completeness"]["value"] == 1.0
    error = found["soundness_error"]
    assert error["low"] <= worst <= error["high"]
    rows = {row["prover"]: row["accepts_wrong"] for row in found["provers"]}
    assert rows["blind"]["low"] <= blind_guess(cups) <= rows["blind"]["high"]
    assert "Poured: " in found["worst_case"]["views"]["verifier"]
    if worst == 1.0:
        assert rows["saucers"]["value"] == 1.0
        assert error["prover"] == "saucers"
