"""The cache of the `datasets` library, filled as by downloads from a hub that is out of reach."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from nip_fn.code.benchmarks import BENCHMARKS

from ..core.benchmark_rows import Rows
from ..lazily import datasets
from .datafiles import to_parquet

Tables = Mapping[str, Rows]  # by the name of the split


def without_hub(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the library use the cache below `folder` alone."""
    patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
    patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def downloaded(folder: Path, name: str, tables: Tables) -> Path:
    """The folder of a benchmark, as `hf download` leaves it."""
    for split, rows in tables.items():
        to_parquet(folder / name / f"data/{split}-00000-of-00001.parquet", rows)
    return folder / name


def cached(folder: Path, name: str, tables: Tables) -> None:
    """Keep a benchmark in the library's cache, as a download by its name leaves it there."""
    config = BENCHMARKS[name].config or "default"
    files = {
        split: str(downloaded(folder, name, tables) / f"data/{split}-00000-of-00001.parquet")
        for split in tables
    }
    loaded = datasets.load_dataset("parquet", config, data_files=files, cache_dir=folder / "made")
    kept = {Path(file["filename"]) for table in loaded.values() for file in table.cache_files}
    organisation, _, title = BENCHMARKS[name].hub.partition("/")
    title = datasets.naming.camelcase_to_snakecase(title)
    place = folder / "cache" / f"{organisation}___{title}" / config / "0.0.0" / "0123"
    shutil.copytree(next(iter(kept)).parent, place)
    for path in kept:
        (place / path.name).rename(place / path.name.replace("parquet", title))
