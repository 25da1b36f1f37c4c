"""Rows of files and of tables of the `datasets` library, read in chunks."""

import csv
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.code.solutions import SAVE_AS_UTF_8
from nip_fn.errors import Problem

BATCH = 1000  # rows of a Parquet file in memory at a time
INSTALL = "install it: pip install 'nip-fn[data]'"

ReadRow = Result[Mapping[str, Any], Problem]
ReadRows = Iterator[tuple[str, ReadRow]]  # the place of each row, and the row


class Unreadable(Exception):
    """A file that is truncated or damaged.

    Raised, as it ends an iteration over rows half-way; `opening` makes a problem of it.
    """


def jsonl_rows(path: Path) -> ReadRows:
    """The objects of a file of JSON Lines; blank lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                # Editors on Windows put this mark at the beginning of a file in UTF-8.
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield f"line {number}", _json_object(line)


def _json_object(line: bytes) -> ReadRow:
    try:
        value = msgspec.json.decode(line)
    except UnicodeDecodeError:
        return Failure(Problem("not UTF-8", remedy=SAVE_AS_UTF_8))
    except (msgspec.DecodeError, RecursionError) as error:
        return Failure(Problem(f"not JSON: {error}"))
    if not isinstance(value, dict):
        return Failure(Problem(f"a {type(value).__name__}, not an object"))
    return Success(value)


def csv_rows(path: Path) -> ReadRows:
    """The rows below the header of a file in UTF-8; other bytes become halves of surrogates."""
    with _open_csv(path, "surrogateescape") as file:
        reader = csv.DictReader(file, strict=True)
        number = 0
        while True:
            number += 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem = Problem(f"not CSV: {error} (line {reader.line_num})")
                yield f"row {number}", Failure(problem)
                continue
            yield f"row {number}", _full(row)


def _open_csv(path: Path, errors: str) -> TextIO:
    # The module's own limit is 128 KiB, which a column of tests can exceed.
    csv.field_size_limit(1 << 30)
    return path.open(newline="", encoding="utf-8-sig", errors=errors)


def _full(row: dict[str | Any, Any]) -> ReadRow:
    """The row, unless it is longer than the header; one that is shorter lacks its last columns."""
    if None in row:
        return Failure(Problem(f"{len(row[None])} more columns than the header has"))
    return Success(row)


def parquet_rows(path: Path) -> ReadRows:
    """The rows of a Parquet file; raises Unreadable."""
    import pyarrow
    import pyarrow.parquet as parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", Success(row)
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise Unreadable(f"{path}, after row {number}: {_line(error)}") from error


# By the end of a file's name.
READERS: dict[str, Callable[[Path], ReadRows]] = {
    ".jsonl": jsonl_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
}


def table_rows(table: Any) -> ReadRows:
    """The rows of a table of the `datasets` library; raises Unreadable."""
    number = 0
    try:
        for number, row in enumerate(table, 1):
            yield f"row {number}", Success(row)
    except Exception as error:  # the library documents none
        raise Unreadable(f"after row {number}: {_line(error)}") from error


def columns_of(path: Path) -> Result[list[str], Problem]:
    """The names of a file's columns; those of the first hundred objects, of a file of JSON."""
    if path.suffix.lower() == ".parquet":
        return _parquet_columns(path)
    if path.suffix.lower() == ".csv":
        return _csv_columns(path)
    head = [row.alt(partial(Problem.at, address=address)) for address, row in _head(path)]
    names = list(dict.fromkeys(chain(*(row.value_or({}) for row in head))))
    return Success(names) if names or not head else head[0].map(list)


def _head(path: Path) -> ReadRows:
    return islice(jsonl_rows(path), 100)


def _csv_columns(path: Path) -> Result[list[str], Problem]:
    with _open_csv(path, "replace") as file:
        try:
            return Success(next(csv.reader(file, strict=True), []))
        except csv.Error as error:
            return Failure(Problem(f"not CSV: {error}"))


def _parquet_columns(path: Path) -> Result[list[str], Problem]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        return Failure(Problem("Parquet needs the data extra", remedy=INSTALL))
    try:
        return Success(list(parquet.read_schema(path).names))
    except pyarrow.ArrowException as error:
        return Failure(Problem(f"not a Parquet file: {_line(error)}"))


def _line(error: Exception) -> str:
    """The message of an error, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def from_hub(name: str, config: str | None = None) -> Result[Mapping[str, Any], Problem]:
    """The tables of a data set of the hub, one a split; `config` names one of several there."""
    elsewhere = (
        f"on a machine that reaches the hub, `hf download --repo-type dataset {name} --local-dir "
        "DIRECTORY` fetches it, and --dataset DIRECTORY reads it"
    )
    # A data set that is made by a script, as APPS is; the hub keeps it converted, too.
    options = {"revision": "refs/convert/parquet"}
    if config is None:
        loaded = _load(lambda datasets: _unscripted(datasets, name, name, **options))
    else:
        loaded = _load(lambda datasets: datasets.load_dataset(name, config))
    return loaded.alt(
        lambda problem: problem if problem.remedy else replace(problem, remedy=elsewhere)
    )


def from_directory(path: Path) -> Result[Mapping[str, Any], Problem]:
    """The tables that the `datasets` library saved, or the data files that were downloaded."""
    saved = any((path / name).exists() for name in ("dataset_dict.json", "state.json"))
    if saved:
        return _load(lambda datasets: datasets.load_from_disk(str(path)))
    # Of APPS, the script that made it lies beside the data, which are files of JSON lines.
    options = {"data_dir": str(path)}
    return _load(lambda datasets: _unscripted(datasets, str(path), "json", **options)).alt(
        lambda problem: replace(
            problem,
            problem=f"no data set is in this folder ({problem.problem})",
            remedy=problem.remedy
            or "name a .jsonl, .csv or .parquet file, or a folder that "
            "`datasets` saved or that holds the data files of one of the hub",
        )
    )


def _unscripted(datasets: Any, name: str, otherwise: str, **options: str) -> Any:
    """A data set; if only a script could make it, what `otherwise` and the options name."""
    try:
        return datasets.load_dataset(name)
    except RuntimeError as error:
        if "script" not in str(error):
            raise
        return datasets.load_dataset(otherwise, **options)


def _load(load: Callable[[Any], Any]) -> Result[Mapping[str, Any], Problem]:
    try:
        import datasets
    except ImportError:
        return Failure(Problem("needs the data extra", remedy=INSTALL))
    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        loaded = load(datasets)
    except Exception as error:  # of the library, the hub or the network
        return Failure(Problem(_line(error)))
    tables = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    if not any(len(table) for table in tables.values()):
        return Failure(Problem("holds no rows"))
    return Success(tables)


def tables_hash(tables: Mapping[str, Any]) -> str:
    """A hash of the content of the tables' files; tables in memory have one of their own."""
    digest = blake2b(digest_size=16)
    for split, table in tables.items():
        paths = [Path(file["filename"]) for file in table.cache_files]
        digest.update(f"{split}:{digest_of(paths) if paths else table._fingerprint}".encode())
    return digest.hexdigest()


def digest_of(paths: Iterable[Path]) -> str:
    """A hash of the content of files."""
    digest = blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
