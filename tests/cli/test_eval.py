"""`nip-fn eval`: the real command; what it computes is tested in tests/adapters."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Finished, RunCli

UNSEEDED = (
    "eval", "--provider", "dummy", "--set", "dataset_options.max_test_size=16",
    "--set", "nip_protocol.max_message_rounds=5",
)  # fmt: skip
EVAL = (*UNSEEDED, "--seed", "3")


def results(finished: Finished) -> list[dict[str, Any]]:
    assert finished.returncode == 0, finished.stderr
    tests: list[dict[str, Any]] = json.loads(finished.stdout)["tests"]
    return tests


def test_the_table_and_json_are_of_the_recorded_runs(run_cli: RunCli) -> None:
    printed = run_cli(*EVAL, "--run", "e", "--split", "test", "--repeats", 8)
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["nip", "solo_verifier"]
    assert "16 x 8" in lines[1]
    assert "To look closer: nip-fn show runs/e/nip" in lines
    again = run_cli(*EVAL, "--run", "e", "--split", "test", "--repeats", 8, "--json")
    assert "all tests were played before" in again.stderr
    nip, alone = results(again)
    for test in (nip, alone):
        replayed = run_cli("replay", f"runs/e/{test['protocol']}", "--json")
        (iteration,) = json.loads(replayed.stdout)["iterations"]
        for measure in ("accuracy", "balanced_accuracy"):
            ends = [iteration[f"test.{measure}{end}"] for end in ("", "_low", "_high")]
            assert list(test[measure].values()) == pytest.approx(ends, rel=1e-12)
        assert test["always_fails"]["value"] == pytest.approx(iteration["test.always_fail_share"])
    gained = nip["accuracy"]["value"] - alone["accuracy"]["value"]
    assert (alone["gain"], nip["gain"]["value"]) == (None, pytest.approx(gained))
    refused = run_cli(*EVAL, "--run", "e", "--limit", 5, "--protocol", "debate")
    assert (refused.returncode, "nip was tested there" in refused.stderr) == (2, True)


def test_seeds_of_an_evaluation_are_a_study_of_its_cases(run_cli: RunCli) -> None:
    several = run_cli(*UNSEEDED, "--seeds", "2,5", "--run", "both", "--json")
    assert several.returncode == 0, several.stderr
    study = json.loads(several.stdout)
    single = [
        {one["protocol"]: one for one in results(run_cli(*UNSEEDED, "--seed", seed, "--json"))}
        for seed in (2, 5)
    ]
    for row in study["rows"]:
        means = [tests[row["row"]]["accuracy"]["value"] for tests in single]
        assert row["accuracies"]["after"]["value"] == pytest.approx(sum(means) / 2)
    (over,) = study["over_baseline"]
    assert (over["row"], over["over"], over["runs"]) == ("nip", "solo_verifier", 2)
    gains = [tests["nip"]["gain"]["value"] for tests in single]
    assert over["value"] == pytest.approx(sum(gains) / 2)
    printed = run_cli(*UNSEEDED, "--seeds", "2,5", "--run", "both")
    assert "4 of them done before" in printed.stderr
    for words in ("accuracy [95 %]", "over solo_verifier", "runs to see 3 points"):
        assert words in printed.stdout
    refused = run_cli(*UNSEEDED, "--seeds", 2, "--seed", 1)
    assert (refused.returncode, "leave out --seeds" in refused.stderr) == (2, True)


def test_the_same_command_goes_on_and_plays_nothing_twice(
    run_cli: RunCli, start: Callable[..., Any], tmp_path: Path
) -> None:
    repeated = (*EVAL, "--repeats", 8, "--json")
    whole = run_cli(*repeated, "--run", "whole")
    folder = tmp_path / "runs" / "e"
    checkpoint = folder / "nip" / "checkpoint.msgpack"
    process = start(*repeated, "--run", "e")
    while process.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_size > 9999):
        time.sleep(0.01)  # however long the machine takes to begin
    process.send_signal(signal.SIGKILL)
    process.wait()
    recorded = checkpoint.read_bytes()
    assert results(run_cli(*repeated, "--run", "e")) == results(whole)
    kept = checkpoint.read_bytes()
    assert len(kept) >= len(recorded) > 0
    sizes = {path: path.stat().st_size for path in folder.rglob("checkpoint.msgpack")}
    assert results(run_cli(*repeated, "--run", "e")) == results(whole)
    assert sizes == {path: path.stat().st_size for path in folder.rglob("checkpoint.msgpack")}
