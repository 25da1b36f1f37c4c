"""`nip-fn data` and `nip-fn train --dataset`, as a person types them, on files of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL, Finished, RunCli, needs_bubblewrap

USAGE, RUN, FAULT, SYSTEM = 2, 3, 9, 10


def add(n: int, right: bool = True) -> str:
    return f"def add{n}(a, b):\n    return a + b {'+' if right else '-'} {n}\n"


def rows(problems: int = 40) -> list[dict[str, Any]]:
    """A right and a buggy solution of each problem, and tests that tell them apart."""
    return [
        {
            "problem_id": f"add/{n}",
            "question": f"Addiere a, b und {n} – 加法",
            "solution": add(n, right),
            "label": int(right),
            "difficulty": "easy" if n % 2 else "hard",
            "tests": f"add{n}(1, 2) == {n + 3}\nadd{n}(0, 0) == {n}",
        }
        for n in range(1, problems + 1)
        for right in (True, False)
    ]


def write(path: Path, lines: list[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of forty problems."""
    return write(tmp_path / "own.jsonl", rows())


def only_line(finished: Finished) -> str:
    """What a command that failed said."""
    assert finished.returncode != 0
    (line,) = finished.stderr.strip().splitlines()
    assert not finished.stdout
    return line


# -------------------------------------------------------------------------------------------- stats


def test_stats_tell_what_a_data_set_holds(run_cli: RunCli, own: Path) -> None:
    done = run_cli("data", "stats", own.name)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for word in ("train", "validation", "test", "easy", "hard", "50%", "hash"):
        assert word in done.stdout
    told = json.loads(run_cli("data", "stats", own.name, "--json").stdout)
    assert told["info"]["name"] == own.name
    assert told["info"]["hash"] in done.stdout
    assert [split["split"] for split in told["splits"]] == ["train", "validation", "test"]
    assert sum(split["datapoints"] for split in told["splits"]) == 80
    assert sum(split["problems"] for split in told["splits"]) == 40
    assert sum(split["right"] for split in told["splits"]) == 40
    assert sum(split["buggy"] for split in told["splits"]) == 40
    assert sum(split["with_tests"] for split in told["splits"]) == 80
    assert told["lengths_in"] == "characters"
    assert told["splits"][0]["question"]["longest"] == len("Addiere a, b und 40 – 加法")
    assert sum(sum(split["difficulties"].values()) for split in told["splits"]) == 80


def test_stats_tell_what_was_left_out(run_cli: RunCli, tmp_path: Path) -> None:
    lines = [*rows(), rows()[0], {**rows()[1], "author": "me"}, "{"]
    write(tmp_path / "a.jsonl", [{**rows()[0], "author": "me"}, *lines])
    options = ("--skip-bad-rows", "--set", "dataset_options.difficulty=easy")
    done = run_cli("data", "stats", "a.jsonl", *options)
    assert "1 bad row" in done.stderr
    told = json.loads(run_cli("data", "stats", "a.jsonl", *options, "--json").stdout)
    assert told["bad"] == 1
    assert told["left_out"] == [
        {"why": "duplicate", "right": 2, "buggy": 1, "unlabelled": 0},
        {"why": "other difficulty", "right": 20, "buggy": 20, "unlabelled": 0},
    ]
    assert told["unused"] == ["author"]
    for what in (
        "left out 1 bad row",
        "left out 3 rows (2 right, 1 buggy) that repeat",
        "left out 40 rows (20 right, 20 buggy) of another difficulty",
    ):
        assert what in done.stdout
        assert what in done.stderr  # so that no command leaves rows out in silence
    assert "author" in done.stdout


def test_stats_can_balance_and_limit_nothing_else(run_cli: RunCli, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [row for n, row in enumerate(rows()) if n % 4 < 3])
    balance = ("--set", "dataset_options.balance_classes=true")
    told = json.loads(run_cli("data", "stats", "a.jsonl", *balance, "--json").stdout)
    assert all(split["right"] == split["buggy"] for split in told["splits"])
    assert [one["why"] for one in told["left_out"]] == ["surplus"]


