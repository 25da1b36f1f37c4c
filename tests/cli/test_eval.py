"""`nip-fn eval`: the real command."""

import json
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters import load_run

from .conftest import Finished, RunCli

UNSEEDED = (
    "eval", "--provider", "dummy", "--set", "dataset_options.max_test_size=40",
    "--set", "nip_protocol.max_message_rounds=5",
)  # fmt: skip
EVAL = (*UNSEEDED, "--seed", "3")


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


def test_seeds_of_an_evaluation_are_a_study_of_its_cases(run_cli: RunCli) -> None:
    several = run_cli(*UNSEEDED, "--seeds", "2,5", "--run", "both", "--json")
    assert several.returncode == 0, several.stderr
    study = json.loads(several.stdout)
    single = [
        {one["protocol"]: one for one in results(run_cli(*UNSEEDED, "--seed", seed, "--json"))}
        for seed in (2, 5)
    ]
    for row in study["rows"]:
        means = [found[row["row"]]["accuracy"]["value"] for found in single]
        assert row["accuracies"]["after"]["value"] == pytest.approx(sum(means) / 2)
    (over,) = study["over_baseline"]
    assert (over["row"], over["over"], over["runs"]) == ("nip", "solo_verifier", 2)
    gains = [found["nip"]["gain"]["value"] for found in single]
    assert over["value"] == pytest.approx(sum(gains) / 2)
    printed = run_cli(*UNSEEDED, "--seeds", "2,5", "--run", "both")
    assert "4 of them done before" in printed.stderr
    for words in ("accuracy [95 %]", "over solo_verifier", "runs to see 3 points"):
        assert words in printed.stdout


def test_each_model_has_its_own_baseline_over_seeds_too(run_cli: RunCli) -> None:
    models = ("--model", "a", "--model", "b")
    study = json.loads(run_cli(*UNSEEDED, *models, "--seeds", 1, "--json").stdout)
    over = {one["row"]: one["over"] for one in study["over_baseline"]}
    assert over == {"nip-a": "solo_verifier-a", "nip-b": "solo_verifier-b"}
    refused = run_cli(*UNSEEDED, "--seeds", 2, "--seed", 1)
    assert (refused.returncode, "leave out --seeds" in refused.stderr) == (2, True)


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
    trained_on = results(run_cli(*EVAL, "--split", "train", "--run", "t", "--json"))
    (iteration,) = json.loads(run_cli("replay", "runs/t/nip", "--json").stdout)["iterations"]
    assert iteration["train.accuracy"] == trained_on[0]["accuracy"]["value"]
    refused = run_cli(*EVAL, "--split", "dev")
    assert refused.returncode == 2
    assert "there is no split 'dev'; choose one of all, train" in refused.stderr


def rows_of(path: Path, *labels: int) -> Path:
    path.write_text(
        "".join(
            json.dumps(
                {"question": f"Add {n}.", "solution": f"def f(x): return x + {n}", "label": label}
            )
            + "\n"
            for n, label in enumerate(labels)
        )
    )
    return path


def test_every_row_of_a_file_is_tested(run_cli: RunCli, tmp_path: Path) -> None:
    path = rows_of(tmp_path / "mine.jsonl", *[1, 0, 0, 0] * 5)
    plain = ("eval", "--provider", "dummy", "--dataset", path)
    found = results(run_cli(*plain, "--json"))
    assert [one["datapoints"] for one in found] == [20, 20]
    assert all(one["majority_class_share"] == 0.75 for one in found)
    some = [
        run_cli(*plain, "--limit", 5, "--shuffle", seed, "--run", f"s{seed}") for seed in (1, 2)
    ]
    assert all(one.returncode == 0 and "5 x 1" in one.stdout for one in some)
    ids = [
        {game.datapoint.id for game in load_run(folder).unwrap().stages("test")[0].games()}
        for folder in (tmp_path / "runs/s1/nip", tmp_path / "runs/s2/nip")
    ]
    assert len(ids[0]) == len(ids[1]) == 5
    assert ids[0] != ids[1]


@pytest.mark.parametrize("label", [0, 1])
def test_a_file_of_one_row_is_tested(run_cli: RunCli, tmp_path: Path, label: int) -> None:
    path = rows_of(tmp_path / "one.jsonl", label)
    run = run_cli("eval", "--provider", "dummy", "--dataset", path, "--run", "one")
    assert run.returncode == 0, run.stderr
    assert f"the only datapoint in 'test' has label {label}" in run.stderr
    assert "1 x 1" in run.stdout
    bounds = [float(n) for n in re.findall(r"[-+]?\d+\.\d", run.stdout)]
    assert all(-100 <= bound <= 100 for bound in bounds)
    assert run_cli("replay", "runs/one/nip").returncode == 0


