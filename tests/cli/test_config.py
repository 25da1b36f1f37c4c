"""Configuration files of every kind: TOML, JSON, and those that the nip library saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from nip_fn.config.codec import get, merge, nest
from nip_fn.params.update_schedule import ContiguousPeriodicUpdateSchedule
from nip_fn_adapters.experiments.settings import read_table, resolve
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.exits import Exit
from tests.cli.conftest import SMALL, RunCli
from tests.core.test_nip_config import V1, V2


def written(folder: Path, text: str, name: str = "c.json") -> Path:
    """A file with that text."""
    file = folder / name
    file.write_text(text)
    return file


def read(file: Path, *sets: str) -> dict[str, Any]:
    """The table of a file and --set."""
    return overrides(file, sets=sets)


def test_json_says_what_toml_says(tmp_path: Path) -> None:
    toml = written(tmp_path, "seed = 3\n[rl]\nlr = 0.5\n", "c.toml")
    same = written(tmp_path, '{"seed": 3, "rl": {"lr": 0.5}}')
    assert read(toml) == read(same) == {"seed": 3, "rl": {"lr": 0.5}}


JSON5 = """// A configuration as people write it: 'both' quotes, tabs, "names" without any.
{
	seed: 7, // the first
	'dataset': 'it\\'s a "file" // no comment', /* two
	lines */
	"rl": {lr: 1e-4, num_iterations: 0x2,},
	agents:{_default:{api_base_url: "http://localhost:1/v1", use_dummy_api: true, temperature: .5}},
}
"""


def test_json5_has_comments_and_its_own_quotes(tmp_path: Path) -> None:
    told = read_table(written(tmp_path, JSON5, "c.json5")).unwrap()
    agent = {"api_base_url": "http://localhost:1/v1", "use_dummy_api": True, "temperature": 0.5}
    assert told == {
        "seed": 7,
        "dataset": 'it\'s a "file" // no comment',
        "rl": {"lr": 1e-4, "num_iterations": 2},
        "agents": {"_default": agent},
    }


def test_a_value_of_set_may_be_json_and_a_version_a_number(tmp_path: Path) -> None:
    schedule = '{"_type": "ContiguousPeriodicUpdateSchedule", "period": 2, "start": 0, "stop": 1}'
    given = (
        f"agents.verifier.update_schedule={schedule}",
        "agents.verifier.checkpoint_version=3",
        "agents.verifier.system_prompt_template={{ question }}",
    )
    agent = resolve(overrides(sets=given)).agents[1]
    assert agent.update_schedule == ContiguousPeriodicUpdateSchedule(period=2, start=0, stop=1)
    assert agent.checkpoint_version == "3"
    assert agent.system_prompt_template == "{{ question }}"


@pytest.mark.parametrize("saved", [V2, V1], ids=["v2", "v1"])
def test_a_saved_configuration_is_read_with_its_own_defaults(
    tmp_path: Path, saved: dict[str, Any]
) -> None:
    params = resolve(read(written(tmp_path, json.dumps(saved)), "rl.lr=0.25", "seed=9"))
    assert params.code_validation.system_prompt_version == "v1"
    assert params.text_rl.test_scheme == "first_and_last"
    assert (params.rl.lr, params.seed) == (0.25, 9)
    assert get(params, "agents.verifier.model_provider") != "local"
    assert get(params, "agents.verifier.merge_same_role_messages") is None


def test_a_saved_configuration_trains(run_cli: RunCli, tmp_path: Path) -> None:
    file = written(tmp_path, json.dumps(V2))
    few = (
        "--iterations",
        "1",
        "--set",
        "rl.rollouts_per_iteration=4",
        "--dataset",
        "builtin:python",
    )
    options = (*SMALL, *few, "--run", "a")
    done = run_cli("train", file, *options)
    assert done.returncode == 0, done.stderr
    assert "use_dummy_api" not in done.stderr  # which the file does not contain
    resumed = run_cli("train", file, *options, "--resume")
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.json", "{", ["not valid JSON"]),
        ("c.json", "[1]", ["expected an object"]),
        ("c.json", "[" * 100_000, ["not valid JSON"]),
        ("c.toml", "a = " + "[" * 5_000, ["not valid TOML"]),
        ("c.yaml", "a: [", ["not valid YAML"]),
        ("c.json5", "{a: [", ["not valid JSON5"]),
        ("c.yaml", "- 1", ["expected a table"]),
        ("c.yml", "[" * 5_000, ["not valid YAML"]),
        ("c.ini", "a: 1", [".toml, .json, .json5 or .yaml"]),
        ("c", "", [".toml, .json, .json5 or .yaml"]),
        ("c.json", json.dumps(merge(V2, {"trainer": "spg"})), ["trainer", "spg"]),
        ("c.json", json.dumps(merge(V2, nest("rl.zzz", 1))), ["rl.zzz", "no such parameter"]),
        ("c.json", json.dumps(merge(V2, nest("rl.frames_per_batch", 0))), ["rl.frames_per_batch"]),
        ("c.json", '{"_package_version": "2.0.0"}', ["scenario", "missing"]),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_address_and_the_cause(
    tmp_path: Path, name: str, text: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, text, name)
    line = refused(file, capsys)
    assert line.startswith(f"nip-fn: {file}: ")
    assert all(word in line for word in words), line


def test_bytes_that_are_no_text_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(b"\xff\xfe{}")
    assert refused(file, capsys).startswith(f"nip-fn: {file}: not UTF-8 text")


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(tmp_path / "c.toml", capsys)
    assert line == f"nip-fn: {tmp_path / 'c.toml'}: No such file or directory"


@pytest.mark.parametrize("assignment", ["rl.lr", "=3", "rl..lr=3", " =3"])
def test_an_assignment_without_its_parts_is_refused(
    assignment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(None, capsys, assignment)
    assert line.startswith(f"nip-fn: --set {assignment}: expected a parameter")
    assert line.endswith("as in --set rl.lr=1e-4")


def refused(file: Path | None, capsys: pytest.CaptureFixture[str], *sets: str) -> str:
    """The one line with which a file and --set end a command."""
    with pytest.raises(typer.Exit) as ended:
        overrides(file, sets=sets)
    assert ended.value.exit_code == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    return line
