"""`nip-fn ls` and `nip-fn show`: what there is, and what happened in it."""

import fcntl
import json
from pathlib import Path

from nip_fn.run import checkpoint
from nip_fn.run.events import Extended, RunStarted, StageEnded
from nip_fn_adapters.recording.store import CHECKPOINT

from .conftest import SMALL, RunCli


def listed(run_cli: RunCli) -> dict[str, dict[str, object]]:
    return {one["run"]: one for one in json.loads(run_cli("ls", "--json").stdout)}


def test_runs_are_listed_with_their_states(run_cli: RunCli, tmp_path: Path) -> None:
    assert "there is no run" in run_cli("ls").stderr
    assert run_cli("train", *SMALL, "--run", "whole").returncode == 0
    runs = tmp_path / "runs"
    data = (runs / "whole" / CHECKPOINT).read_bytes()
    for name, part in (("half", data[: len(data) // 2]), ("other", b"no checkpoint")):
        (runs / name).mkdir()
        (runs / name / CHECKPOINT).write_bytes(part)
    found = listed(run_cli)
    assert {name: one["state"] for name, one in found.items()} == {
        "whole": "done", "half": "stopped", "other": "unreadable",
    }  # fmt: skip
    assert found["whole"]["iterations"] == {"ended": 2, "of": 2}
    last = json.loads((runs / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["whole"]["last_accuracy"] == {
        "value": last["accuracy"], "low": last["accuracy_low"], "high": last["accuracy_high"],
    }  # fmt: skip
    with (runs / "half" / CHECKPOINT).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert listed(run_cli)["half"]["state"] == "running"
    shown = run_cli("ls").stdout.splitlines()
    assert shown[0].startswith("run")
    assert len(shown) == 4


def test_an_outline_has_the_stages_of_the_whole_recording(run_cli: RunCli, tmp_path: Path) -> None:
    assert run_cli("train", *SMALL, "--run", "whole").returncode == 0
    data = (tmp_path / "runs" / "whole" / CHECKPOINT).read_bytes()
    whole = checkpoint.read(data).unwrap().events
    kept = (RunStarted, StageEnded, Extended)
    assert checkpoint.outline(data) == tuple(one for one in whole if isinstance(one, kept))
    assert checkpoint.outline(b"") == checkpoint.outline(b"no checkpoint, but longer") == ()


def test_a_run_is_shown_with_what_differs_and_its_games_are_listed(run_cli: RunCli) -> None:
    assert run_cli("train", *SMALL, "--run", "whole").returncode == 0
    facts = json.loads(run_cli("show", "whole", "--json").stdout)
    assert facts["state"] == "done, iteration 2 of 2"
    assert facts["parameters"]["seed"] == 5
    assert facts["parameters"]["rl.rollouts_per_iteration"] == 12
    shown = run_cli("show", "whole").stdout
    assert "malt.num_responses_per_timestep = 2" not in shown  # the default
    assert "of 6 games in the test of iteration 2" in shown
    wrong = json.loads(run_cli("show", "whole", "--wrong", "--json").stdout)
    undecided = json.loads(run_cli("show", "whole", "--undecided", "--json").stdout)
    assert all(one["verdict"] not in (one["label"], "none") for one in wrong)
    assert all(one["verdict"] == "none" for one in undecided)
    assert f"{len(wrong):,} wrong" in shown
    assert f"{len(undecided):,} undecided" in shown
    both = run_cli("show", "whole", "--wrong", "--undecided", "--json").stdout
    assert len(json.loads(both)) == len(wrong) + len(undecided) > 0
    table = run_cli("show", "whole", "--wrong", "--undecided").stdout
    command = table.strip().splitlines()[-1].partition("nip-fn ")[2].split()
    assert run_cli(*command).returncode == 0


def test_an_iteration_that_has_not_been_tested_is_named(run_cli: RunCli) -> None:
    assert run_cli("train", *SMALL, "--run", "whole").returncode == 0
    done = run_cli("show", "whole", "--iteration", "9")
    assert done.returncode == 2
    assert "known: 0, 1, 2" in done.stderr
    assert run_cli("show", "nothing").returncode == 3
