"""From rows to splits: a data set is laid out once, in a file of SQLite, and read from there.

Whatever the number of rows, few of them are in memory at a time; of each, only the marks that
decide its split stay.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.code.kinds import Evidence, data_kind, evidence
from nip_fn.code.programs import Tests
from nip_fn.code.solutions import LabelledSolution, SplitHint, datapoint_of
from nip_fn.code.splitting import LeakKeys, Shares, marks_of, splits
from nip_fn.errors import Problem
from nip_fn.game.datapoint import SPLITS, Datapoint, Kind, Split, content_hash, text_hash
from nip_fn.params.data import DatasetParameters
from nip_fn.run.events import DatasetInfo
from nip_fn_adapters.data.sources import AUTO, RowSource

MOST_KEPT = 1000  # bad rows that are named one by one

# No journal, and no waiting for the disk: the file is new, and is thrown away if it is cut short.
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

# Positions from 0: by rank, labels in turn as long as both last, so that the first N are balanced
# whatever N.  The surplus of one label comes after them, or gets none.  Rows without a label, which
# are all or none of a data set, stand in the order of their ranks.
_IN_TURN = """
UPDATE points SET position = iif(number < least, 2 * number + label, least + number) FROM (
    SELECT place, ROW_NUMBER() OVER (PARTITION BY label ORDER BY rank) - 1 AS number
    FROM points WHERE split = :split
) AS numbered, (
    SELECT COALESCE(MIN(SUM(label = 0), SUM(label = 1)), 0) AS least
    FROM points WHERE split = :split
) WHERE points.place = numbered.place AND (number < least OR NOT :balance OR label IS NULL)
"""


class Balance(msgspec.Struct, frozen=True):
    """The numbers of right and buggy solutions of a split, and of problems without any."""

    split: Split
    right: int
    buggy: int
    unlabelled: int = 0

    @property
    def size(self) -> int:
        """The number of all datapoints."""
        return self.right + self.buggy + self.unlabelled


# Why a row that can be read is in no split.
Reason = Literal["duplicate", "other difficulty", "crossing", "surplus"]
REASONS: dict[Reason, str] = {
    "duplicate": "that repeat the question and the solution (or the views) of another row",
    "other difficulty": "of another difficulty",
    "crossing": "whose problem, question or solution (but for names and layout) is held out",
    "surplus": "for balance",
}


class LeftOut(msgspec.Struct, frozen=True):
    """Rows that were left out for one reason."""

    why: Reason
    right: int
    buggy: int
    unlabelled: int = 0


class Report(msgspec.Struct, frozen=True):
    """The outcome of laying out a source's rows."""

    info: DatasetInfo
    balance: tuple[Balance, ...]  # of each split that holds anything
    rows: int  # labelled solutions that were read
    bad: int = 0  # rows that could not be, and were left out
    left_out: tuple[LeftOut, ...] = ()  # rows that could be read, but are in no split
    unused: tuple[str, ...] = ()  # columns that nothing is read from
    views: tuple[tuple[str, ...], ...] = ((),)  # sets of roles or agents that rows have views of
    kind: Kind = "code"  # of the solutions
    solved: bool = True  # each row has one


class BadRows(msgspec.Struct, frozen=True):
    """Invalid rows, where none may be skipped."""

    first: tuple[Problem, ...]  # at most a thousand
    count: int


