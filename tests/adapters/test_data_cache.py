"""A data set is laid out once for its content and options, whatever happens meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nip_fn.params.data import CodeValidationParameters
from nip_fn_adapters.data.opening import CACHE_VARIABLE, DAY, cache_folder

from .datafiles import (
    GOOD,
    LOADERS,
    OWN,
    Rows,
    bad_rows,
    buggy_rows,
    opened,
    own_rows,
    to_jsonl,
    to_saved,
)

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.xdist_group("data")]


def kept() -> list[Path]:
    return sorted(cache_folder().glob("*.sqlite"))


def stamp(path: Path) -> tuple[str, int]:
    return path.name, path.stat().st_mtime_ns


@pytest.mark.parametrize("loader", LOADERS)
def test_the_same_data_and_options_are_laid_out_once(folder: Path, loader: str) -> None:
    path = LOADERS[loader](folder)
    first = opened(path)
    (file,) = kept()
    before = stamp(file)
    again = opened(path)
    assert [stamp(one) for one in kept()] == [before]
    assert again.report == first.report
    assert list(again.solutions()) == list(first.solutions())


CHANGES = {
    "validation_share": 0.3, "test_share": 0.3, "balance_classes": True, "difficulty": "interview",
    "reduce_shuffle_seed": 7, "skip_bad_rows": True, "apps_difficulty": "interview",
    "apps_solution_number": 1, "apps_exclude_flagged": False,
}  # fmt: skip


def test_every_changed_option_is_another_layout(folder: Path) -> None:
    path = LOADERS["buggy-apps saved"](folder)
    opened(path)
    for number, (name, value) in enumerate(CHANGES.items(), 2):
        opened(path, **{name: value})
        assert len(kept()) == number
    choice = {name for name in CodeValidationParameters.__struct_fields__ if "apps" in name}
    assert choice <= set(CHANGES)


@pytest.mark.parametrize("loader", [*OWN, "buggy-apps saved"])
def test_changed_content_is_laid_out_anew(folder: Path, loader: str) -> None:
    rows: Rows = buggy_rows() if "apps" in loader else own_rows()

    def make(rows: Rows) -> Path:
        if "apps" in loader:
            return to_saved(folder / "buggy", train=rows[:20], test=rows[20:])
        return OWN[loader](folder, rows)

    before = opened(make(rows))
    changed = [{**rows[0], "question": "another question"}, *rows[1:]]
    after = opened(make(changed))
    assert len(kept()) == 2
    assert before.info.hash != after.info.hash
    opened(make(rows))
    assert len(kept()) == 2


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _zeroed(data: bytes) -> bytes:
    return data[:4096] + bytes(4096) + data[8192:]


def _flipped(data: bytes) -> bytes:
    place = data.index(b"return")
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"", lambda _: b"no database", _truncated, _zeroed, _flipped,
     lambda data: data + b"x"],
    ids=["empty", "other", "truncated", "zeroed", "flipped", "longer"],
)  # fmt: skip
def test_a_damaged_layout_is_made_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    path = to_jsonl(folder / "a.jsonl", own_rows())
    before = opened(path)
    expected = list(before.solutions())
    (file,) = kept()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = opened(path)
    assert again.report == before.report
    assert list(again.solutions()) == expected
    assert [one.read_bytes() for one in kept()] == [whole]


OPEN = (
    "import sys\n"
    "from nip_fn.config.codec import from_dict\n"
    "from nip_fn_adapters.data.opening import open_data\n"
    "print(open_data(from_dict({'dataset': sys.argv[1]}).unwrap()).unwrap().info.hash)\n"
)


def opening(path: Path) -> "subprocess.Popen[str]":
    """Another process that opens the data set."""
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, str(path)], stdout=subprocess.PIPE, text=True
    )


def test_processes_that_lay_out_the_same_at_once_agree(folder: Path) -> None:
    path = to_jsonl(folder / "a.jsonl", own_rows(400))
    processes = [opening(path) for _ in range(3)]
    hashes = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert hashes == {opened(path, apps_difficulty="interview").info.hash}
    assert len(kept()) == 1
    assert os.listdir(cache_folder()) == [kept()[0].name]


def test_what_a_killed_process_leaves_does_not_matter_and_goes_after_a_day(folder: Path) -> None:
    path = to_jsonl(folder / "a.jsonl", own_rows(12_000))
    process = opening(path)
    while not (left := list(cache_folder().glob("*/data.sqlite"))):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert kept() == []
    expected = opened(to_jsonl(folder / "b.jsonl", own_rows()))
    assert expected.report.rows == len(own_rows())
    assert left[0].exists()  # it may yet be at work
    old = time.time() - DAY - 60
    for place in (left[0], left[0].parent):
        os.utime(place, (old, old))
    opened(to_jsonl(folder / "c.jsonl", own_rows()))
    assert not left[0].parent.exists()
    assert len(kept()) == 2


def test_a_refused_data_set_leaves_nothing_behind(folder: Path) -> None:
    (folder / "a.jsonl").write_text(json.dumps(GOOD) + "\n{\n")
    bad_rows("a.jsonl")
    assert os.listdir(cache_folder()) == []


def test_what_cannot_be_written_is_an_error_of_the_system(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = to_jsonl(folder / "a.jsonl", own_rows())
    (folder / "file").write_text("in the way")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "file"))
    with pytest.raises(OSError, match="file"):
        opened(path)
