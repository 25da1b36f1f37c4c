"""`nip-fn replay`, on a real run's checkpoint."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, RunCli, call_cli
from .test_terminal import Terminal

FLIPPED, CUT, FOREIGN, NEWER = 4, 5, 6, 7


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a small run, and what training it printed."""
    home = tmp_path_factory.mktemp("trained")
    done = call_cli(home, "train", *SMALL, "--run", "a")
    assert done.returncode == 0, done.stderr
    return home / "runs/a", done.stdout


@pytest.fixture
def checkpoint(trained: tuple[Path, str], tmp_path: Path) -> Path:
    """A checkpoint of that run of the test's own."""
    folder, _ = trained
    return Path(shutil.copytree(folder, tmp_path / "runs/a")) / "checkpoint.msgpack"


def test_replay_prints_the_table_that_the_run_printed(
    run_cli: RunCli, checkpoint: Path, trained: tuple[Path, str]
) -> None:
    _, printed = trained
    replayed = run_cli("replay", checkpoint)
    assert replayed.returncode == 0
    assert replayed.stdout.split("\n\n")[0] == printed.split("\n\n")[0]
    assert "all recorded digests match" in replayed.stdout


def test_a_run_is_found_by_its_name_and_a_datapoint_by_its_beginning(
    run_cli: RunCli, checkpoint: Path, tmp_path: Path
) -> None:
    whole = run_cli("replay", checkpoint, "--json").stdout
    assert run_cli("replay", "a", "--json").stdout == whole
    assert run_cli("replay", "a", "--runs", tmp_path / "runs", "--json").stdout == whole
    known = run_cli("replay", "a", "--tree", "zzz").stderr.split("datapoints are: ")[1]
    point = known.split(",")[0]
    beginning = run_cli("replay", "a", "--tree", point[:10], "--json").stdout
    assert beginning == run_cli("replay", "a", "--tree", point, "--json").stdout
    assert "is ambiguous" in run_cli("replay", "a", "--tree", "").stderr


def test_json_is_json(run_cli: RunCli, checkpoint: Path) -> None:
    told = json.loads(run_cli("replay", checkpoint, "--json").stdout)
    assert told["stage"] == "done"
    assert told["digests_match"] is True
    assert [record["iteration"] for record in told["iterations"]] == [0, 1, 2]
    assert set(told["lineage"]) == {"prover", "verifier"}


@pytest.mark.parametrize("until", [0, 1, 2, 50])
def test_until_shows_the_run_as_it_was(run_cli: RunCli, checkpoint: Path, until: int) -> None:
    told = json.loads(run_cli("replay", checkpoint, "--json", "--until", until).stdout)
    assert told["events"] == until
    assert told["digests_match"] is True


def test_a_tree_is_shown_with_values_and_marks(run_cli: RunCli, checkpoint: Path) -> None:
    unknown = run_cli("replay", checkpoint, "--tree", "zzz")
    assert unknown.returncode == 2
    datapoint = unknown.stderr.split("datapoints are: ")[1].split(",")[0]
    shown = run_cli("replay", checkpoint, "--tree", datapoint).stdout
    assert datapoint in shown
    assert "expected prover" in shown
    (record, *_) = json.loads(run_cli("replay", checkpoint, "--tree", datapoint, "--json").stdout)
    children = record["tree"]["children"]
    assert len(children) == 2
    for agent, value in record["tree"]["expected_reward"].items():
        mean = sum(child["expected_reward"][agent] for child in children) / len(children)
        assert value == pytest.approx(record["tree"]["reward"][agent] + mean)


def test_a_transcript_reads_like_a_dialogue(run_cli: RunCli, checkpoint: Path) -> None:
    known = run_cli("replay", checkpoint, "--transcript", "zzz").stderr.split("datapoints are: ")[1]
    shown = run_cli("replay", checkpoint, "--transcript", known.split(",")[0]).stdout
    assert "[0] verifier:" in shown
    assert re.search(r"^end: (accept|reject): (right|wrong); rewards: ", shown, re.MULTILINE)
    assert "[0] verifier is shown" not in shown
    prompted = run_cli("replay", checkpoint, "--transcript", known.split(",")[0], "--prompts")
    assert "[0] verifier is shown:\n    system: " in prompted.stdout
    refused = run_cli("replay", checkpoint, "--prompts")
    assert refused.returncode == 2
    assert "--transcript" in refused.stderr


