"""`nip-fn train --from RUN`: other trainings from the replies of a recorded run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nip_fn.run import checkpoint
from nip_fn_adapters.recording.runs import load_run

from .conftest import Finished, RunCli

SMALL = (
    *("--dataset", "builtin:tea", "--provider", "dummy", "--iterations", "2"),
    *("--set", "rl.rollouts_per_iteration=12", "--set", "dataset_options.max_test_size=6"),
    *("--set", "dummy.decision_rate=0.7", "--set", "text_rl.test_scheme=all"),
    *("--set", "nip_protocol.max_message_rounds=4"),
)


def ok(done: Finished) -> Finished:
    assert done.returncode == 0, done.stderr
    return done


def facts(run_cli: RunCli, run: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ok(run_cli("replay", f"runs/{run}", "--json")).stdout)
    assert told["digests_match"]
    return told


@pytest.fixture
def recorded(run_cli: RunCli) -> Finished:
    return ok(run_cli("train", *SMALL, "--run", "a"))


@pytest.mark.usefixtures("recorded")
def test_a_fork_stands_by_itself_and_is_resumed_and_replayed_like_any_run(
    run_cli: RunCli, tmp_path: Path
) -> None:
    rule = ("--set", "malt.pair_selection_method=best_worst")
    done = ok(run_cli("train", "--from", "a", "--iteration", 0, *rule, "--run", "b"))
    assert "runs/a, iteration 0: " in done.stderr
    assert "replies are used again" in done.stderr
    whole = ok(run_cli("train", *SMALL, *rule, "--run", "c"))
    forked, ordinary = facts(run_cli, "b"), facts(run_cli, "c")
    assert (forked["fork_of"], forked["fork_iteration"]) == ("a", 0)
    assert ordinary["fork_of"] is None
    for group, names in forked["lineage"].items():
        assert names == ordinary["lineage"][group][:1]
    assert (
        "fork        of a, whose replies of iteration 0 it uses"
        in ok(run_cli("replay", "runs/b")).stdout
    )
    # The other run may be deleted.
    shutil.rmtree(tmp_path / "runs/a")
    before = facts(run_cli, "b")["digest"]
    more = ok(run_cli("train", "--resume", "--run", "b", "--more-iterations", 1))
    # It goes on to the iteration that the ordinary run has sampled, too.
    assert facts(run_cli, "b")["digest"] != before
    assert facts(run_cli, "b")["lineage"] == facts(run_cli, "c")["lineage"], (more, whole)
    listed = json.loads(ok(run_cli("ls", "--json")).stdout)
    assert [run["state"] for run in listed] == ["done", "done"]
    lines = (tmp_path / "runs/b/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["iteration"], row["stage"]) for row in rows][:3] == [
        *((0, "test"), (0, "sample"), (0, "train"))
    ]
    assert rows[0]["seconds"] == 0.0


@pytest.mark.usefixtures("recorded")
def test_the_last_iteration_is_used_unless_another_one_is_named(run_cli: RunCli) -> None:
    ok(run_cli("train", "--from", "a", "--seed", 3, "--run", "b"))
    assert facts(run_cli, "b")["fork_iteration"] == 1
    assert len(facts(run_cli, "b")["lineage"]["verifier"]) == 2


@pytest.mark.usefixtures("recorded")
def test_the_command_of_a_fork_resumes_it_also_if_it_died_before_it_was_one(
    run_cli: RunCli, tmp_path: Path
) -> None:
    command = ("train", "--from", "a", "--iteration", 0, "--seed", 3, "--run", "b")
    ok(run_cli(*command))
    digest = facts(run_cli, "b")["digest"]
    ok(run_cli(*command, "--resume"))
    # Killed when nothing but the header was written.
    (tmp_path / "runs/b/checkpoint.msgpack").write_bytes(checkpoint.header())
    ok(run_cli(*command, "--resume"))
    assert facts(run_cli, "b")["digest"] == digest
    other = run_cli("train", "--from", "a", "--iteration", 1, "--run", "b", "--resume")
    assert "--iteration differs from the run's" in other.stderr
    ordinary = run_cli("train", "--from", "b", "--run", "a", "--resume")
    assert "--from differs from the run's" in ordinary.stderr


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--from", "a", "--set", "malt.num_responses_per_timestep=3"),
            "malt.num_responses_per_timestep: the recorded replies depend on it; "
            "leave it as it was, or start a new run without --from",
        ),
        (("--from", "a", "--dataset", "builtin:tea-public"), "dataset: the recorded replies"),
        (("--from", "a", "--iteration", 2), "iteration 2 has not been sampled to its end"),
        (("--from", "a", "--iterations", 1), "rl.num_iterations: the run ends before iteration 1"),
        (("--from", "nowhere"), "--from: "),
        (("--iteration", 1), "--iteration is one of another run's; name that run as --from"),
        (("--from", "a", "--dry-run"), "leave out --from"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_and_leaves_no_run(
    run_cli: RunCli, tmp_path: Path, options: tuple[object, ...], told: str
) -> None:
    done = run_cli("train", *options, "--run", "b")
    assert done.returncode not in (0, 1)
    assert told in done.stderr
    assert not (tmp_path / "runs/b").exists()


STUDY = """
forest = "runs/a"
iteration = 0

[grid]
malt.pair_selection_method = ["best_worst", "all"]
"""


@pytest.mark.usefixtures("recorded")
def test_the_cells_of_a_study_may_train_on_one_forest(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(STUDY)
    done = ok(run_cli("sweep", "rules.toml"))
    cells = sorted((tmp_path / "studies/rules").glob("*/checkpoint.msgpack"))
    assert len(cells) == 2
    for path in cells:
        run = load_run(path).unwrap()
        assert not run.faults
        assert run.state.stage.name == "done"
        assert run.state.origin is not None
        assert run.state.origin[:2] == ("a", 0)
        # Tokens were paid for the trainings, and for the test after them.
        assert [row.stage for row in run.state.rows if row.usage] == ["train", "test"]
    again = ok(run_cli("sweep", "rules.toml", "--forest", "a"))
    assert again.stdout == done.stdout
    refused = run_cli("sweep", "rules.toml", "--dry-run")
    assert "only runs that sample for themselves are forecast; leave out --forest" in refused.stderr
    (tmp_path / "rules.toml").write_text(STUDY + "malt.num_responses_per_timestep = [3]\n")
    refused = run_cli("sweep", "rules.toml", "--name", "other")
    assert "malt.num_responses_per_timestep: the recorded replies depend on it" in refused.stderr


RULE = """
from nip_fn import best_worst

rule = best_worst()
"""


@pytest.mark.usefixtures("recorded")
def test_a_fork_records_the_source_of_a_rule_of_ones_own(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RULE)
    own = ("--set", "malt.pair_selection_method=own.py:rule")
    ok(run_cli("train", "--from", "a", "--iteration", 0, *own, "--run", "b"))
    facts(run_cli, "b")
    (tmp_path / "own.py").write_text(RULE + "\n# changed\n")
    assert "its source has changed" in run_cli("replay", "runs/b").stderr
    (tmp_path / "own.py").unlink()
    assert "own.py" in run_cli("replay", "runs/b").stderr
