"""`nip-fn train`, as a person types it."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, RunCli

Start = Callable[..., "subprocess.Popen[str]"]


def digest_of(output: str) -> str:
    """The digest that a command printed."""
    (line,) = [line for line in output.splitlines() if line.startswith("digest")]
    return line.split()[1]


def test_a_run_prints_its_table_and_what_it_wrote(run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli("train", *SMALL, "--run", "a")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["0", "1", "2"]
    assert "held-out accuracy" in done.stdout
    assert "configuration" in done.stderr
    for line in done.stdout.splitlines():
        if line.startswith(("checkpoint", "metrics")):
            assert (tmp_path / line.split()[1]).is_file()
    lines = (tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()
    stages = [(record["iteration"], record["stage"]) for record in map(json.loads, lines)]
    assert stages == [
        *((i, stage) for i in range(2) for stage in ("test", "sample", "train", "publish")),
        (2, "test"),
    ]


def test_a_penalty_that_leaves_no_pairs_is_warned_of_and_the_rule_it_names_finds_some(
    run_cli: RunCli, tmp_path: Path
) -> None:
    pairs = {}
    for rule in ("positive_negative", "about_mean"):
        sets = (
            "protocol_common.prover_invalid_response_penalty=-1.0",
            f"malt.pair_selection_method={rule}",
            "text_rl.test_scheme=none",
            "rl.num_iterations=1",
        )
        options = [word for one in sets for word in ("--set", one)]
        done = run_cli("train", *SMALL, *options, "--run", rule)
        assert done.returncode == 0
        is_warned = "warning: protocol_common.prover_invalid_response_penalty: " in done.stderr
        assert is_warned == (rule == "positive_negative")
        lines = (tmp_path / "runs" / rule / "metrics.jsonl").read_text().splitlines()
        pairs[rule] = json.loads(lines[0])["prover.pairs"]
    assert pairs["positive_negative"] == 0 < pairs["about_mean"]


def test_two_processes_with_different_string_hashes_derive_the_same_digest(nip_fn: RunCli) -> None:
    outputs = [
        nip_fn("train", *SMALL, "--run", name, PYTHONHASHSEED=seed).stdout
        for name, seed in (("a", "1"), ("b", "2"))
    ]
    assert digest_of(outputs[0]) == digest_of(outputs[1])


def test_a_finished_run_is_not_overwritten_and_resuming_it_changes_nothing(
    run_cli: RunCli, tmp_path: Path
) -> None:
    first = run_cli("train", *SMALL, "--run", "a")
    before = (tmp_path / "runs/a/checkpoint.msgpack").read_bytes()
    again = run_cli("train", *SMALL, "--run", "a")
    assert again.returncode == 3
    assert "--resume" in again.stderr
    resumed = run_cli("train", "--resume", "--run", "a")
    assert resumed.returncode == 0
    assert digest_of(resumed.stdout) == digest_of(first.stdout)
    assert (tmp_path / "runs/a/checkpoint.msgpack").read_bytes() == before


def test_a_resumed_run_keeps_its_parameters(run_cli: RunCli) -> None:
    run_cli("train", *SMALL, "--run", "a")
    other = run_cli("train", "--resume", "--run", "a", "--seed", "6")
    assert other.returncode == 2
    assert "seed" in other.stderr


def test_runs_without_a_name_do_not_meet(run_cli: RunCli, tmp_path: Path) -> None:
    for _ in range(2):
        assert run_cli("train", *SMALL).returncode == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "rl.num_iteration=2"], ["rl.num_iteration:", "num_iterations"]),
        (["--set", "rl.lr=-1"], ["rl.lr"]),
        (["--set", "protocol_common.prover_reward=inf"], ["protocol_common.prover_reward"]),
        (["--set", "rl.lr"], ["rl.lr", "="]),
        (["--set", "agents.provr.lora_rank=2"], ["provr", "prover"]),
        (["--set", "agents=5"], ["agents", "table"]),
        (["--set", "agents=5", "--provider", "dummy"], ["agents", "table"]),
        (["--set", "agents.prover=5", "--provider", "dummy"], ["agents.prover", "table"]),
        (["--trainer", "ppo"], ["trainer", "malt"]),
        (["--protocol", "chess"], ["chess", "nip"]),
        (["--provider", "psychic"], ["--provider", "psychic", "self-hosted"]),
        (["--set", "malt.num_initial_ei_iterations=-1"], ["num_initial_ei_iterations"]),
        (["--more-iterations", "1"], ["--more-iterations", "--resume"]),
        (["--set", "dataset=builtin:nothing"], ["builtin:nothing"]),
        (["missing.toml"], ["missing.toml"]),
        (["--resume"], ["--run"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run_cli: RunCli, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    failed = run_cli("train", *arguments)
    assert failed.returncode == 2
    (line,) = failed.stderr.strip().splitlines()
    assert all(word in line for word in words), line
    assert not (tmp_path / "runs").exists()


def test_a_file_and_then_options_and_then_sets(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("seed = 1\n[rl]\nnum_iterations = 1\nlr = 0.5\n")
    done = run_cli("train", "c.toml", *SMALL, "--set", "rl.lr=0.25", "--run", "a")
    assert done.returncode == 0, done.stderr
    told = json.loads(run_cli("replay", "runs/a", "--json").stdout)
    assert told["iteration"] == 2
    changed = run_cli("train", "c.toml", "--resume", "--run", "a")
    assert changed.returncode == 2  # the file says otherwise


def test_a_broken_file_is_named(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("seed = \n")
    failed = run_cli("train", "c.toml")
    assert failed.returncode == 2
    assert "c.toml" in failed.stderr


def test_a_folder_that_cannot_be_written_is_one_line(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    failed = run_cli("train", *SMALL, "--run", "a")
    assert failed.returncode == 10
    assert "Traceback" not in failed.stderr
    assert "runs" in failed.stderr


def test_the_first_interrupt_stops_cleanly(run_cli: RunCli, start: Start, tmp_path: Path) -> None:
    expected = digest_of(run_cli("train", *SMALL, "--run", "whole").stdout)
    process = start("train", *SMALL, "--run", "a")
    checkpoint = tmp_path / "runs/a/checkpoint.msgpack"
    while process.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_size > 9999):
        time.sleep(0.01)  # however long the machine takes to begin
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=60)
    if process.returncode != 0:  # it was quick enough to be stopped
        assert process.returncode == 130
        assert "--resume --run a" in talk
        assert "Traceback" not in talk
        resumed = run_cli("train", "--resume", "--run", "a")
        assert digest_of(resumed.stdout) == expected


@pytest.mark.parametrize("runs", [1, pytest.param(15, marks=pytest.mark.exhaustive)])
def test_kills_lose_nothing(run_cli: RunCli, start: Start, tmp_path: Path, runs: int) -> None:
    """Of runs that are killed twice, each time after another part of the recording."""
    expected = digest_of(run_cli("train", *SMALL, "--run", "whole").stdout)
    whole = (tmp_path / "runs/whole/checkpoint.msgpack").stat().st_size
    chance, kills = random.Random(0), 0
    for number in range(runs):
        checkpoint = tmp_path / f"runs/{number}/checkpoint.msgpack"
        for share in sorted(chance.random() for _ in range(2)):
            resume = ("--resume",) if checkpoint.exists() else ()
            process = start("train", *SMALL, "--run", number, *resume)
            while process.poll() is None and not (
                checkpoint.exists() and checkpoint.stat().st_size > share * whole
            ):
                time.sleep(0.001)
            kills += process.poll() is None
            process.kill()
            process.communicate()
        resumed = run_cli("train", "--resume", "--run", number)
        assert digest_of(resumed.stdout) == expected, resumed.stderr
    assert kills >= runs
