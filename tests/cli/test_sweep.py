"""`nip-fn sweep`: its output, and its cells, which are real processes; see also tests/adapters."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from nip_fn.config.study import Study, cells
from nip_fn.metrics.study import CellResult, tabulate
from nip_fn_adapters.recording.runs import load_run
from nip_fn_cli.shown.study_table import print_study

from .conftest import COMMAND, PRICES, Finished, RunCli, call_cli

STUDY = """
seeds = 2

[base]
dataset = "builtin:tea"
agents._default.model_provider = "dummy"
rl.num_iterations = 1
rl.rollouts_per_iteration = 8
malt.num_responses_per_timestep = 2
nip_protocol.max_message_rounds = 3
dataset_options.max_test_size = 6

[arms.malt]

[arms.ei]
trainer = "ei"
ei.rollouts_per_iteration = 8

[compare]
baseline = "malt"
metrics = ["accuracy_1"]
"""
CELLS = ["malt-seed-1", "malt-seed-2", "ei-seed-1", "ei-seed-2"]


def digests(place: Path) -> dict[str, str]:
    """The digest of each run in a folder, all of which are done and true to their recordings."""
    found = {}
    for path in sorted(place.glob("*/checkpoint.msgpack")):
        run = load_run(path).unwrap()
        assert not run.faults
        assert run.state.stage.name == "done"
        found[path.parent.name] = run.digest
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A study that is done, and what the command printed."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "s.toml").write_text(STUDY)
    done = call_cli(folder, "sweep", "s.toml", "--jobs", 4)
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture
def study(swept: tuple[Path, Finished], tmp_path: Path) -> Path:
    """That study as `studies/s` of the test's own folder."""
    shutil.copy(swept[0] / "s.toml", tmp_path)
    return Path(shutil.copytree(swept[0] / "studies/s", tmp_path / "studies/s"))


def test_the_text_and_the_json_say_the_same(
    swept: tuple[Path, Finished], run_cli: RunCli, study: Path
) -> None:
    assert sorted(digests(study)) == sorted(CELLS)
    assert [f"{name}: done" in swept[1].stderr for name in CELLS] == [True] * 4
    again = run_cli("sweep", "s.toml", "--json")
    assert again.stderr == "study studies/s: 4 cells, 4 of them done before\n"
    found = json.loads(again.stdout)
    assert found["study"] == "studies/s"
    shown = swept[1].stdout
    for row in found["rows"]:
        after = row["accuracies"]["after"]
        assert f"{after['value']:.1%} [{after['low']:.1%}, {after['high']:.1%}]" in shown
    (over,) = found["over_baseline"]
    assert (over["row"], over["over"], over["runs"]) == ("ei", "malt", 2)
    for text in ("rises in training", "over malt", "runs to see 3 points"):
        assert text in shown


def test_a_study_without_tests_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = cells(Study("s", {}))
    untested = {cell.name: CellResult({}, {"sampled accuracy": 0.5, "replies": 1234})}
    print_study(tabulate(Study("s", {}), untested), Study("s", {}))
    first, titles, row = capsys.readouterr().out.splitlines()
    assert "nothing was tested" in first
    assert titles.split() == ["runs", "sampled", "accuracy", "replies"]
    assert row.split() == ["s", "1", "0.5", "1,234"]
    print_study(tabulate(Study("s", {}), {}), Study("s", {}))
    assert capsys.readouterr().out == "no cell is done\n"


def test_a_cell_that_stops_says_why_and_the_others_go_on(tmp_path: Path, run_cli: RunCli) -> None:
    unreached = """
agents._default.model_provider = "openai"
agents._default.model_name = "m"
agents._default.api_base_url = "http://127.0.0.1:9/v1"
text_rl.unreached_limit_seconds = 0.1
"""
    broken = STUDY.replace('trainer = "ei"', unreached)
    (tmp_path / "s.toml").write_text(broken)
    found = run_cli("sweep", "s.toml", "--seeds", 1, "--jobs", 2, OPENAI_API_KEY="k")
    assert found.returncode == 9
    assert "ei-seed-1 (exit code 9): " in found.stderr
    assert "127.0.0.1:9" in found.stderr
    assert "1 of 2 cells are not done" in found.stderr
    assert [line.split()[0] for line in found.stdout.splitlines()[1:2]] == ["malt"]


