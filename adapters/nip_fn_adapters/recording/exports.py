"""A run in the formats of other programs, as files in a folder."""

import csv
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nip_fn.export.arrays import plain_arrays
from nip_fn.export.inspect import inspect_log
from nip_fn.export.rows import trl_row
from nip_fn.training.trainer import Rows
from nip_fn_adapters.providers.api.rows import training_file
from nip_fn_adapters.recording.runs import Columns, Run
from nip_fn_adapters.recording.store import below
from nip_fn_adapters.recording.transcripts import written

# (a run, an existing folder) -> the files that were written there.
Exporter = Callable[[Run, Path], Iterator[Path]]

TABLES: dict[str, Callable[[Run], Columns]] = {
    "games": Run.games,
    "rounds": Run.rounds,
    "pairs": Run.pairs,
    "metrics": Run.metrics,
    "usage": Run.usage,
}


def to_trl(run: Run, folder: Path) -> Iterator[Path]:
    """A file of JSON Lines for each group and kind of rows, which `datasets.load_dataset` reads.

    Columns: iteration, prompt, and chosen and rejected of preferences, completion of imitation, or
    completions and weights.
    """
    lines_of: dict[Path, list[bytes]] = {}
    for iteration, group, rows in _trained(run):
        lines = lines_of.setdefault(below(folder, f"{group}-{_contents(rows)}.jsonl"), [])
        lines += [_line({"iteration": iteration, **trl_row(row)}) for row in rows]
    for path, lines in lines_of.items():
        path.write_bytes(b"".join(lines))
        yield path


def to_openai(run: Run, folder: Path) -> Iterator[Path]:
    """The files that OpenAI's fine-tuning takes, one for each training.

    Raises:
        ValueError: It takes no rows such as a training had.
    """
    for iteration, group, rows in _trained(run):
        if _contents(rows) == "weighted":
            raise ValueError(f"OpenAI takes no rows of such weights as {group} was trained on")
        path = below(folder, f"{group}-{_contents(rows)}-{iteration}.jsonl")
        path.write_bytes(training_file(rows))
        yield path


def to_csv(run: Run, folder: Path) -> Iterator[Path]:
    """Tables of games, rounds, pairs, metrics and usage, in which no text is a formula."""
    for name, table in TABLES.items():
        columns, path = table(run), below(folder, f"{name}.csv")
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(map(_inert, row) for row in zip(*columns.values(), strict=True))
        yield path


def to_parquet(run: Run, folder: Path) -> Iterator[Path]:
    """The same tables, with their types."""
    import pyarrow
    from pyarrow import parquet

    for name, table in TABLES.items():
        path = below(folder, f"{name}.parquet")
        parquet.write_table(pyarrow.table(table(run)), path)
        yield path


def write_arrays(run: Run, folder: Path) -> Iterator[Path]:
    """The games of each stage as arrays (`nip_fn.export.to_arrays`), each distinct text once."""
    for stage in run.stages():
        path = below(folder, f"{stage.stage}-{stage.iteration}.npz")
        plain = plain_arrays(run.to_arrays(stage.stage, stage.iteration))
        np.savez_compressed(path, allow_pickle=False, **plain)
        yield path


def to_json(run: Run, folder: Path) -> Iterator[Path]:
    """The transcripts of each stage, as `text_rl.save_transcripts` writes them."""
    yield from _transcripts(run, folder, "json")


def to_yaml(run: Run, folder: Path) -> Iterator[Path]:
    """The same, as YAML."""
    yield from _transcripts(run, folder, "yaml")


def to_inspect(run: Run, folder: Path) -> Iterator[Path]:
    """A log of each stage for `inspect view`."""
    for stage in run.stages():
        path = below(folder, f"{run.path.parent.name}_{stage.stage}-{stage.iteration}.eval")
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in inspect_log(stage, run.path.parent.name, run.digest).items():
                # Without the time of writing, so that the same run gives the same bytes.
                entry, text = zipfile.ZipInfo(name), json.dumps(content, ensure_ascii=False)
                archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
        yield path


EXPORTERS: dict[str, Exporter] = {
    "inspect": to_inspect,
    "trl": to_trl,
    "openai": to_openai,
    "csv": to_csv,
    "parquet": to_parquet,
    "arrays": write_arrays,
    "json": to_json,
    "yaml": to_yaml,
}


def _trained(run: Run) -> Iterator[tuple[int, str, Rows]]:
    """(iteration, group, rows) of all training rows; groups without any are left out."""
    for stage in run.stages("sample"):
        for group, rows in stage.rows:
            if rows:
                yield stage.iteration, group, rows


def _contents(rows: Rows) -> str:
    """The word for rows of that form in the name of a file."""
    if all(row.is_preference for row in rows):
        return "preferences"
    return "imitation" if all(row.is_imitation for row in rows) else "weighted"


def _inert(cell: Any) -> Any:
    """The cell; a text that a spreadsheet would run as a formula begins with an apostrophe.

    >>> [_inert(cell) for cell in ("=1+1", " @SUM(A1)", "yes - no", -1.5, None)]
    ["'=1+1", "' @SUM(A1)", 'yes - no', -1.5, None]
    """
    # Models and data may write anything.  Spreadsheets skip blanks, and read full-width signs, too.
    is_formula = isinstance(cell, str) and re.match(r"\s*[=+\-@＝＋－＠]|[\t\r\n]", cell)
    return f"'{cell}" if is_formula else cell


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _transcripts(run: Run, folder: Path, extension: str) -> Iterator[Path]:
    for stage in run.stages():
        path = below(folder, f"{stage.stage}-{stage.iteration}.{extension}")
        records = run.transcripts(stage.stage, stage.iteration)
        path.write_text(written(list(records), extension), encoding="utf-8")
        yield path
