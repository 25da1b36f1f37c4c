"""`nip-fn eval`: the real command."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Finished, RunCli

EVAL = (
    "eval", "--provider", "dummy", "--seed", "3", "--set", "dataset_options.max_test_size=40",
    "--set", "nip_protocol.max_message_rounds=5",
)  # fmt: skip


def results(finished: Finished) -> list[dict[str, Any]]:
    assert finished.returncode == 0, finished.stderr
    found: list[dict[str, Any]] = json.loads(finished.stdout)["tests"]
    return found


def test_a_protocol_is_compared_with_the_verifier_alone(run_cli: RunCli, tmp_path: Path) -> None:
    printed = run_cli(*EVAL, "--run", "e")
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["nip", "solo_verifier"]
    assert "40 x 1" in lines[1]
    assert sorted(path.name for path in (tmp_path / "runs" / "e").iterdir()) == [
        "nip",
        "solo_verifier",
    ]


def test_the_numbers_are_those_of_the_recorded_runs(run_cli: RunCli) -> None:
    protocols = ("--protocol", "debate", "--protocol", "solo_verifier", "--protocol", "nip")
    found = results(run_cli(*EVAL, *protocols, "--repeats", 8, "--run", "e", "--json"))
    assert [one["protocol"] for one in found] == ["debate", "solo_verifier", "nip"]
    solo = found[1]["accuracy"]["value"]
    for one in found:
        replayed = run_cli("replay", f"runs/e/{one['protocol']}", "--json")
        assert replayed.returncode == 0, replayed.stderr
        (iteration,) = json.loads(replayed.stdout)["iterations"]
        assert one["accuracy"]["value"] == pytest.approx(iteration["test.accuracy"])
        assert one["always_fails"]["value"] == pytest.approx(iteration["test.always_fail_share"])
        assert one["games"] == 8
        assert one["accuracy"]["low"] <= one["accuracy"]["value"] <= one["accuracy"]["high"]
        if one["protocol"] == "solo_verifier":
            assert one["gain"] is None
        else:
            assert one["gain"]["value"] == pytest.approx(one["accuracy"]["value"] - solo)


def test_models_are_compared_each_with_its_own_baseline(run_cli: RunCli) -> None:
    found = results(run_cli(*EVAL, "--model", "a/b", "--model", "c", "--run", "e", "--json"))
    assert [(one["model"], one["protocol"]) for one in found] == [
        ("a/b", "nip"),
        ("a/b", "solo_verifier"),
        ("c", "nip"),
        ("c", "solo_verifier"),
    ]


def test_another_split_and_other_data(run_cli: RunCli) -> None:
    options = ("--split", "validation", "--dataset", "builtin:python", "--json")
    found = results(run_cli(*EVAL, *options))
    assert all(one["datapoints"] == 40 for one in found)
    refused = run_cli(*EVAL, "--split", "train")
    assert refused.returncode == 2
    assert "test_dataset_split" in refused.stderr


def test_the_same_command_goes_on_and_plays_nothing_twice(
    run_cli: RunCli, start: Callable[..., Any], tmp_path: Path
) -> None:
    repeated = (*EVAL, "--repeats", 15, "--json")
    whole = run_cli(*repeated, "--run", "whole")
    place = tmp_path / "runs" / "e"
    checkpoint = place / "nip" / "checkpoint.msgpack"
    process = start(*repeated, "--run", "e")
    while process.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_size > 9999):
        time.sleep(0.01)  # however long the machine takes to begin
    process.send_signal(signal.SIGKILL)
    process.wait()
    recorded = checkpoint.read_bytes()
    assert results(run_cli(*repeated, "--run", "e")) == results(whole)
    kept = checkpoint.read_bytes()
    assert len(kept) >= len(recorded) > 0
    sizes = {path: path.stat().st_size for path in place.rglob("checkpoint.msgpack")}
    assert results(run_cli(*repeated, "--run", "e")) == results(whole)
    assert sizes == {path: path.stat().st_size for path in place.rglob("checkpoint.msgpack")}


def test_other_parameters_need_another_name(run_cli: RunCli) -> None:
    results(run_cli(*EVAL, "--run", "e", "--json"))
    refused = run_cli(*EVAL, "--run", "e", "--seed", 4)
    assert refused.returncode == 2
    assert "seed differs" in refused.stderr


def test_names_that_cannot_be_told_apart_are_refused(run_cli: RunCli) -> None:
    refused = run_cli(*EVAL, "--model", "a/b", "--model", "a:b")
    assert refused.returncode == 2
    assert "same name" in refused.stderr
    unknown = run_cli(*EVAL, "--protocol", "chess")
    assert unknown.returncode == 2
    assert "chess" in unknown.stderr
