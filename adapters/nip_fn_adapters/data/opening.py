"""A data set by its name, laid out at its first use and kept for the next."""

import errno
import os
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.code.kinds import data_kind, evidence
from nip_fn.code.programs import Tests
from nip_fn.code.solutions import LabelledSolution, PlacedSolution, datapoint_of
from nip_fn.errors import Problem
from nip_fn.game.datapoint import SPLITS, Datapoint, Dataset, Kind, Split, content_hash, text_hash
from nip_fn.game.protocol import has_answers
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.run.events import DatasetInfo
from nip_fn.run.ports import Source
from nip_fn.worlds import bughunt, sums, tea
from nip_fn_adapters import extensions
from nip_fn_adapters.data.building import BadRows, Balance, Report, build, decode_solution
from nip_fn_adapters.data.files import Unreadable, digest_of
from nip_fn_adapters.data.sources import ReadOptions, RowSource, chosen_split, open_source

# Goes up whenever the same rows are laid out otherwise.
LAYOUT = 7

# The built-in data sets never change with a run's seed: the same name is the same data.
BUILTIN_SEED = 0

UNFINISHED = "unfinished-"
DAY = 24 * 60 * 60.0

CACHE_VARIABLE = "NIP_FN_CACHE"


class Data(NamedTuple):
    """A data set that can be drawn from."""

    report: Report
    source: Source
    solutions: Callable[
        [], Iterator[PlacedSolution]
    ]  # split by split, in the order of their positions

    @property
    def info(self) -> DatasetInfo:
        """The facts that a run records of it."""
        return self.report.info


def open_data(params: HyperParameters) -> Result[Data, Problem | BadRows]:
    """The data set that the parameters name."""
    label = params.dataset_options.only_label
    # A view of the whole, which is laid out once, whatever part of it is used.
    options = replace(params.dataset_options, only_label=None)
    whole = _open_all(replace(params, dataset_options=options))
    return whole if label is None else whole.map(lambda data: _with_label(data, label))


def _with_label(data: Data, label: int) -> Data:
    """The datapoints of one label, in their order."""
    numbers = dict.fromkeys(SPLITS, 0)
    places: dict[Split, list[int]] = {split: [] for split in SPLITS}
    for placed in data.solutions():
        if placed.solution.label == label:
            places[placed.split].append(numbers[placed.split])
        numbers[placed.split] += 1
    info = replace(
        data.info,
        hash=text_hash(f"{data.info.hash} {label}"),
        train_size=len(places["train"]),
        validation_size=len(places["validation"]),
        test_size=len(places["test"]),
    )
    balance = tuple(
        Balance(counts.split, counts.right * label, counts.buggy * (1 - label))
        for counts in data.report.balance
    )

    def draw(split: Split, indices: Sequence[int]) -> tuple[Datapoint, ...]:
        return data.source(split, tuple(places[split][index] for index in indices))

    def solutions() -> Iterator[PlacedSolution]:
        return (placed for placed in data.solutions() if placed.solution.label == label)

    return Data(replace(data.report, info=info, balance=balance), draw, solutions)


def _open_all(params: HyperParameters) -> Result[Data, Problem | BadRows]:
    only = params.dataset_options.only_split
    if params.dataset in _GENERATED:
        return _only(only, _generated(params.dataset)).map(in_memory)
    if "dataset" in extensions.references({"dataset": params.dataset}):
        options = params.dataset_options
        loaded = extensions.load_dataset(params.dataset, options)
        dataset = loaded.map(partial(_of_its_kind, solution_kind=options.kind))
        return dataset.bind(partial(_only, only)).map(_in_turn).map(in_memory)
    reading = ReadOptions(params.code_validation, _is_written(params))
    rows: Result[RowSource, Problem | BadRows] = open_source(params.dataset, reading, only).alt(
        lambda problem: problem.at("dataset")
    )
    return rows.bind(partial(_laid_out, params))