def test_names_that_look_like_markup_are_shown_as_they_are(run_cli: RunCli, tmp_path: Path) -> None:
    lines = [
        {**row, "problem_id": "[/red] :smile:", "difficulty": "[/b] :smile:", "question": "[/x] q"}
        | {"tests": "f('[/x]') == ':smile:'", "col[/y]": 1}
        for row in rows(1)
    ]
    write(tmp_path / "a.jsonl", lines)
    shown = run_cli("data", "show", "a.jsonl", "[/red] :smile:")
    assert shown.returncode == 0, shown.stderr
    for text in ("[/red] :smile:", "[/b] :smile:", "[/x] q", "f('[/x]') == ':smile:'"):
        assert text in shown.stdout
    told = run_cli("data", "stats", "a.jsonl")
    assert told.returncode == 0, told.stderr
    assert "[/b] :smile:" in told.stdout
    assert "col[/y]" in told.stdout


def test_tokens_need_a_tokenizer_that_is_there(run_cli: RunCli, own: Path) -> None:
    failed = run_cli("data", "stats", own.name, "--tokenizer", "no/such", HF_HUB_OFFLINE="1")
    assert failed.returncode == USAGE
    assert "no/such" in failed.stderr
    assert "Traceback" not in failed.stderr


# -------------------------------------------------------------------------------------------- check


def test_a_sound_data_set_has_no_fault(run_cli: RunCli, own: Path) -> None:
    done = run_cli("data", "check", own.name, "--no-prove")
    assert done.returncode == 0, done.stderr
    assert "no fault found" in done.stdout


@needs_bubblewrap
def test_labels_are_proven_and_a_wrong_one_is_named(run_cli: RunCli, tmp_path: Path) -> None:
    lines = rows(6)
    write(tmp_path / "a.jsonl", lines)
    done = run_cli("data", "check", "a.jsonl", "--seconds", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "12 proven by tests, 0 not borne out" in done.stdout
    wrong = {**lines[2], "label": 0}, {**lines[5], "label": 1}
    write(tmp_path / "a.jsonl", [*lines[:2], wrong[0], *lines[3:5], wrong[1], *lines[6:]])
    failed = run_cli("data", "check", "a.jsonl", "--seconds", "2")
    assert failed.returncode == FAULT
    (one,) = [line for line in failed.stdout.splitlines() if "add/2)" in line]
    assert "labelled as having a bug, but all 2 tests pass" in one
    (other,) = [line for line in failed.stdout.splitlines() if "add/3)" in line]
    assert "labelled right, but 2 of 2 tests fail (2 with another output)" in other
    assert "Traceback" not in failed.stderr


def test_without_tests_nothing_is_proven(run_cli: RunCli, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{**row, "tests": None} for row in rows(3)])
    done = run_cli("data", "check", "a.jsonl")
    assert done.returncode == 0, done.stderr
    assert "no label is proven" in done.stdout


