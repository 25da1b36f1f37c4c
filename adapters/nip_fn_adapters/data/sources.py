"""Sources of labelled solutions: package data, files, directories, the hub."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.code.benchmarks import BENCHMARKS, Benchmark, benchmark_of
from nip_fn.code.builtin import python
from nip_fn.code.programs import abbreviated
from nip_fn.code.questions import labelled, unsolved
from nip_fn.code.solutions import REQUIRED, ROW_COLUMNS, VIEW, LabelledSolution, SplitHint, read_row
from nip_fn.errors import Problem
from nip_fn.game.datapoint import SPLITS, Kind
from nip_fn.params.data import CodeValidationParameters
from nip_fn_adapters.data import files

HUB = "hf:"
BUILTIN = "builtin:"

MOST_SHOWN = 20  # columns

CHOICES = (
    'choose "builtin:tea", "builtin:tea-public", "builtin:bug-hunt", "builtin:python", a benchmark '
    f'({", ".join(BENCHMARKS)}), "hf:NAME" for a data set of the Hugging Face hub, or the path of '
    "a .jsonl, .csv or .parquet file or of a directory that one was saved to"
)


# The file and the row of each solution, and the solution, or the field that cannot be used.
Rows = Iterator[tuple[str, Result[LabelledSolution, Problem]]]


class RowSource(NamedTuple):
    """Labelled solutions, as they come."""

    name: str
    fingerprint: str  # a hash of the content
    rows: Callable[[], Rows]
    unused: tuple[str, ...] = ()  # columns that nothing is read from
    kind: Kind | None = None  # of the solutions; None if it follows from them


ALL, AUTO = "all", "auto"  # values of `only_split` that name no split


def chosen_split(only: str, present: Collection[str], name: str) -> Result[str, Problem]:
    """The split that `only_split` stands for, or "all".

    Args:
        only: `dataset_options.only_split`.
        present: The splits that the data come in.
        name: Of the data set.
    """
    if only == AUTO:
        return Success(next((split for split in ("test", "validation") if split in present), ALL))
    if only == ALL or only in present:
        return Success(only)
    choices = ", ".join((ALL, *present))
    problem = Problem(f"there is no split {only!r}", f"dataset: {name}", f"choose one of {choices}")
    return Failure(problem)


class ReadOptions(NamedTuple):
    """The options by which the rows of a source are read.

    choice: which rows and solutions of APPS are chosen.
    is_written: true if benchmarks are read without solutions, as answers are to be written.
    """

    choice: CodeValidationParameters
    is_written: bool = False


def open_source(
    name: str, options: ReadOptions, only: str | None = None
) -> Result[RowSource, Problem]:
    """The source that a name stands for.

    Args:
        name: Of the data set.
        options: How rows are read.
        only: `dataset_options.only_split`; tables of other splits are not read.
    """
    if name == f"{BUILTIN}python":
        python_rows = RowSource(name, python.problems_hash(), _builtin_python)
        return _with_splits(only, python_rows)
    if name.startswith(BUILTIN) or name in ("", HUB):
        return Failure(Problem(f"there is no {name!r}", remedy=CHOICES))
    path = Path(name).expanduser()
    if name in BENCHMARKS:
        hub, config, *_ = BENCHMARKS[name]
        opened = files.from_hub(hub, config).bind(partial(_tables, name, options, only))
    elif name.startswith(HUB):
        opened = files.from_hub(name.removeprefix(HUB)).bind(partial(_tables, name, options, only))
    elif path.is_dir():
        opened = files.from_directory(path).bind(partial(_tables, name, options, only))
    elif not path.exists():
        opened = Failure(Problem("there is no such file", remedy=CHOICES))
    elif path.suffix.lower() not in files.READERS:
        readable = ", ".join(files.READERS)
        opened = Failure(Problem(f"its name ends in {path.suffix!r}, which is none of {readable}"))
    else:
        opened = _file(name, path, options).bind(partial(_with_splits, only))
    return opened.alt(lambda problem: problem.at(name))


def _with_splits(only: str | None, source: RowSource) -> Result[RowSource, Problem]:
    """The source, whose rows may name their own split, if it can have that split."""
    if only in (None, AUTO):
        return Success(source)
    return chosen_split(str(only), SPLITS, source.name).map(lambda _: source)


def _file(name: str, path: Path, options: ReadOptions) -> Result[RowSource, Problem]:
    """A user's own file, or one of APPS or buggy-apps."""
    tables = {"": (None, partial(files.READERS[path.suffix.lower()], path))}
    fingerprint = partial(files.digest_of, [path])
    return files.columns_of(path).bind(
        lambda columns: _source(name, columns, options, tables, fingerprint)
    )


