"""From rows to splits: a data set is laid out once, in a file of SQLite, and read from there.

Whatever the number of rows, few of them are in memory at a time; of each, only the marks that
decide its split stay.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from itertools import count
from pathlib import Path

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.code.programs import Tests
from nip_fn.code.solutions import BadField, LabelledSolution, datapoint_of
from nip_fn.code.splitting import LeakKeys, Shares, marks_of, splits
from nip_fn.game.datapoint import SPLITS, Datapoint, Split, content_hash, text_hash
from nip_fn.params.data import DatasetParameters
from nip_fn.run.events import DatasetInfo
from nip_fn_adapters.data.sources import RowSource

MOST_KEPT = 1000  # bad rows that are told of one by one

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE points (
    place INTEGER PRIMARY KEY, id TEXT UNIQUE, content TEXT UNIQUE, label INTEGER, rank BLOB,
    split TEXT, position INTEGER, solution BLOB, tests INTEGER
);
CREATE TABLE tests (number INTEGER PRIMARY KEY, hash TEXT UNIQUE, tests BLOB);
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB);
"""

# Positions from 0 by rank; with balance, labels take turns and surplus rows get none.
_IN_ORDER = """
UPDATE points SET position = ordered.position FROM (
    SELECT place, ROW_NUMBER() OVER (PARTITION BY split ORDER BY rank) - 1 AS position
    FROM points WHERE split IS NOT NULL
) AS ordered WHERE points.place = ordered.place
"""
_IN_TURN = """
UPDATE points SET position = 2 * numbered.number + label FROM (
    SELECT place, ROW_NUMBER() OVER (PARTITION BY label ORDER BY rank) - 1 AS number
    FROM points WHERE split = :split
) AS numbered WHERE points.place = numbered.place AND numbered.number < (
    SELECT MIN(SUM(label = 0), SUM(label = 1)) FROM points WHERE split = :split
)
"""


class Bad(msgspec.Struct, frozen=True):
    """A row that cannot be used."""

    place: str  # the file and the row
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}, {self.field}: {self.problem}"


class Balance(msgspec.Struct, frozen=True):
    """How many solutions of a split are right, and how many are not."""

    split: Split
    right: int
    buggy: int


class Report(msgspec.Struct, frozen=True):
    """What became of a source's rows."""

    info: DatasetInfo
    balance: tuple[Balance, ...]  # of each split that holds anything
    rows: int  # labelled solutions that were read
    bad: int = 0  # rows that could not be, and were left out
    duplicates: int = 0  # left out: the same solution of the same question
    other_difficulty: int = 0  # left out, as wanted
    crossing: int = 0  # left out, as a held-out split has the problem or nearly the solution
    surplus: int = 0  # left out for balance
    unused: tuple[str, ...] = ()  # columns that nothing is read from


class BadRows(msgspec.Struct, frozen=True):
    """Rows that cannot be used, where none was to be left out."""

    first: tuple[Bad, ...]  # at most a thousand
    count: int