def _is_written(params: HyperParameters) -> bool:
    """True if a prover writes the answers; of parameters without a game, False."""
    return params.interaction_protocol in PROTOCOLS and has_answers(protocol_of(params))


def _of_its_kind(dataset: Dataset, solution_kind: Kind | None) -> Dataset:
    """The data set with `solution_kind` at each datapoint; None: that which follows from them.

    Datapoints that say themselves that they are no code are left as they are.
    """
    points = [point for split in SPLITS for point in dataset.split(split)]
    if solution_kind is None and any(point.kind != "code" for point in points):
        return dataset
    chosen = solution_kind or data_kind(Counter(evidence(_labelled(point)) for point in points))
    return _mapped(dataset, lambda points: (replace(point, kind=chosen) for point in points))


def _in_turn(dataset: Dataset) -> Dataset:
    """The data set with alternating labels as long as both last, so that a limit is balanced."""

    def mixed(points: Sequence[Datapoint]) -> Iterator[Datapoint]:
        zeros, ones = ([point for point in points if point.label == label] for label in (0, 1))
        yield from chain(*zip(zeros, ones, strict=False))
        yield from max(zeros, ones, key=len)[min(len(zeros), len(ones)) :]
        yield from (point for point in points if point.label is None)

    return _mapped(dataset, mixed)


def _mapped(
    dataset: Dataset, change: Callable[[Sequence[Datapoint]], Iterable[Datapoint]]
) -> Dataset:
    """The data set with the datapoints of each split changed."""
    return Dataset(dataset.name, **{split: tuple(change(dataset.split(split))) for split in SPLITS})


def _only(only: str | None, dataset: Dataset) -> Result[Dataset, Problem]:
    """The part of a data set in memory that `only_split` names."""
    if only is None:
        return Success(dataset)
    points = {split: dataset.split(split) for split in SPLITS}
    present = tuple(split for split in SPLITS if points[split])
    return chosen_split(only, present, dataset.name).map(
        lambda split: (
            Dataset(dataset.name, **{**dict.fromkeys(SPLITS, ()), split: points[split]})
            if split in points
            else Dataset(dataset.name, (), (), tuple(chain(*points.values())))
        )
    )


def _laid_out(params: HyperParameters, rows: RowSource) -> Result[Data, Problem | BadRows]:
    """A data set from the file that it is laid out in, now or at an earlier use."""
    # Of the content of the source, and of every option that affects the layout.
    options = (
        *(LAYOUT, rows.name, rows.fingerprint, _is_written(params)),
        *(params.dataset_options, params.code_validation),
    )
    folder = cache_folder()
    name = blake2b(msgspec.msgpack.encode(options), digest_size=16).hexdigest()
    # A file's name ends in a hash of what it holds: one that is damaged is left out.
    files = sorted(folder.glob(f"{name}-*.sqlite"))
    kept = next((path for path in files if path.stem == f"{name}-{digest_of([path])}"), None)
    path = _build(rows, params, folder, name) if kept is None else Success(kept)
    return path.map(_from_file)


def cache_folder() -> Path:
    """The folder of laid-out data sets: `$NIP_FN_CACHE`, or in the user's folder for caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen or f"{home}/nip-fn").expanduser() / "datasets"


def _build(
    rows: RowSource, params: HyperParameters, folder: Path, name: str
) -> Result[Path, Problem | BadRows]:
    """Lay out a data set in a temporary folder and move it to its place once it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as beside:
        unfinished = Path(beside) / "data.sqlite"
        try:
            report = build(rows, params.dataset_options, unfinished)
        except Unreadable as error:
            return Failure(Problem(str(error), f"dataset: {rows.name}"))
        except sqlite3.OperationalError as error:
            # A full disk, or a folder that is read-only: the system is at fault, not the data.
            raise OSError(errno.EIO, str(error), str(folder)) from error

        def moved(_: Report) -> Path:
            whole = folder / f"{name}-{digest_of([unfinished])}.sqlite"
            os.replace(unfinished, whole)
            return whole

        return report.map(moved)