def _tables(
    name: str, options: ReadOptions, only: str | None, tables: Mapping[str, Any]
) -> Result[RowSource, Problem]:
    """Tables of the `datasets` library, one a split."""
    hints = {split: _split_hint(split, tables) for split in tables}
    if only is not None and set(tables) != {"train"}:
        match chosen_split(only, tuple(tables), name):
            case Success(split) if split != ALL:
                tables = {split: tables[split]}
                hints = {split: _own_split(split)}
            case Failure(problem):
                return Failure(problem)
    columns = list(dict.fromkeys(chain(*(table.column_names for table in tables.values()))))
    readers = {
        split: (hints[split], partial(files.table_rows, table)) for split, table in tables.items()
    }
    return _source(name, columns, options, readers, partial(files.tables_hash, tables))


def _source(
    name: str,
    columns: list[str],
    options: ReadOptions,
    tables: Mapping[str, tuple[SplitHint | None, Callable[[], files.ReadRows]]],
    fingerprint: Callable[[], str],
) -> Result[RowSource, Problem]:
    """A source whose columns determine the form of its rows, table by table.

    Args:
        name: of the data set.
        columns: the names of its columns.
        options: how rows are read.
        tables: (the split that its rows wish for, a reader of them) of each table, by its name; ""
            for a file.
        fingerprint: a hash of the content, asked for once the form is known.
    """
    benchmark = None if _is_own(columns) else benchmark_of(columns)
    if benchmark is None and not _is_own(columns):
        needed = (
            f"the columns {', '.join(REQUIRED)} (or those of a benchmark; with views or "
            f"{VIEW}ROLE a solution may be left out, with reference or tests solution and label)"
        )
        has = ", ".join(map(abbreviated, columns[:MOST_SHOWN])) or "none"
        return Failure(Problem(f"needs {needed}, but has {has}"))
    read_solutions = _reader(benchmark, options)

    def rows() -> Rows:
        for split, (hint, read) in tables.items():
            for row_place, row in read():
                address = ", ".join(filter(None, (name, split, row_place)))
                solutions = row.alt(lambda problem: problem.at("row")).bind(
                    partial(read_solutions, split)
                )
                match solutions:
                    case Success(solutions):
                        for solution in solutions:
                            # In the split of its table, unless it names another itself.
                            wanted = solution.wanted or hint
                            yield address, Success(replace(solution, wanted=wanted))
                    case Failure(problem):
                        yield address, Failure(problem)

    # Only of a user's own file: an unknown column there may be a typing error.
    unused = tuple(
        column
        for column in columns
        if benchmark is None and column not in ROW_COLUMNS and not column.startswith(VIEW)
    )
    return Success(RowSource(name, fingerprint(), rows, unused, benchmark and benchmark.kind))


_ReadSolutions = Callable[[str, Mapping[str, Any]], Result[tuple[LabelledSolution, ...], Problem]]


def _is_own(columns: Collection[str]) -> bool:
    """True if these are the columns of a user's own file."""
    viewed = any(column == "views" or column.startswith(VIEW) for column in columns)
    is_checked = "reference" in columns or "tests" in columns
    needed = set(REQUIRED) - ({"solution"} if viewed else set())
    needed -= {"solution", "label"} if is_checked else set()
    return needed <= set(columns)


def _reader(benchmark: Benchmark | None, options: ReadOptions) -> _ReadSolutions:
    """The reader of (the name of its table, a row) of a benchmark, or of a user's own file."""
    if benchmark is None:
        return lambda split, row: read_row(row).map(lambda solution: (solution,))
    solutions = unsolved if options.is_written else labelled
    return lambda split, row: benchmark.read(row, split, options.choice).map(
        lambda questions: tuple(chain(*map(solutions, questions)))
    )


def _builtin_python() -> Rows:
    return ((solution.problem_id, Success(solution)) for solution in python.solutions())


def _split_hint(split: str, splits: Collection[str]) -> SplitHint | None:
    """The split hint of a split's rows; "held out" for a test split without a validation split."""
    # A lone table is called so by the library where nobody gave it a name.
    if set(splits) == {"train"}:
        return None
    if split == "test" and "train" in splits and "validation" not in map(_own_split, splits):
        return "held out"
    return _own_split(split)


def _own_split(split: str) -> SplitHint | None:
    name = "validation" if split == "valid" else split  # as CodeContests calls it
    return next((hint for hint in SPLITS if hint == name), None)
