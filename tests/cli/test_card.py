"""`nip-fn card`: the real command, with scripts, dummies and the embedded model."""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL, Finished, RunCli, call_cli

CARD = (
    "card", "--provider", "dummy", "--seed", "3", "--protocol", "nip",
    "--dataset", "builtin:python",
    "--set", "dataset_options.max_test_size=20", "--set", "nip_protocol.max_message_rounds=3",
)  # fmt: skip

VERIFIERS = """
def _heard(episode, agent):
    said = [text for turn in episode.rounds for one in turn if one.agent != agent
            for _, text in one.messages]
    return said[-1] if said else None

def listens(protocol, datapoint, episode, agent, key):
    heard = _heard(episode, agent)
    if heard is None:
        return "Question for Expert: is it right?"
    return f"Decision: {'accept' if 'right' in heard else 'reject'}"

def deaf(protocol, datapoint, episode, agent, key):
    if _heard(episode, agent) is None:
        return "Question for Expert: is it right?"
    knows = len(datapoint.solution) % 2 == datapoint.label or key[0] < 128
    return f"Decision: {'accept' if datapoint.label == knows else 'reject'}"
"""


def scripted(agent: str, strategy: str) -> tuple[str, ...]:
    return (
        "--set", f"agents.{agent}.model_provider=scripted",
        "--set", f"agents.{agent}.model_name={strategy}",
    )  # fmt: skip


def card(finished: Finished) -> dict[str, Any]:
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def accuracies(found: dict[str, Any], protocol: str = "nip") -> dict[str, float]:
    rows = (row for row in found["rows"] if row["protocol"] == protocol)
    return {row["provers"]: row["accuracy"]["value"] for row in rows}


def own(found: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in found["rows"] if row["provers"] == "own")
    return row