def build(
    source: RowSource, options: DatasetParameters, path: Path
) -> Result[Report, Problem | BadRows]:
    """Lay out a data set in a new file."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(_TABLES)
        rows = _read(db, source, options)
        # Only after all rows: whoever corrects a file wants to see every fault at once.
        if rows.bad and not options.skip_bad_rows:
            return Failure(BadRows(tuple(rows.bad), rows.counts["bad"]))
        if not rows.keys:
            counted = ", ".join(f"{count} {outcome}" for outcome, count in rows.counts.items())
            problem = f"none of its rows can be used ({counted or 'it has none'})"
            return Failure(Problem(problem, source.name))
        labels = _labels(db, "TRUE")
        if None in labels and len(labels) > 1:
            problem = "some of its rows have a label and some have none"
            remedy = "split it into two data sets: of solutions, and of answers to be written"
            return Failure(Problem(problem, source.name, remedy))
        solution_kind = options.kind or source.kind or data_kind(rows.evidence)
        # Read as the keys of programs, before all rows told what they are.
        keys = rows.keys if solution_kind == "code" else [key.without_code() for key in rows.keys]
        _place(db, keys, options)
        out = rows.left_out
        out["crossing"] += _labels(db, "split IS NULL")
        out["surplus"] += _labels(db, "split NOT NULL AND position IS NULL")
        report = Report(
            info=_describe(db, source.name, solution_kind),
            balance=_balance(db),
            rows=rows.counts.total(),
            bad=rows.counts["bad"],
            left_out=tuple(
                LeftOut(why, out[why][1], out[why][0], out[why][None])
                for why in REASONS
                if out[why]
            ),
            unused=source.unused,
            views=tuple(sorted(rows.views)),
            kind=solution_kind,
            solved=not rows.evidence["none"],
        )
        db.execute("INSERT INTO facts VALUES ('report', ?)", (msgspec.msgpack.encode(report),))
        db.execute("CREATE UNIQUE INDEX by_position ON points (split, position)")
        db.commit()
    return Success(report)


class _Rows(NamedTuple):
    """The rows of a source, collected while they are read."""

    keys: list[LeakKeys]  # of those that are kept, by place
    counts: Counter[str]  # rows by what became of them
    views: set[tuple[str, ...]]  # sets of roles or agents that rows have views of
    left_out: defaultdict[Reason, Counter[int | None]]  # by label
    bad: list[Problem]  # the first bad rows
    evidence: Counter[Evidence]  # of the kind of the solutions


def _read(db: sqlite3.Connection, source: RowSource, options: DatasetParameters) -> _Rows:
    """Read all rows into the database."""
    rows = _Rows([], Counter(), set(), defaultdict(Counter), [], Counter())
    for address, row in source.rows():
        match row.bind(lambda solution: _take(db, solution, len(rows.keys), options)):
            case Success(LeakKeys() as keys):
                rows.counts["kept"] += 1
                rows.keys.append(keys)
                rows.views.add(names_of(row.unwrap()))
                rows.evidence[evidence(row.unwrap())] += 1
            case Success(left):
                reason: Reason = left
                rows.counts[REASONS[reason]] += 1
                rows.left_out[reason][row.unwrap().label] += 1
            case Failure(problem):
                rows.counts["bad"] += 1
                if len(rows.bad) < MOST_KEPT:
                    address = f"{address}, {problem.address}"
                    rows.bad.append(Problem(problem.problem, address, problem.remedy))
    return rows


def _take(
    db: sqlite3.Connection, solution: LabelledSolution, number: int, options: DatasetParameters
) -> Result[LeakKeys | Reason, Problem]:
    """Insert one row; the keys that decide its split, or the reason why it is left out."""
    if options.difficulty not in (None, solution.difficulty):
        return Success("other difficulty")
    content = text_hash(f"{solution.question}\0{solution.solution}{solution.views or ''}")
    earlier = db.execute("SELECT label FROM points WHERE content = ?", (content,)).fetchone()
    if earlier:
        same = earlier[0] == solution.label
        contradiction = Problem("another row has it the other way round", "label")
        return Success("duplicate") if same else Failure(contradiction)
    point = datapoint_of(solution)
    # A hash of the row's id rather than a shuffle: neither the order nor the number of the other
    # rows may change it.
    rank = blake2b(f"{options.reduce_shuffle_seed}:{point.id}".encode(), digest_size=8).digest()
    tests = _tests(db, solution.tests)
    encoded = msgspec.msgpack.encode(replace(solution, tests=None))
    db.execute(
        "INSERT INTO points (place, id, content, label, rank, solution, tests) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (number, point.id, content, solution.label, rank, encoded, tests),
    )
    return Success(marks_of(solution))


def names_of(solution: LabelledSolution) -> tuple[str, ...]:
    """The roles or agents that a row has views of."""
    return tuple(sorted(dict(solution.views)))


def _tests(db: sqlite3.Connection, tests: Tests | None) -> int | None:
    """The number of tests that are kept once for all solutions of a problem."""
    if tests is None:
        return None
    encoded = msgspec.msgpack.encode(tests)
    name = blake2b(encoded, digest_size=16).hexdigest()
    db.execute("INSERT OR IGNORE INTO tests (hash, tests) VALUES (?, ?)", (name, encoded))
    number: int = db.execute("SELECT number FROM tests WHERE hash = ?", (name,)).fetchone()[0]
    return number


def _place(db: sqlite3.Connection, marks: list[LeakKeys], options: DatasetParameters) -> None:
    """Give every row its split, if it belongs to one, and its position there."""
    chosen = _chosen(marks, options)
    db.executemany("UPDATE points SET split = ? WHERE place = ?", zip(chosen, count()))
    if options.only_split is not None:
        db.execute("DELETE FROM points WHERE split IS NULL")  # not left out, but not asked for
    balance = options.balance_classes
    db.executemany(_IN_TURN, [{"split": split, "balance": balance} for split in SPLITS])


def _chosen(marks: list[LeakKeys], options: DatasetParameters) -> tuple[Split | None, ...]:
    """The split of each row; None for those that are left out.

    Where only one split is used its rows are in it; those of "all" or of a table are in "test".
    """
    only = options.only_split
    if only is None or only in SPLITS:
        assigned = splits(marks, Shares(options.validation_share, options.test_share))
        return tuple(split if only in (None, split) else None for split in assigned)
    hints: set[SplitHint | None] = {mark.wanted for mark in marks}
    if only == AUTO:
        tested: set[SplitHint | None] = {"test", "held out"}
        hints = hints & tested or hints & {"validation"} or hints
    return tuple("test" if mark.wanted in hints else None for mark in marks)


def _labels(db: sqlite3.Connection, condition: str) -> Counter[int | None]:
    """The number of rows by label among those that satisfy an SQL condition."""
    query = f"SELECT label, COUNT(*) FROM points WHERE {condition} GROUP BY label"
    return Counter(dict(db.execute(query)))


def _balance(db: sqlite3.Connection) -> tuple[Balance, ...]:
    labels = {split: _labels(db, f"split = '{split}' AND position NOT NULL") for split in SPLITS}
    return tuple(
        Balance(split, counts[1], counts[0], counts[None])
        for split, counts in labels.items()
        if counts
    )


def _describe(db: sqlite3.Connection, name: str, solution_kind: Kind) -> DatasetInfo:
    """The facts of the data that a run records."""

    def points() -> Iterator[Datapoint]:
        for split in SPLITS:
            rows = db.execute(
                "SELECT solution FROM points WHERE split = ? AND position NOT NULL "
                "ORDER BY position",
                (split,),
            )
            yield from (datapoint_of(decode_solution(row[0], solution_kind)) for row in rows)

    sizes = dict(db.execute("SELECT split, COUNT(position) FROM points GROUP BY split"))
    return DatasetInfo(
        name=name,
        hash=content_hash(points()),
        train_size=sizes.get("train", 0),
        validation_size=sizes.get("validation", 0),
        test_size=sizes.get("test", 0),
    )


def decode_solution(data: bytes, solution_kind: Kind) -> LabelledSolution:
    """A solution of that kind, decoded from the file; its tests are stored in another table."""
    return replace(msgspec.msgpack.decode(data, type=LabelledSolution), kind=solution_kind)
