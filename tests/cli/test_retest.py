"""`nip-fn retest`: the real command; what it computes is tested in tests/adapters."""

import json

from .conftest import SMALL, RunCli


def test_the_iterations_of_a_run_are_tested_again(run_cli: RunCli) -> None:
    trained = run_cli("train", *SMALL, "--set", "text_rl.test_scheme=all", "--run", "a")
    assert trained.returncode == 0, trained.stderr
    options = ("a", "--repeats", 3, "--split", "validation", "--limit", 5, "--run", "v")
    printed = run_cli("retest", *options)
    assert printed.returncode == 0, printed.stderr
    for words in ("recorded", "5 x 3", "over iteration 0", "nip-fn show runs/v/iteration-0"):
        assert words in printed.stdout
    again = run_cli("retest", *options, "--json")
    assert "all tests were played before" in again.stderr
    report = json.loads(again.stdout)
    assert report["runs"] == "runs/v"
    assert [row["iteration"] for row in report["tests"]] == [0, 1, 2]
    assert all(set(row["recorded_accuracy"]) == {"value", "low", "high"} for row in report["tests"])
    refused = run_cli("retest", "a@1")
    assert (refused.returncode, "write a" in refused.stderr) == (2, True)