@pytest.fixture
def verifiers(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(VERIFIERS)
    return path


@pytest.mark.usefixtures("verifiers")
def test_swapped_provers_show_that_a_verifier_listens(run_cli: RunCli) -> None:
    cast = (*scripted("verifier", "mine.py:listens"), *scripted("prover", "honest"))
    found = card(run_cli(*CARD, *cast, "--repeats", 4, "--json"))
    told = accuracies(found)
    assert told["own"] == told["honest"] == told["greedy"] == 1.0
    assert told["liar"] == 0.0
    assert told["silent"] == 0.5
    assert 0.3 < told["others' messages"] < 0.7
    # Half of the other datapoints have another label.
    assert own(found)["message_effect"]["low"] > 0.4
    compared = {one["provers"]: one for one in found["comparisons"] if one["protocol"] == "nip"}
    assert compared["liar"]["p_corrected"] < 0.05
    assert not any("ignore" in line or "silent" in line for line in found["alarms"])


@pytest.mark.usefixtures("verifiers")
def test_swapped_provers_show_that_a_verifier_is_deaf(run_cli: RunCli) -> None:
    cast = (*scripted("verifier", "mine.py:deaf"), *scripted("prover", "honest"))
    found = card(run_cli(*CARD, *cast, "--repeats", 4, "--json"))
    told = accuracies(found)
    assert 0.5 < told["own"] < 1.0
    assert len({value for provers, value in told.items() if provers != "greedy"}) == 1
    assert own(found)["message_effect"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert own(found)["checking_rate"]["value"] == 1.0
    assert any(line.startswith("nip: the verifier ignores messages") for line in found["alarms"])
    assert any("silent" in line for line in found["alarms"])


def test_the_card_is_made_of_recorded_runs_and_plays_nothing_twice(
    run_cli: RunCli, tmp_path: Path
) -> None:
    first = run_cli(*CARD, "--repeats", 2, "--run", "c", "--json")
    found = card(first)
    runs = {path.parent.name for path in (tmp_path / "runs/c").glob("*/checkpoint.msgpack")}
    assert runs == {
        *(f"nip-{name}" for name in ("own", "greedy", "silent", "random", "honest", "liar")),
        "nip-others-messages",
        "solo_verifier-own",
        "solo_verifier-greedy",
    }
    for row in found["rows"]:
        folder = f"runs/c/{row['protocol']}-{row['provers']}".replace("' ", "-")
        (iteration,) = json.loads(run_cli("replay", folder, "--json").stdout)["iterations"]
        assert row["accuracy"]["value"] == pytest.approx(iteration["test.accuracy"])
        assert row["games"] == (1 if row["provers"] == "greedy" else 2)
        assert (row["always_fails"], row["tokens"] > 0) == (None, True)
    sizes = {path: path.stat().st_size for path in tmp_path.rglob("checkpoint.msgpack")}
    again = run_cli(*CARD, "--repeats", 2, "--run", "c", "--json")
    assert again.stdout == first.stdout
    assert sizes == {path: path.stat().st_size for path in tmp_path.rglob("checkpoint.msgpack")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two trained runs, `a` of two iterations and `b`."""
    home = tmp_path_factory.mktemp("trained")
    for name, seed in (("a", 5), ("b", 6)):
        done = call_cli(home, "train", *SMALL, "--seed", seed, "--run", name)
        assert done.returncode == 0, done.stderr
    return home


def test_the_agents_of_a_run_meet_provers_of_other_iterations_and_runs(trained: Path) -> None:
    options = ("--provider", "dummy", "--set", "dataset_options.max_test_size=6")
    more = ("--repeats", "2", "--against", "b", "--against", "a@0", "--relabel", "1")
    done = call_cli(trained, "card", "--from", "a", *options, *more, "--run", "c")
    assert done.returncode == 0, done.stderr
    assert "Preference labels of verifier" in done.stdout

    def served(cell: str) -> dict[str, list[str]]:
        told = json.loads(call_cli(trained, "replay", f"runs/c/{cell}", "--json").stdout)
        assert told["digests_match"]
        lineage: dict[str, list[str]] = told["lineage"]
        return lineage

    def lineage(run: str) -> dict[str, list[str]]:
        told = json.loads(call_cli(trained, "replay", f"runs/{run}", "--json").stdout)
        found: dict[str, list[str]] = told["lineage"]
        return found

    ours, others = lineage("a"), lineage("b")
    assert served("nip-own") == {name: adapters[-1:] for name, adapters in ours.items()}
    assert served("nip-untrained") == {"prover": [], "verifier": ours["verifier"][-1:]}
    assert served("nip-b") == {"prover": others["prover"][-1:], "verifier": ours["verifier"][-1:]}
    assert served("nip-a-0") == {"prover": ours["prover"][:1], "verifier": ours["verifier"][-1:]}
    assert served("solo_verifier-prover-alone") == {"verifier": ours["prover"][-1:]}
    # Those that sampled the pairs of the second iteration: the first one's.
    assert served("labels-1-verifier") == {name: made[:1] for name, made in ours.items()}


def test_labels_are_true_as_far_as_the_agents_decide_the_outcome(trained: Path) -> None:
    """The verifier's own decision is worth what it was worth; the prover's words are noise."""
    options = ("--provider", "dummy", "--set", "dataset_options.max_test_size=4", "--json")
    more = ("--repeats", "2", "--relabel", "12", "--run", "d")
    found = card(call_cli(trained, "card", "--from", "a@0", *options, *more))
    verifier, prover = found["labels"]["verifier"], found["labels"]["prover"]
    assert verifier["right"]["value"] > 0.85
    assert verifier["margin"]["low"] > 0.5
    assert prover["right"]["low"] < 0.5 < prover["right"]["high"]
    assert prover["margin"]["low"] < 0 < prover["margin"]["high"]
    assert prover["recorded"] > prover["margin"]["high"]


def test_other_protocols_are_played_by_the_agents_of_a_run(trained: Path) -> None:
    options = ("--provider", "dummy", "--set", "dataset_options.max_test_size=4", "--json")
    more = ("--repeats", "2", "--protocol", "debate", "--run", "e")
    found = card(call_cli(trained, "card", "--from", "a", *options, *more))
    assert {row["protocol"] for row in found["rows"]} == {"debate", "solo_verifier"}
    assert found["labels"] == {}


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (("--from", "zzz"), ["zzz", "no such run"], 3),
        (("--from", "a@x"), ["a@x", "RUN@3"], 2),
        (("--relabel", "3"), ["--relabel", "--from RUN"], 2),
        (("--protocol", "chess"), ["chess"], 2),
    ],
)
def test_what_makes_no_card_is_refused_in_one_line(
    run_cli: RunCli, options: tuple[str, ...], words: list[str], code: int
) -> None:
    refused = run_cli("card", "--provider", "dummy", *options)
    assert refused.returncode == code
    assert refused.stderr.count("\n") == 1
    assert all(word in refused.stderr for word in words), refused.stderr


def test_the_embedded_model_has_a_card(run_cli: RunCli) -> None:
    """On few datapoints: two tables of the width of a terminal, the notes, and the alarms."""
    done = run_cli(
        "card", "--protocol", "nip", "--set", "dataset_options.max_test_size=6",
        "--repeats", 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:20])) <= 120
    for name in ("own", "greedy", "silent", "honest", "liar", "message effect", "Brier score"):
        assert any(line.strip().startswith(name) for line in lines), name
