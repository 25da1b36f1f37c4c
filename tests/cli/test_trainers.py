"""Expert Iteration, warm-up, and runs that go on after they were done, with the real command."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nip_fn.trees.tree import children_of, replies_in
from nip_fn_adapters import load_run

from .conftest import RunCli

SMALL = (
    "--dataset", "builtin:tea",
    "--provider", "dummy", "--iterations", "2", "--run", "a",
    "--set", "rl.rollouts_per_iteration=20", "--set", "ei.rollouts_per_iteration=20",
    "--set", "dataset_options.max_test_size=4",
    "--set", "malt.num_responses_per_timestep=2", "--set", "dummy.decision_rate=0.7",
)  # fmt: skip


def sets(*assignments: str) -> tuple[str, ...]:
    return tuple(part for one in assignments for part in ("--set", one))


def digest_of(output: str) -> str:
    found = re.search(r"digest +(\w{32})", output)
    assert found
    return found[1]


def facts(run_cli: RunCli, *options: str) -> dict[str, Any]:
    replayed = run_cli("replay", "runs/a", "--json", *options)
    assert replayed.returncode == 0, replayed.stderr
    told: dict[str, Any] = json.loads(replayed.stdout)
    return told


@pytest.mark.parametrize(
    "options",
    [
        ["--trainer", "ei"],
        ["--trainer", "ei", *sets("ei.rollout_selection_method=weighted_sampling")],
        ["--trainer", "ei", *sets("text_rl.verifier_guess_replacement_proportion=0.5")],
        ["--trainer", "ei", *sets("text_rl.fine_tune_on_all_previous_rollouts=true")],
        ["--trainer", "ei", "--protocol", "debate"],
        ["--trainer", "malt", *sets("malt.num_initial_ei_iterations=1")],
        ["--trainer", "malt", *sets("agents._default.shared_model_group=both")],
        ["--trainer", "malt", *sets("malt.simultaneous_branching=product"), "--protocol", "mnip"],
    ],
)
def test_every_way_to_train_is_recorded_and_replayed(options: list[str], run_cli: RunCli) -> None:
    run = run_cli("train", *SMALL, *options)
    assert run.returncode == 0, run.stderr
    told = facts(run_cli)
    assert told["digest"] == digest_of(run.stdout)
    assert told["digests_match"]
    assert any(len(adapters) == 2 for adapters in told["lineage"].values())


def test_rows_of_earlier_iterations_are_trained_on_again(run_cli: RunCli) -> None:
    option = sets("text_rl.fine_tune_on_all_previous_rollouts=true")
    run_cli("train", *SMALL, "--trainer", "ei", *option)
    first, second, _ = facts(run_cli)["iterations"]
    assert second["train.verifier.rows"] > 1.5 * first["train.verifier.rows"]


def test_a_warm_up_imitates_and_then_prefers(run_cli: RunCli) -> None:
    run_cli("train", *SMALL, *sets("malt.num_initial_ei_iterations=1"))
    first, second, _ = facts(run_cli)["iterations"]
    assert first["sample.verifier.chosen"] > 0
    assert first["sample.nodes"] < second["sample.nodes"]
    assert second["sample.verifier.pairs"] > 0
    assert "sample.verifier.chosen" not in second


def test_a_run_that_is_done_goes_on_with_what_it_has_learnt(
    run_cli: RunCli, tmp_path: Path
) -> None:
    done = run_cli("train", *SMALL, "--trainer", "ei")
    before = facts(run_cli)
    more = run_cli("train", "--resume", "--run", "a", "--more-iterations", "2")
    assert more.returncode == 0, more.stderr
    after = facts(run_cli)
    assert after["digest"] == digest_of(more.stdout) != digest_of(done.stdout)
    assert len(after["iterations"]) == len(before["iterations"]) + 2
    for name, adapters in before["lineage"].items():
        assert after["lineage"][name][: len(adapters)] == adapters
    assert len(after["lineage"]["verifier"]) == 4
    longer = run_cli("train", *SMALL, "--trainer", "ei", "--iterations", "4", "--run", "b")
    assert digest_of(longer.stdout) == after["digest"]  # as if it had been asked for at once


def test_only_a_run_that_is_done_can_be_extended(run_cli: RunCli, tmp_path: Path) -> None:
    run_cli("train", *SMALL, "--trainer", "ei")
    checkpoint = tmp_path / "runs/a/checkpoint.msgpack"
    recorded = checkpoint.read_bytes()
    checkpoint.write_bytes(recorded[: len(recorded) // 2])
    refused = run_cli("train", "--resume", "--run", "a", "--more-iterations", "1")
    assert refused.returncode == 2
    assert "not done" in refused.stderr


def test_what_another_threshold_would_have_selected(run_cli: RunCli) -> None:
    run_cli("train", *SMALL, "--trainer", "ei")
    told = facts(run_cli, *sets("ei.reward_threshold=-2.0"))
    for row in told["selections"]:
        # All games of the verifier; of the prover those in which it had something to say.
        every = row["selected_now"] == 20
        assert every if row["agent"] == "verifier" else 0 < row["selected_now"] < 20
        assert row["in_both"] == row["selected"]


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_transcripts_are_written_where_asked_for(
    kind: str, run_cli: RunCli, tmp_path: Path
) -> None:
    """They hold every game, word for word as the replay shows it."""
    option = sets("text_rl.save_transcripts=true", f"text_rl.transcript_format={kind}")
    run = run_cli("train", *SMALL, "--trainer", "ei", "--protocol", "debate", *option)
    assert run.returncode == 0, run.stderr
    folder = tmp_path / "runs/a/transcripts"
    stages = [f"test-{i}" for i in range(3)] + [f"sample-{i}" for i in range(2)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{s}.{kind}" for s in stages)
    text = (folder / f"sample-1.{kind}").read_text("utf-8")
    games = yaml.safe_load(text) if kind == "yaml" else json.loads(text)
    assert len(games) == 20
    told = run_cli(
        "replay", "runs/a", "--transcript", games[0]["datapoint"], "--iteration", "1", "--json"
    )
    shown = [game for game in json.loads(told.stdout) if game["stage"] == "sample"]
    for field in ("rounds", "messages", "end", "rewards", "question", "solution"):
        assert shown[0][field] == games[0][field]


def test_what_was_tested_is_called_by_its_split(run_cli: RunCli) -> None:
    run = run_cli("train", *SMALL, "--trainer", "ei", *sets("test_dataset_split=validation"))
    assert "%" in run.stdout
    for record in facts(run_cli)["iterations"]:
        assert 0 <= record["validation.accuracy"] <= 1
        assert not any(name.startswith("test.") for name in record)


# ------------------------------------------------------------------------- opponents and branching


def test_earlier_models_are_met_recorded_by_name_and_trained_by_none_of_their_trees(
    run_cli: RunCli, tmp_path: Path
) -> None:
    pool = sets(
        "agents.verifier.opponent_pool=2",
        "agents.verifier.opponent_pool_share=0.5",
        "agents.verifier.opponent_scripts=[]",
        "malt.pair_selection_method=all",
        "nip_protocol.max_message_rounds=5",
        "dummy.decision_rate=0.5",
    )
    played = run_cli("train", *SMALL, "--iterations", "3", *pool)
    assert played.returncode == 0, played.stderr
    assert facts(run_cli)["digests_match"]
    run = load_run(tmp_path / "runs/a").unwrap()
    prover, verifier = range(2)
    met = set()
    for sampled in run.stages("sample"):
        batch, pairs = sampled.batch, sampled.selection.pairs
        group = batch.groups[prover]
        present = group.serving or group.model
        earlier = {}
        for at, tree in enumerate(batch.trees):
            names = {said.model for _, said in replies_in(tree) if said.agent == prover}
            earlier[at] = names - {present}
            assert len(names) <= 1
        met |= set().union(*earlier.values())
        assert not any(earlier[pair.tree] for pair in pairs if pair.agent == prover)
        if group.serving:
            assert any(earlier[pair.tree] for pair in pairs if pair.agent == verifier)
            assert any(not names for names in earlier.values())
    first, *_ = run.state.groups[prover].lineage
    assert met == {run.params.agents[prover].model_name, first.name}


def test_an_agent_that_does_not_learn_gives_its_idle_number_of_replies(
    run_cli: RunCli, tmp_path: Path
) -> None:
    """The prover is due in odd iterations, and the verifier, which is frozen, in none."""
    schedule = '{_type="ContiguousPeriodicUpdateSchedule", period=2, start=1, stop=2}'
    idle = sets(
        f"agents.prover.update_schedule={schedule}",
        "agents.prover.num_idle_responses=1",
        "agents.verifier.freeze_agent=true",
        "agents.verifier.num_idle_responses=3",
        "nip_protocol.max_message_rounds=3",
        "protocol_common.verifier_first=false",
        "dummy.decision_rate=1.0",
        "malt.pair_selection_method=all",
    )
    played = run_cli("train", *SMALL, *idle)
    assert played.returncode == 0, played.stderr
    run = load_run(tmp_path / "runs/a").unwrap()
    even, odd = run.stages("sample")
    for sampled, replies in ((even, 1), (odd, 2)):
        for tree in sampled.batch.trees:
            widths = [len(children) for children in children_of(tree) if children]
            depths = [int(tree.depth_N[at]) for at, own in enumerate(children_of(tree)) if own]
            assert {(depth, width) for depth, width in zip(depths, widths, strict=True)} == {
                (0, replies),
                (1, 3),
            }
    assert [group.name for group in run.state.groups if group.lineage] == ["prover"]