def test_one_name_holds_tests_of_the_same_datapoints(run_cli: RunCli) -> None:
    run = partial(run_cli, "eval", "--provider", "dummy", "--dataset", "builtin:tea",
                  "--run", "mine", "--protocol")  # fmt: skip
    assert run("nip", "--limit", "4").returncode == 0
    assert run("adp", "--limit", "4").returncode == 0  # another game beside it
    other = run("debate", "--limit", "5")
    assert other.returncode == 2
    assert "runs/mine: adp was tested there with dataset_options.max_test_size = 4" in other.stderr
    shown = run_cli("show", "mine/nip").stdout
    assert "dataset_options.max_test_size = 4" in shown
    assert not re.search("trainer|ei.lr|rollouts_per_iteration", shown)


ALWAYS_REJECTS = """
def play(protocol, datapoint, episode, agent, key):
    return "Decision: reject"
"""


@pytest.mark.parametrize(
    "dataset",
    [f"builtin:{name}" for name in ("python", "tea", "tea-public", "bug-hunt")],
)
def test_who_always_rejects_is_at_one_half(run_cli: RunCli, tmp_path: Path, dataset: str) -> None:
    (tmp_path / "player.py").write_text(ALWAYS_REJECTS)
    player = ("model_provider=scripted", "model_name=player.py:play")
    sets = [part for field in player for part in ("--set", f"agents.verifier.{field}")]
    run = run_cli("eval", "--protocol", "solo_verifier", "--dataset", dataset, *sets, "--run", "r")
    assert run.returncode == 0, run.stderr
    again = run_cli(
        "eval", "--protocol", "solo_verifier", "--dataset", dataset, *sets, "--run", "r", "--json"
    )
    (one,) = results(again)
    assert one["balanced_accuracy"]["value"] == 0.5
    share = one["majority_class_share"]
    assert one["accuracy"]["value"] == pytest.approx(share) or share == pytest.approx(0.5, abs=0.03)
    if round(share, 2) > 0.5:
        assert "50.0% [" in run.stdout
    assert one["datapoints"] >= 360


def test_a_weak_verifier_meets_a_strong_prover(run_cli: RunCli) -> None:
    models = ("--model", "strong", "--model", "stronger", "--verifier-model", "weak")
    protocols = ("--protocol", "debate", "--protocol", "nip", "--protocol", "solo_verifier")
    found = results(run_cli(*EVAL, *models, *protocols, "--json"))
    cast = [(one["protocol"], one["models"]) for one in found]
    assert cast == [
        ("debate", {"verifier": "weak", "prover0": "strong", "prover1": "strong"}),
        ("nip", {"verifier": "weak", "prover": "strong"}),
        ("solo_verifier", {"verifier": "weak"}),  # once, whoever the provers are
        ("debate", {"verifier": "weak", "prover0": "stronger", "prover1": "stronger"}),
        ("nip", {"verifier": "weak", "prover": "stronger"}),
    ]
    assert [one["gain"] is None for one in found] == [False, False, True, False, False]
    (other,) = results(run_cli(*EVAL, "--prover-model", "p", "--protocol", "nip", "--json"))
    assert other["models"]["prover"] == "p"
    assert other["models"]["verifier"] != "p"


def test_agents_that_a_protocol_does_not_have_are_not_used_by_it(run_cli: RunCli) -> None:
    provers = ("--set", "agents.prover0.model_name=a", "--set", "agents.prover1.model_name=b")
    protocols = ("--protocol", "nip", "--protocol", "debate", "--protocol", "solo_verifier")
    found = results(run_cli(*EVAL, *provers, *protocols, "--json"))
    assert found[0]["models"]["prover"] == "a"  # the first one that the configuration names
    assert (found[1]["models"]["prover0"], found[1]["models"]["prover1"]) == ("a", "b")
    refused = run_cli(*EVAL, "--set", "agents.provr.model_name=a", *protocols)
    assert refused.returncode == 2
    assert "agents.provr" in refused.stderr


def test_the_temperature_is_that_of_all(run_cli: RunCli, tmp_path: Path) -> None:
    assert run_cli(*EVAL, "--temperature", "0.3", "--run", "e").returncode == 0
    params = load_run(tmp_path / "runs/e/nip").unwrap().params
    assert params.text_rl.test_temperature == 0.3


def test_eval_and_replay_show_the_same_interval(run_cli: RunCli) -> None:
    for repeats in (1, 3):
        options = ("--repeats", repeats, "--run", f"e{repeats}", "--protocol", "nip")
        (one,) = results(run_cli(*EVAL, *options, "--json"))
        replayed = run_cli("replay", f"runs/e{repeats}/nip", "--json")
        (iteration,) = json.loads(replayed.stdout)["iterations"]
        for measure in ("accuracy", "balanced_accuracy"):
            ends = [iteration[f"test.{measure}{end}"] for end in ("", "_low", "_high")]
            assert list(one[measure].values()) == pytest.approx(ends, rel=1e-12)


def test_a_finished_evaluation_says_that_nothing_was_asked(run_cli: RunCli) -> None:
    first, second = (run_cli(*EVAL) for _ in range(2))
    assert "played before" not in first.stderr
    told = [line for line in second.stderr.splitlines() if "played before" in line]
    assert len(told) == 1
    assert "no model was asked" in told[0]
    assert "--run" in told[0]
    assert second.stdout == first.stdout


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
