"""Benchmarks by name, loaded by the real `datasets`: from its cache, and from a folder."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from nip_fn.code.benchmarks import BENCHMARKS
from nip_fn.game.datapoint import SPLITS
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.experiments.datasets import describe

from ..core.benchmark_rows import code_contests, gpqa, gsm8k, math, quality
from . import hub_cache
from .datafiles import apps_rows, buggy_rows, opened, params_of, refused, shape

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.xdist_group("data")]

# The tables of each benchmark under the names that they have on the hub.
TABLES: Mapping[str, hub_cache.Tables] = {
    "gsm8k": {"train": gsm8k(0, 40), "test": gsm8k(40, 60)},
    "math": {"train": math(0, 40), "test": math(40, 60)},
    "gpqa": {"train": gpqa(0, 60)},
    "gpqa-diamond": {"train": gpqa(0, 30)},
    "quality": {"train": quality(0, 40), "validation": quality(40, 60)},
    "code-contests": {
        "train": code_contests(0, 40),
        "valid": code_contests(40, 50),
        "test": code_contests(50, 60),
    },
    "apps": {"train": apps_rows(0, 20), "test": apps_rows(20, 40)},
    "buggy-apps": {"train": buggy_rows(0, 20), "test": buggy_rows(20, 40)},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder; the hub cannot be reached, and its cache is empty."""
    monkeypatch.setenv("NIP_FN_CACHE", str(tmp_path / "laid-out"))
    hub_cache.without_hub(monkeypatch, tmp_path)
    return tmp_path


def downloaded(folder: Path, name: str) -> Path:
    return hub_cache.downloaded(folder, name, TABLES[name])


def sizes(data: Data) -> list[int]:
    return [data.info.size(split) for split in SPLITS]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_loaded_by_its_name(folder: Path, name: str) -> None:
    hub_cache.cached(folder, name, TABLES[name])
    data = opened(name)
    assert data.info.name == name
    assert data.report.kind == BENCHMARKS[name].kind
    assert data.report.solved
    assert shape(data) == shape(opened(folder / name))
    assert not data.report.unused


@pytest.mark.parametrize("name", ["gpqa", "quality", "code-contests"])
def test_half_of_the_claims_are_right_in_every_split(folder: Path, name: str) -> None:
    data = opened(downloaded(folder, name))
    assert data.report.balance
    assert all(split.right == split.buggy > 0 for split in data.report.balance)
    assert not data.report.left_out


def test_splits_are_those_of_the_data(folder: Path) -> None:
    train, validation, test = sizes(opened(downloaded(folder, "gsm8k")))
    assert (train, validation + test) == (40, 20)  # a test split alone is divided in two
    assert sizes(opened(downloaded(folder, "quality"))) == [80, 40, 0]
    assert sizes(opened(downloaded(folder, "code-contests"))) == [80, 20, 20]
    assert min(sizes(opened(downloaded(folder, "gpqa")))) > 0


def test_a_line_says_what_a_benchmark_is_taken_for(folder: Path) -> None:
    words = {"gsm8k": "calculations", "gpqa": "options", "quality": "options", "apps": "programs"}
    for name, said in words.items():
        path = downloaded(folder, name)
        assert f", {said}: " in describe(opened(path), params_of(path))


def test_without_the_hub_one_line_says_how_to_do_without(folder: Path) -> None:
    line = refused("gpqa")
    assert "hf download --repo-type dataset Idavidrein/gpqa --local-dir" in line


def test_an_unknown_name_is_told_the_benchmarks() -> None:
    line = refused("gsm9k")
    assert all(name in line for name in BENCHMARKS)
