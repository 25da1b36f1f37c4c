"""`nip-fn card`: the real command; what it computes is tested in tests/adapters."""

import json

import pytest

from .conftest import SMALL, RunCli

FEW = ("--set", "dataset_options.max_test_size=6", "--repeats", 2)


def test_the_card_of_a_run_is_a_table_or_json(run_cli: RunCli) -> None:
    trained = run_cli("train", *SMALL, "--run", "a")
    assert trained.returncode == 0, trained.stderr
    options = ("--from", "a", "--against", "a@0", "--provider", "dummy", "--relabel", 1)
    printed = run_cli("card", *options, *FEW, "--run", "c")
    assert printed.returncode == 0, printed.stderr
    assert "Preference labels of verifier" in printed.stdout
    assert "To look closer: nip-fn show runs/c/nip-own" in printed.stdout
    again = run_cli("card", *options, *FEW, "--run", "c", "--json")
    assert "all tests were played before" in again.stderr
    card = json.loads(again.stdout)
    assert [row["provers"] for row in card["rows"] if row["protocol"] == "nip"] == [
        *("own", "greedy", "untrained", "silent", "random", "honest", "liar"),
        *("tastes_or_guesses", "answers_one", "others' messages", "a@0"),
    ]
    assert {"value", "low", "high"} == set(card["rows"][0]["accuracy"])
    assert set(card["labels"]) == {"prover", "verifier"}
    assert {"p_corrected", "detectable", "over"} < set(card["comparisons"][0])


def test_what_makes_no_card_is_refused_in_one_line(run_cli: RunCli) -> None:
    refused = run_cli("card", "--provider", "dummy", "--relabel", "3")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--relabel needs the run whose labels are looked at; name it as --from" in refused.stderr


@pytest.mark.xdist_group("trainings")  # whose worker has torch
def test_the_embedded_model_has_a_card(run_cli: RunCli) -> None:
    """On few datapoints: two tables of the width of a terminal, the notes, and the alarms."""
    done = run_cli("card", "--protocol", "nip", *FEW)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:20])) <= 120
    for name in ("own", "greedy", "silent", "honest", "liar", "message effect", "Brier score"):
        assert any(line.strip().startswith(name) for line in lines), name
