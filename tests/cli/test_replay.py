"""`nip-fn replay`, on a real run's checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Finished

NipFn = Callable[..., Finished]
FLIPPED, CUT, FOREIGN, NEWER = 4, 5, 6, 7


@pytest.fixture
def checkpoint(nip_fn: NipFn, tmp_path: Path) -> Path:
    """The checkpoint of a small run."""
    done = nip_fn("train", *SMALL, "--run", "a")
    assert done.returncode == 0, done.stderr
    return tmp_path / "runs/a/checkpoint.msgpack"


def test_replay_prints_the_table_that_the_run_printed(nip_fn: NipFn, checkpoint: Path) -> None:
    trained = nip_fn("train", "--resume", "--run", "a")
    replayed = nip_fn("replay", checkpoint)
    assert replayed.returncode == 0
    assert replayed.stdout.split("\n\n")[0] == trained.stdout.split("\n\n")[0]
    assert "all recorded digests match" in replayed.stdout


def test_json_is_json(nip_fn: NipFn, checkpoint: Path) -> None:
    told = json.loads(nip_fn("replay", checkpoint, "--json").stdout)
    assert told["stage"] == "done"
    assert told["digests_match"] is True
    assert [record["iteration"] for record in told["iterations"]] == [0, 1, 2]
    assert set(told["lineage"]) == {"prover", "verifier"}


@pytest.mark.parametrize("until", [0, 1, 2, 50])
def test_until_shows_the_run_as_it_was(nip_fn: NipFn, checkpoint: Path, until: int) -> None:
    told = json.loads(nip_fn("replay", checkpoint, "--json", "--until", until).stdout)
    assert told["events"] == until
    assert told["digests_match"] is True


def test_a_tree_is_shown_with_values_and_marks(nip_fn: NipFn, checkpoint: Path) -> None:
    unknown = nip_fn("replay", checkpoint, "--tree", "zzz")
    assert unknown.returncode == 2
    datapoint = unknown.stderr.split("datapoints are: ")[1].split(",")[0]
    shown = nip_fn("replay", checkpoint, "--tree", datapoint).stdout
    assert datapoint in shown
    assert "expected prover" in shown
    (record, *_) = json.loads(nip_fn("replay", checkpoint, "--tree", datapoint, "--json").stdout)
    children = record["tree"]["children"]
    assert len(children) == 2
    for agent, value in record["tree"]["expected_reward"].items():
        mean = sum(child["expected_reward"][agent] for child in children) / len(children)
        assert value == pytest.approx(record["tree"]["reward"][agent] + mean)


def test_a_transcript_reads_like_a_dialogue(nip_fn: NipFn, checkpoint: Path) -> None:
    known = nip_fn("replay", checkpoint, "--transcript", "zzz").stderr.split("datapoints are: ")[1]
    shown = nip_fn("replay", checkpoint, "--transcript", known.split(",")[0]).stdout
    assert "[0] verifier:" in shown
    assert "end: " in shown


def test_another_selection_stands_beside_the_recorded_one(nip_fn: NipFn, checkpoint: Path) -> None:
    options = ("--set", "malt.pair_selection_method=interval", "--json")
    told = json.loads(nip_fn("replay", checkpoint, *options).stdout)
    assert told["changed"] == ["malt.pair_selection_method"]
    verifier = [row for row in told["selections"] if row["agent"] == "verifier"]
    assert all(row["selected"] > 0 and row["selected_now"] > 0 for row in verifier)
    same = json.loads(nip_fn("replay", checkpoint, "--set", "seed=5", "--json").stdout)
    counts = ("in_both", "selected", "selected_now")
    assert all(len({row[name] for name in counts}) == 1 for row in same["selections"])


def test_what_replies_cannot_tell_is_refused(nip_fn: NipFn, checkpoint: Path) -> None:
    refused = nip_fn("replay", checkpoint, "--set", "malt.num_responses_per_timestep=3")
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
    nip_fn: NipFn, checkpoint: Path, damage: Callable[[bytes], bytes], code: int
) -> None:
    damaged = damage(checkpoint.read_bytes())
    checkpoint.write_bytes(damaged)
    replayed = nip_fn("replay", checkpoint)
    assert replayed.returncode == code
    (line,) = replayed.stderr.strip().splitlines()
    assert str(checkpoint) in line
    assert checkpoint.read_bytes() == damaged
    if code != CUT:  # what is torn is mended by resuming; nothing else is touched
        resumed = nip_fn("train", "--resume", "--run", "a")
        assert resumed.returncode == code
        assert checkpoint.read_bytes() == damaged


def test_a_missing_file_is_one_line(nip_fn: NipFn) -> None:
    missing = nip_fn("replay", "nowhere.msgpack")
    assert missing.returncode == 3
    assert "nowhere.msgpack" in missing.stderr


def test_replay_loads_no_heavy_package(nip_fn: NipFn, checkpoint: Path, tmp_path: Path) -> None:
    blocker = "import sys\nfor name in ('torch', 'transformers', 'trl', 'peft', 'openai'):\n"
    (tmp_path / "sitecustomize.py").write_text(blocker + "    sys.modules[name] = None\n")
    assert nip_fn("replay", checkpoint, PYTHONPATH=str(tmp_path)).returncode == 0