def test_a_split_with_one_label_alone_is_told(run_cli: RunCli, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", rows(30)[::2])
    told = run_cli("data", "check", "a.jsonl", "--no-prove")
    assert told.returncode == FAULT
    assert "have the same label" in told.stdout


def test_views_are_measured_and_shown(run_cli: RunCli) -> None:
    told = run_cli("data", "stats", "builtin:tea")
    assert "view of prover" in told.stdout
    assert "view of verifier" in told.stdout
    assert "solution" not in told.stdout
    (split, *_) = json.loads(run_cli("data", "stats", "builtin:tea", "--json").stdout)["splits"]
    assert split["views"]["verifier"]["longest"] == len("Poured: 0T 1T 2T 3M 4M 5M")
    shown = run_cli("data", "show", "builtin:tea", "012345").stdout
    for words in ("Poured: 0", "Tastes: 0", "verifier:", "prover:"):
        assert words in shown


# --------------------------------------------------------------------------------------------- show


def test_a_problem_is_shown_with_its_bug_marked(run_cli: RunCli, own: Path) -> None:
    shown = run_cli("data", "show", own.name, "add/7").stdout
    for text in ("Addiere a, b und 7 – 加法", "right", "has a bug", "add7(1, 2) == 10"):
        assert text in shown
    assert "-     return a + b + 7" in shown
    assert "+     return a + b - 7" in shown


def test_a_datapoint_is_shown_by_the_beginning_of_its_id(run_cli: RunCli, own: Path) -> None:
    shown = run_cli("data", "show", own.name, "add/7").stdout
    (bug,) = [line for line in shown.splitlines() if "has a bug" in line]
    name = bug.split(",")[0]
    one = run_cli("data", "show", own.name, name[:10])
    assert one.returncode == 0
    assert "has a bug" in one.stdout
    assert ": right" not in one.stdout


@pytest.mark.parametrize(("name", "words"), [("zzz", "no such"), ("", "several")])
def test_what_cannot_be_shown_is_one_line(
    run_cli: RunCli, own: Path, name: str, words: str
) -> None:
    failed = run_cli("data", "show", own.name, name)
    assert failed.returncode == USAGE
    assert words in only_line(failed)


# ----------------------------------------------------------------------------------------- bad rows

BAD = ["{", {**rows()[0], "label": 7}, {"question": "q", "label": 1}, {**rows()[0], "tests": "?"}]


@pytest.mark.parametrize(
    "command",
    [("data", "stats"), ("data", "check", "--no-prove"), ("train", *SMALL, "--dataset")],
    ids=["stats", "check", "train"],
)
def test_every_bad_row_is_a_line_with_file_row_and_field(
    run_cli: RunCli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    write(tmp_path / "a.jsonl", [*rows(), *BAD])
    failed = run_cli(*command, "a.jsonl")
    assert failed.returncode == USAGE
    assert not failed.stdout
    *told, last = failed.stderr.splitlines()
    assert [line.split(": ")[0] for line in told] == [
        "a.jsonl, line 81, row",
        "a.jsonl, line 82, label",
        "a.jsonl, line 83, solution",
        "a.jsonl, line 84, tests",
    ]
    assert "4 bad rows" in last
    assert "--skip-bad-rows" in last
    assert not (tmp_path / "runs").exists()
    done = run_cli(*command, "a.jsonl", "--skip-bad-rows")
    assert done.returncode == 0, done.stderr
    assert "left out 4 bad rows" in done.stderr


def test_of_very_many_bad_rows_some_are_shown_and_all_counted(
    run_cli: RunCli, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", [rows()[0], *["{"] * 3000])
    for command, shown in (("stats", 20), ("check", 1000)):
        failed = run_cli("data", command, "a.jsonl")
        *told, last = failed.stderr.splitlines()
        assert len(told) == shown
        assert "3,000 bad rows" in last
        assert f"{3000 - shown} of them not shown" in last


def test_a_file_in_another_encoding_is_one_line(run_cli: RunCli, tmp_path: Path) -> None:
    accents = "".join(f"café {n},oui,1\n" for n in range(3000))
    (tmp_path / "a.csv").write_bytes(f"question,solution,label\n{accents}q,a,2\n".encode("latin-1"))
    told, last = run_cli("data", "check", "a.csv").stderr.splitlines()
    assert told.startswith("a.csv, row 1, question: character 4 is not UTF-8; save the file in UTF")
    assert told.endswith("(at least 1,000 bad rows of the kind)")
    assert "3,001 bad rows (2001 of them not shown)" in last
    (tmp_path / "a.jsonl").write_bytes(
        b'{"question": "\xe9"}\n' * 2 + b'{\n{"label": 1, "question": "q", "solution": "s"}\n'
    )
    both = run_cli("data", "check", "a.jsonl").stderr
    assert "line 1, row: not UTF-8; save the file in UTF-8 (2 bad rows of" in both
    assert "line 3, row: not JSON" in both


def test_check_tells_what_a_data_set_is_taken_for(run_cli: RunCli, tmp_path: Path) -> None:
    prose = [{"question": f"{n}?", "solution": "It is.", "label": n % 2} for n in range(300)]
    write(tmp_path / "a.jsonl", prose)
    done = run_cli("data", "check", "a.jsonl")
    assert done.returncode == 0, done.stderr
    told, last = done.stdout.splitlines()
    assert re.match(r"data a.jsonl, answers in prose: \d+ train \(\d+% right\), ", told)
    assert last == "a.jsonl: no fault found"  # and not a word of tests
    as_code = run_cli("data", "check", "a.jsonl", "--set", "dataset_options.kind=code")
    assert "data a.jsonl, programs: " in as_code.stdout
    assert "no solution has tests" in as_code.stdout
    write(tmp_path / "small.jsonl", prose[:40])
    assert "% right; few)" in run_cli("data", "check", "small.jsonl").stdout


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b""),
        ("a.jsonl", b"\x80\x04"),
        ("a.csv", b'"question'),
        ("a.csv", bytes(range(256))),
        ("a.csv", b"question,solution,label\n"),
        ("a.parquet", b"PAR1"),
        ("a.txt", b""),
        ("missing.jsonl", None),
        ("builtin:nothing", None),
        ("hf:lrhammond/buggy-apps", None),
        ("hf:", None),
        ("/proc/self", None),
    ],
)
def test_no_data_set_is_one_line(
    run_cli: RunCli, tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    failed = run_cli("data", "stats", name, HF_HUB_OFFLINE="1")
    assert failed.returncode == USAGE
    assert name in only_line(failed)
    if name == "missing.jsonl":
        failed = run_cli("train", *SMALL, "--dataset", name)
        assert failed.returncode == USAGE
        assert name in only_line(failed)
        assert not (tmp_path / "runs").exists()


def test_odd_column_names_do_not_stop_anything(run_cli: RunCli, tmp_path: Path) -> None:
    text = "question,solution,label,caf\xe9,\n" + "".join(
        f"q{n},print({n}),{n % 2},caf\xe9,\n" for n in range(20)
    )
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    done = run_cli("data", "stats", "a.csv")
    assert done.returncode == 0, done.stderr
    assert "columns that nothing is read from: caf" in done.stdout


# ---------------------------------------------------------------------------------------- the cache


def test_a_cache_that_cannot_be_written_is_one_line(run_cli: RunCli, own: Path) -> None:
    own.with_name("file").write_text("in the way")
    failed = run_cli("data", "stats", own.name, NIP_FN_CACHE=str(own.with_name("file")))
    assert failed.returncode == SYSTEM
    assert "file/datasets" in only_line(failed)


def test_a_full_disk_is_one_line(own: Path, environment: dict[str, str]) -> None:
    write(own, rows(2000))
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from nip_fn_cli.main import main\n"
        "sys.argv = ['nip-fn', 'data', 'stats', 'own.jsonl']\n"
        "main()\n"
    )
    failed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=own.parent,
        env={**environment, "NIP_FN_CACHE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == SYSTEM, failed.stderr
    assert "nip-fn/datasets" in only_line(failed)
    assert os.listdir(own.parent / ".cache/nip-fn/datasets") == []


# ----------------------------------------------------------------------------------------- training


def test_a_run_on_a_file_trains_replays_and_resumes(
    run_cli: RunCli, own: Path, tmp_path: Path
) -> None:
    done = run_cli("train", "--trainer", "malt", *SMALL, "--dataset", own.name, "--run", "a")
    assert done.returncode == 0, done.stderr
    replayed = run_cli("replay", "runs/a")
    assert replayed.returncode == 0, replayed.stderr
    assert "all recorded digests match" in replayed.stdout
    told = json.loads(run_cli("data", "stats", own.name, "--json").stdout)
    recorded = (tmp_path / "runs/a/checkpoint.msgpack").read_bytes()
    assert told["info"]["hash"].encode() in recorded
    resumed = run_cli("train", "--resume", "--run", "a")
    assert resumed.returncode == 0, resumed.stderr
    more = run_cli("train", "--resume", "--run", "a", "--more-iterations", "1")
    assert more.returncode == 0, more.stderr
    own.unlink()
    assert run_cli("replay", "runs/a").returncode == 0  # needs no data


def test_the_same_data_make_the_same_run(run_cli: RunCli, own: Path, tmp_path: Path) -> None:
    def digest(name: str, **variables: str) -> str:
        done = run_cli("train", *SMALL, "--dataset", own.name, "--run", name, **variables)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("digest")]
        return line

    first = digest("a", PYTHONHASHSEED="1")
    write(own, rows()[::-1])  # in another order
    assert digest("b", PYTHONHASHSEED="2", NIP_FN_CACHE=str(tmp_path / "other")) == first


def test_a_run_does_not_go_on_with_other_data(run_cli: RunCli, own: Path) -> None:
    assert run_cli("train", *SMALL, "--dataset", own.name, "--run", "a").returncode == 0
    before = own.read_bytes()
    checkpoint = own.parent / "runs/a/checkpoint.msgpack"
    recorded = checkpoint.read_bytes()
    write(own, [{**rows()[0], "question": "another"}, *rows()[1:]])
    changed = run_cli("train", "--resume", "--run", "a")
    assert changed.returncode == RUN
    assert "not the data" in only_line(changed)
    own.unlink()
    gone = run_cli("train", "--resume", "--run", "a")
    assert gone.returncode == USAGE
    assert own.name in only_line(gone)
    write(own, ["{"])
    broken = run_cli("train", "--resume", "--run", "a")
    assert broken.returncode == USAGE
    assert "Traceback" not in broken.stderr
    assert checkpoint.read_bytes() == recorded
    own.write_bytes(before)
    assert run_cli("train", "--resume", "--run", "a").returncode == 0


def test_held_out_problems_are_those_of_the_chosen_split(run_cli: RunCli, own: Path) -> None:
    for split in ("validation", "test"):
        options = ("--set", f"test_dataset_split={split}", "--set", "text_rl.test_scheme=all")
        done = run_cli("train", *SMALL, "--dataset", own.name, "--run", split, *options)
        assert done.returncode == 0, done.stderr
        told = json.loads(run_cli("replay", f"runs/{split}", "--json").stdout)
        tested = {name.split(".")[0] for name in told["iterations"][0]}
        assert split in tested
        assert not tested & ({"validation", "test"} - {split})


def test_shares_that_leave_nothing_to_train_with_are_refused(run_cli: RunCli, own: Path) -> None:
    options = ("--set", "dataset_options.test_share=0.9")
    for command in (("data", "stats", own.name), ("train", *SMALL, "--dataset", own.name)):
        failed = run_cli(*command, *options)
        assert failed.returncode == USAGE
        assert "test_share" in only_line(failed)


def test_a_split_that_is_needed_and_has_one_label_is_one_line(
    run_cli: RunCli, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", rows()[::2])
    for options in ((), ("--dry-run",)):
        failed = run_cli("train", *SMALL, "--dataset", "a.jsonl", *options)
        assert failed.returncode == USAGE
        assert "'train' have label 1" in only_line(failed)


def test_a_run_on_rows_with_views_shows_each_agent_its_own(run_cli: RunCli, tmp_path: Path) -> None:
    lines = [
        {"question": "Is it so?", "label": n % 2, "view.verifier": f"V{n}", "view.prover": f"P{n}"}
        for n in range(80)
    ]
    write(tmp_path / "a.jsonl", lines)
    views = ("--set", "code_validation.system_prompt_version=views")
    command = ("train", *SMALL, "--dataset", "a.jsonl", *views)
    done = run_cli(*command, "--run", "a")
    assert done.returncode == 0, done.stderr
    assert run_cli("replay", "runs/a").returncode == 0
    write(tmp_path / "a.jsonl", [line | {"view.provr": "P"} for line in lines])
    failed = run_cli(*command)
    assert failed.returncode == USAGE
    assert "'provr'" in only_line(failed)


def test_a_split_that_is_needed_and_empty_is_one_line(run_cli: RunCli, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{**row, "split": "test"} for row in rows()])
    failed = run_cli("train", *SMALL, "--dataset", "a.jsonl")
    assert failed.returncode == USAGE
    assert "'train'" in only_line(failed)
