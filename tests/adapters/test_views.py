"""Data with a view for each role: rows of files and of tables, which need not be about code."""

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nip_fn.code.solutions import write_row
from nip_fn.game.datapoint import SPLITS
from nip_fn.keys import key
from nip_fn.worlds import tea
from nip_fn_adapters.data.opening import Data

from .datafiles import OWN, bad_rows, opened, to_csv, to_jsonl, to_parquet

Rows = list[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIP_FN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def tea_rows(num: int) -> Rows:
    """Rows as a user would write them, with one question and no solution."""
    points = map(tea.datapoint_of, islice(tea.worlds(key(7), "train"), num))
    return [
        {"question": one.question, "label": one.label, "views": dict(one.views)} for one in points
    ]


def flat(rows: Rows) -> Rows:
    """A column for each view."""
    return [
        {"question": row["question"], "label": row["label"]}
        | {f"view.{name}": text for name, text in row["views"].items()}
        for row in rows
    ]


def content(data: Data) -> set[tuple[str, str, str, int, int, tuple[tuple[str, str], ...]]]:
    return {
        (split, one.id, one.problem_id, one.label, one.stance, one.views)
        for split in SPLITS
        for one in data.source(split, range(data.info.size(split)))
    }


def test_tea_like_rows_are_all_kept(folder: Path) -> None:
    """2,400 rows of few tastes: taken for code, 1,266 were left out, and all the negative ones."""
    found = opened(to_jsonl(folder / "tea.jsonl", tea_rows(2400)))
    assert found.report.rows == 2400
    assert not found.report.left_out
    assert found.report.views == (("prover", "verifier"),)
    for split in found.report.balance:
        assert min(split.right, split.buggy) > 100
    right = sum(split.right for split in found.report.balance)
    assert right == sum(split.buggy for split in found.report.balance) == 1200


def test_the_builtin_tea_is_read_back_from_a_file(folder: Path) -> None:
    builtin = opened("builtin:tea")
    rows = [write_row(laid.solution) | {"split": laid.split} for laid in builtin.solutions()]
    assert content(opened(to_jsonl(folder / "tea.jsonl", rows))) == content(builtin)


FLAT: Mapping[str, Callable[[Path, Rows], Path]] = {
    "flat csv": lambda folder, rows: to_csv(folder / "flat.csv", flat(rows)),
    "flat parquet": lambda folder, rows: to_parquet(folder / "flat.parquet", flat(rows)),
}


def test_every_form_of_file_holds_the_same_views(folder: Path) -> None:
    rows = tea_rows(60)
    expected = {one[1:] for one in content(opened(to_jsonl(folder / "tea.jsonl", rows)))}
    assert len(expected) == 60
    for form, make in {**OWN, **FLAT}.items():
        (folder / form).mkdir()
        found = opened(make(folder / form, rows))
        assert {one[1:] for one in content(found)} == expected, form
        assert not found.report.unused, form


def test_rows_that_differ_in_a_view_are_different_rows(folder: Path) -> None:
    row = {"question": "q", "solution": "42", "views": {"verifier": "a", "prover": "b"}, "label": 1}
    other = {**row, "views": {"verifier": "a", "prover": "c"}, "label": 0}
    found = opened(to_jsonl(folder / "a.jsonl", [row, other, row]))
    assert [one.why for one in found.report.left_out] == ["duplicate"]
    assert found.report.rows == 3
    (line,) = bad_rows(to_jsonl(folder / "b.jsonl", [row, {**row, "label": 0}]))
    assert "the other way round" in line


def test_rows_of_one_problem_stay_in_one_split(folder: Path) -> None:
    rows = [{**row, "problem_id": f"table {n // 4}"} for n, row in enumerate(tea_rows(200))]
    splits: dict[str, set[str]] = {}
    for split, _, problem, *_ in content(opened(to_jsonl(folder / "a.jsonl", rows))):
        splits.setdefault(problem, set()).add(split)
    assert len(splits) == 50
    assert all(len(where) == 1 for where in splits.values())
