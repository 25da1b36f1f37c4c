"""A file of solutions that grows as they are made, and can be gone on with after a crash.

Beside the rows lies a journal: a line for what was asked for, then one for each right solution that
is done with, with the length of the file after it.  The journal is gone when all is done.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.solutions import LabelledSolution, write_row


class Entry(msgspec.Struct, frozen=True):
    """What became of one right solution."""

    id: str
    size: int  # of the file of rows, when it was done with
    bugs: int
    tried: int
    problem: str
    requests: int = 0
    tokens: int = 0


class BugFile:
    """Rows that are being written."""

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        """Go on after these entries."""
        self.entries = entries
        self._rows = path.open("ab")
        self._journal = journal_of(path).open("ab")

    def add(self, rows: tuple[LabelledSolution, ...], entry: Entry) -> None:
        """Write the rows of a right solution, then that it is done with."""
        for row in rows:
            self._rows.write(msgspec.json.encode(write_row(row)) + b"\n")
        self._rows.flush()
        os.fsync(self._rows.fileno())
        done = msgspec.structs.replace(entry, size=self._rows.tell())
        self._journal.write(msgspec.json.encode(done) + b"\n")
        self._journal.flush()
        self.entries.append(done)

    def finish(self) -> None:
        """All is done: nothing is to be gone on with."""
        journal_of(Path(self._rows.name)).unlink()

    def close(self) -> None:
        """Write no more."""
        self._rows.close()
        self._journal.close()


def journal_of(path: Path) -> Path:
    """Where the journal of a file lies."""
    return path.with_name(f"{path.name}.journal")


def open_bug_file(path: Path, asked: Mapping[str, Any]) -> Result[BugFile, str]:
    """A new file, or one that the same command began; or why it cannot be written."""
    journal = journal_of(path)
    if not journal.exists():
        if path.exists():
            return Failure(f"{path} exists already; choose another --out, or remove it")
        path.parent.mkdir(parents=True, exist_ok=True)
        journal.write_bytes(msgspec.json.encode(asked) + b"\n")
        return Success(BugFile(path, []))
    lines = _whole_lines(journal)
    if not lines or msgspec.json.decode(lines[0]) != msgspec.json.decode(
        msgspec.json.encode(asked)
    ):
        return Failure(
            f"{path} was begun with other options; give the same, or remove it and {journal}"
        )
    entries = [msgspec.json.decode(line, type=Entry) for line in lines[1:]]
    os.truncate(journal, sum(map(len, lines)))
    path.touch()
    os.truncate(path, entries[-1].size if entries else 0)
    return Success(BugFile(path, entries))


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of a file but for one that was not finished."""
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