def test_marks_and_outcomes_have_colours_on_a_terminal_alone(checkpoint: Path) -> None:
    known = call_cli(checkpoint.parent, "replay", checkpoint, "--tree", "zzz").stderr
    command = ("replay", checkpoint, "--tree", known.split("datapoints are: ")[1].split(",")[0])
    plain = call_cli(checkpoint.parent, *command).stdout
    on_terminal = call_cli(checkpoint.parent, *command, stream=Terminal, TERM="xterm").stdout
    assert re.sub(r"\x1b\[[0-9;]*m", "", on_terminal) == plain
    red, green = (set(re.findall(rf"\x1b\[3{n}m([^\x1b]+)", on_terminal)) for n in (1, 2))
    assert red <= {": wrong", "<rejected for prover>", "<rejected for verifier>"}
    assert green <= {": right", "<chosen for prover>", "<chosen for verifier>"}
    assert red
    assert green


def test_another_selection_stands_beside_the_recorded_one(
    run_cli: RunCli, checkpoint: Path
) -> None:
    options = ("--set", "malt.pair_selection_method=interval", "--json")
    told = json.loads(run_cli("replay", checkpoint, *options).stdout)
    assert told["changed"] == ["malt.pair_selection_method"]
    verifier = [row for row in told["selections"] if row["agent"] == "verifier"]
    assert all(row["selected"] > 0 and row["selected_now"] > 0 for row in verifier)
    same = json.loads(run_cli("replay", checkpoint, "--set", "seed=5", "--json").stdout)
    counts = ("in_both", "selected", "selected_now")
    assert all(len({row[name] for name in counts}) == 1 for row in same["selections"])


def test_what_replies_cannot_tell_is_refused(run_cli: RunCli, checkpoint: Path) -> None:
    refused = run_cli("replay", checkpoint, "--set", "malt.num_responses_per_timestep=3")
    assert refused.returncode == 2
    assert "num_responses_per_timestep" in refused.stderr


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


def _newer(data: bytes) -> bytes:
    from zlib import crc32

    fields = data[:8] + (999).to_bytes(4, "little")
    return fields + crc32(fields).to_bytes(4, "little") + data[16:]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_flipped, FLIPPED),
        (lambda data: data[:-5], CUT),
        (lambda data: b"PK\x03\x04" + data, FOREIGN),
        (_newer, NEWER),
    ],
    ids=["flipped", "cut", "foreign", "newer"],
)
def test_damage_is_one_line_and_an_exit_code_of_its_own(
    run_cli: RunCli, checkpoint: Path, damage: Callable[[bytes], bytes], code: int
) -> None:
    damaged = damage(checkpoint.read_bytes())
    checkpoint.write_bytes(damaged)
    replayed = run_cli("replay", checkpoint)
    assert replayed.returncode == code
    (line,) = replayed.stderr.strip().splitlines()
    assert str(checkpoint) in line
    assert checkpoint.read_bytes() == damaged
    if code != CUT:  # resuming cuts a torn tail off; nothing else is touched
        resumed = run_cli("train", "--resume", "--run", "a")
        assert resumed.returncode == code
        assert checkpoint.read_bytes() == damaged


def test_a_missing_file_is_one_line(run_cli: RunCli) -> None:
    missing = run_cli("replay", "nowhere.msgpack")
    assert missing.returncode == 3
    assert "nowhere.msgpack" in missing.stderr


def test_replay_loads_no_heavy_package(nip_fn: RunCli, checkpoint: Path, tmp_path: Path) -> None:
    blocker = "import sys\nfor name in ('torch', 'transformers', 'trl', 'peft', 'openai'):\n"
    (tmp_path / "sitecustomize.py").write_text(blocker + "    sys.modules[name] = None\n")
    assert nip_fn("replay", checkpoint, PYTHONPATH=str(tmp_path)).returncode == 0