def test_a_forecast_has_a_line_for_each_cell_and_runs_none(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    (tmp_path / "prices.toml").write_text(PRICES)
    dry = ("--dry-run", "--prices", "prices.toml", "--budget", "0.01")
    found = run_cli("sweep", "s.toml", *dry)
    assert found.returncode == 0, found.stderr
    assert not (tmp_path / "studies").exists()
    *rows, total = found.stdout.splitlines()[3:]
    assert [row.split()[0] for row in rows] == CELLS
    # Expected replies, in all and of each cell.
    replies = [int(row.split()[1].replace(",", "")) for row in (*rows, total)]
    assert sum(replies[:-1]) == replies[-1]
    assert "over it" in found.stderr


# ------------------------------------------------------------------------------------------- kills


def begun(process: Any, place: Path) -> None:
    """Wait until the sweep has begun a cell."""
    while process.poll() is None and not list(place.glob("*/checkpoint.msgpack")):
        time.sleep(0.01)


def test_a_sweep_that_is_killed_goes_on_and_asks_nothing_twice(
    swept: tuple[Path, Finished], tmp_path: Path, start: Callable[..., Any], run_cli: RunCli
) -> None:
    shutil.copy(swept[0] / "s.toml", tmp_path)
    process = start("sweep", "s.toml", "--jobs", "3")
    begun(process, tmp_path / "studies/s")
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # The processes of its cells end with it, too.
    assert psutil.wait_procs(below, timeout=120)[1] == []
    last = run_cli("sweep", "s.toml", "--jobs", "3")
    assert last.returncode == 0, last.stderr
    assert digests(tmp_path / "studies/s") == digests(swept[0] / "studies/s")


def test_a_sweep_that_is_interrupted_stops_its_cells_and_is_resumed_in_a_terminal(
    swept: tuple[Path, Finished],
    tmp_path: Path,
    start: Callable[..., Any],
    environment: dict[str, str],
) -> None:
    shutil.copy(swept[0] / "s.toml", tmp_path)
    # The first of two cells may end before it is stopped; the second is not begun.
    command = ("sweep", "s.toml", "--seeds", "1", "--jobs", "1")
    process = start(*command)
    begun(process, tmp_path / "studies/s")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "resume with the same command" in told
    text = in_a_terminal(tmp_path, environment, *command)
    assert all(words in text for words in ("ei-seed-1", "accuracy ", "done"))
    assert digests(tmp_path / "studies/s") == of_seed_1(swept)


def in_a_terminal(folder: Path, environment: dict[str, str], *words: str) -> str:
    """All that a terminal was written by a command that succeeds."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        (COMMAND, *words), cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=follower
    )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # of a terminal that nobody writes to any more
        while read := os.read(leader, 1 << 16):
            shown += read
    os.close(leader)
    assert process.wait() == 0
    return shown.decode()


def of_seed_1(swept: tuple[Path, Finished]) -> dict[str, str]:
    whole = digests(swept[0] / "studies/s")
    return {name: whole[name] for name in CELLS[::2]}


def test_two_sweeps_of_one_study_share_its_cells(
    swept: tuple[Path, Finished], tmp_path: Path, start: Callable[..., Any]
) -> None:
    shutil.copy(swept[0] / "s.toml", tmp_path)
    both = [start("sweep", "s.toml", "--seeds", "1") for _ in range(2)]
    for process in both:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    assert digests(tmp_path / "studies/s") == of_seed_1(swept)


def test_seeds_of_a_training_are_a_study_of_one_axis(
    swept: tuple[Path, Finished], run_cli: RunCli, tmp_path: Path
) -> None:
    given = swept[0] / "studies/s/ei-seed-1/given.json"
    done = run_cli("train", given, "--seeds", "1,2", "--run", "both")
    assert done.returncode == 0, done.stderr
    whole = digests(swept[0] / "studies/s")
    own = digests(tmp_path / "runs/both")
    assert own == {f"seed-{seed}": whole[f"ei-seed-{seed}"] for seed in (1, 2)}
    assert "rises in training" in done.stdout
    refused = run_cli("train", given, "--seeds", "2", "--resume", "--run", "both")
    assert (refused.returncode, "--resume" in refused.stderr) == (2, True)
    refused = run_cli("train", given, "--seeds", "two")
    assert (refused.returncode, "as in --seeds 1,2,5" in refused.stderr) == (2, True)