def build(
    source: RowSource, options: DatasetParameters, path: Path
) -> Result[Report, str | BadRows]:
    """Lay out a data set in a new file; or why that cannot be."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(_TABLES)
        counts, marks, bad = _read(db, source, options)
        if bad and not options.skip_bad_rows:
            return Failure(BadRows(tuple(bad), counts["bad"]))
        if not marks:
            told = ", ".join(f"{count} {what}" for what, count in counts.items())
            return Failure(f"{source.name}: none of its rows can be used ({told or 'it has none'})")
        crossing = _place(db, marks, options)
        placed = db.execute("SELECT COUNT(position) FROM points").fetchone()[0]
        report = Report(
            info=_describe(db, source.name),
            balance=_balance(db),
            rows=sum(counts.values()),
            bad=counts["bad"],
            duplicates=counts["duplicate"],
            other_difficulty=counts["of another difficulty"],
            crossing=crossing,
            surplus=len(marks) - crossing - placed,
            unused=source.unused,
        )
        db.execute("INSERT INTO facts VALUES ('report', ?)", (msgspec.msgpack.encode(report),))
        db.execute("CREATE UNIQUE INDEX by_position ON points (split, position)")
        db.commit()
    return Success(report)


def _read(
    db: sqlite3.Connection, source: RowSource, options: DatasetParameters
) -> tuple[Counter[str], list[LeakKeys], list[Bad]]:
    """Take in all rows: what became of how many, the marks by place, the first bad ones."""
    counts: Counter[str] = Counter()
    marks: list[LeakKeys] = []
    bad: list[Bad] = []
    for place, found in source.rows():
        kept = _take(db, found, len(marks), options)
        if isinstance(kept, LeakKeys):
            counts["kept"] += 1
            marks.append(kept)
        elif isinstance(kept, str):
            counts[kept] += 1
        else:
            counts["bad"] += 1
            if len(bad) < MOST_KEPT:
                bad.append(Bad(place, *kept))
    return counts, marks, bad


def _take(
    db: sqlite3.Connection,
    found: LabelledSolution | BadField,
    place: int,
    options: DatasetParameters,
) -> LeakKeys | BadField | str:
    """Take in one row: its marks, or what is wrong with it, or why it is left out."""
    if isinstance(found, BadField):
        return found
    if options.difficulty not in (None, found.difficulty):
        return "of another difficulty"
    content = text_hash(f"{found.question}\0{found.solution}")
    known = db.execute("SELECT label FROM points WHERE content = ?", (content,)).fetchone()
    if known:
        same = known[0] == found.label
        return "duplicate" if same else BadField("label", "another row has it the other way round")
    point = datapoint_of(found)
    rank = blake2b(f"{options.reduce_shuffle_seed}:{point.id}".encode(), digest_size=8).digest()
    tests = _tests(db, found.tests)
    encoded = msgspec.msgpack.encode(replace(found, tests=None))
    db.execute(
        "INSERT INTO points (place, id, content, label, rank, solution, tests) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (place, point.id, content, found.label, rank, encoded, tests),
    )
    return marks_of(found)


def _tests(db: sqlite3.Connection, tests: Tests | None) -> int | None:
    """The number of tests that are kept once for all solutions of a problem."""
    if tests is None:
        return None
    encoded = msgspec.msgpack.encode(tests)
    name = blake2b(encoded, digest_size=16).hexdigest()
    db.execute("INSERT OR IGNORE INTO tests (hash, tests) VALUES (?, ?)", (name, encoded))
    number: int = db.execute("SELECT number FROM tests WHERE hash = ?", (name,)).fetchone()[0]
    return number


def _place(db: sqlite3.Connection, marks: list[LeakKeys], options: DatasetParameters) -> int:
    """Give every row its split and its position there; how many belong to none."""
    chosen = splits(marks, Shares(options.validation_share, options.test_share))
    db.executemany("UPDATE points SET split = ? WHERE place = ?", zip(chosen, count()))
    if options.balance_classes:
        db.executemany(_IN_TURN, [{"split": split} for split in SPLITS])
    else:
        db.execute(_IN_ORDER)
    return chosen.count(None)


def _balance(db: sqlite3.Connection) -> tuple[Balance, ...]:
    query = "SELECT SUM(label), SUM(1 - label) FROM points WHERE split = ? AND position NOT NULL"
    found = ((split, *db.execute(query, (split,)).fetchone()) for split in SPLITS)
    return tuple(Balance(split, right, buggy) for split, right, buggy in found if right is not None)


def _describe(db: sqlite3.Connection, name: str) -> DatasetInfo:
    """What a run records of the data."""

    def points() -> Iterator[Datapoint]:
        for split in SPLITS:
            found = db.execute(
                "SELECT solution FROM points WHERE split = ? AND position NOT NULL "
                "ORDER BY position",
                (split,),
            )
            yield from (datapoint_of(decode_solution(row[0])) for row in found)

    sizes = dict(db.execute("SELECT split, COUNT(position) FROM points GROUP BY split"))
    return DatasetInfo(
        name=name,
        hash=content_hash(points()),
        train_size=sizes.get("train", 0),
        validation_size=sizes.get("validation", 0),
        test_size=sizes.get("test", 0),
    )


def decode_solution(data: bytes) -> LabelledSolution:
    """A solution as the file holds it; its tests lie elsewhere."""
    return msgspec.msgpack.decode(data, type=LabelledSolution)