def _sweep(folder: Path) -> None:
    """Remove what was left behind by processes that were killed a day ago or earlier."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):  # another process may be at it
            if (
                time.time() - max(path.stat().st_mtime for path in (leftover, *leftover.iterdir()))
                > DAY
            ):
                shutil.rmtree(leftover)


def _connect(path: Path) -> sqlite3.Connection:
    # A file never changes once it has its name: SQLite needs no locks, and nothing beside it.
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def _from_file(path: Path) -> Data:
    db = _connect(path)
    row = db.execute("SELECT value FROM facts WHERE name = 'report'").fetchone()
    report = msgspec.msgpack.decode(row[0], type=Report)

    def draw(split: Split, indices: Sequence[int]) -> tuple[Datapoint, ...]:
        query = "SELECT solution FROM points WHERE split = ? AND position = ?"
        rows = (db.execute(query, (split, index)).fetchone() for index in indices)
        return tuple(datapoint_of(decode_solution(row[0], report.kind)) for row in rows)

    return Data(report, draw, lambda: _solutions(path, report.kind))


def _solutions(path: Path, solution_kind: Kind) -> Iterator[PlacedSolution]:
    db = _connect(path)
    query = (
        "SELECT id, solution, tests.tests FROM points LEFT JOIN tests ON tests.number = "
        "points.tests WHERE split = ? AND position NOT NULL ORDER BY position"
    )
    for split in SPLITS:
        for name, solution, tests in db.execute(query, (split,)):
            decoded = None if tests is None else msgspec.msgpack.decode(tests, type=Tests)
            yield PlacedSolution(
                split, name, replace(decode_solution(solution, solution_kind), tests=decoded)
            )


# Worlds that are generated rather than read, each in the sizes that it comes in.
_SIZES = {"num_train": 2000, "num_validation": 500, "num_test": 1000}
_GENERATED: dict[str, Callable[..., Dataset]] = {
    "builtin:tea": tea.make_dataset,
    "builtin:tea-public": partial(tea.make_dataset, public=True),
    "builtin:bug-hunt": bughunt.make_dataset,
    "builtin:bug-hunt-12": partial(bughunt.make_dataset, num_steps=12),
    "builtin:bug-hunt-16": partial(bughunt.make_dataset, num_steps=16),
    "builtin:sums": sums.make_dataset,
}


@cache
def _generated(name: str) -> Dataset:
    return _GENERATED[name](key(BUILTIN_SEED), **_SIZES)


def in_memory(dataset: Dataset) -> Data:
    """A data set in memory as `Data`."""
    points = {split: dataset.split(split) for split in SPLITS}
    everything = [point for split in SPLITS for point in points[split]]
    info = DatasetInfo(
        name=dataset.name,
        hash=content_hash(everything),
        train_size=len(dataset.train),
        validation_size=len(dataset.validation),
        test_size=len(dataset.test),
    )

    def draw(split: Split, indices: Sequence[int]) -> tuple[Datapoint, ...]:
        return tuple(points[split][index] for index in indices)

    def solutions() -> Iterator[PlacedSolution]:
        for split in SPLITS:
            for point in points[split]:
                yield PlacedSolution(split, point.id, _labelled(point))

    labels = {split: Counter(point.label for point in points[split]) for split in SPLITS}
    balance = tuple(
        Balance(split, counts[1], counts[0], counts[None])
        for split, counts in labels.items()
        if counts
    )
    views = {tuple(sorted(dict(point.views))) for point in everything} or {()}
    report = Report(
        info,
        balance,
        rows=len(everything),
        views=tuple(sorted(views)),
        kind=next((point.kind for point in everything if point.kind != "code"), "code"),
        solved=all(point.solution for point in everything),
    )
    return Data(report, draw, solutions)


def _labelled(point: Datapoint) -> LabelledSolution:
    return LabelledSolution(
        question=point.question,
        solution=point.solution,
        label=point.label,
        problem_id=point.problem_id,
        stance=point.stance,
        views=point.views,
        kind=point.kind,
        reference=point.reference,
    )
