"""Where labelled solutions come from: package data, files, directories, the hub."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.code.builtin import apps, python
from nip_fn.code.programs import shown
from nip_fn.code.solutions import COLUMNS, REQUIRED, BadField, LabelledSolution, SplitHint, read_row
from nip_fn.params.data import CodeValidationParameters
from nip_fn_adapters.data import files

HUB = "hf:"
BUILTIN = "builtin:"

MOST_TOLD = 20  # columns

CHOICES = (
    'choose "builtin:arithmetic", "builtin:python", "hf:NAME" for a data set of the Hugging Face '
    "hub, or the path of a .jsonl, .csv or .parquet file or of a directory that one was saved to"
)


class Placed(NamedTuple):
    """What was found at a place of a source."""

    place: str  # the file and the row
    found: LabelledSolution | BadField


class RowSource(NamedTuple):
    """Labelled solutions, as they come."""

    name: str
    fingerprint: str  # a hash of the content
    rows: Callable[[], Iterator[Placed]]
    unused: tuple[str, ...] = ()  # columns that nothing is read from


def open_source(name: str, choice: CodeValidationParameters) -> Result[RowSource, str]:
    """The source that a name stands for, or why there is none."""
    if name == f"{BUILTIN}python":
        return Success(RowSource(name, python.fingerprint(), _builtin_python))
    if name.startswith(BUILTIN) or name in ("", HUB):
        return Failure(f"there is no {name!r}; {CHOICES}")
    if name.startswith(HUB):
        return _tables(name, choice, partial(files.from_hub, name.removeprefix(HUB)))
    path = Path(name).expanduser()
    if path.is_dir():
        return _tables(name, choice, partial(files.from_directory, path))
    if not path.exists():
        return Failure(f"{name}: there is no such file; {CHOICES}")
    if path.suffix.lower() not in files.READERS:
        known = ", ".join(files.READERS)
        return Failure(f"{name}: its name ends in {path.suffix!r}, which is none of {known}")
    return _file(name, path, choice)


def _file(name: str, path: Path, choice: CodeValidationParameters) -> Result[RowSource, str]:
    """A user's own file, or one of APPS or buggy-apps."""
    columns = files.columns_of(path)
    if isinstance(columns, Failure):
        return Failure(f"{name}: {columns.failure()}")
    read = files.READERS[path.suffix.lower()]
    parts = {"": partial(read, path)}
    return _source(name, columns.unwrap(), choice, parts, partial(files.digest_of, [path]))


def _tables(
    name: str,
    choice: CodeValidationParameters,
    load: Callable[[], Result[Mapping[str, Any], str]],
) -> Result[RowSource, str]:
    """Tables of the `datasets` library, one a split."""
    loaded = load()
    if isinstance(loaded, Failure):
        return Failure(f"{name}: {loaded.failure()}")
    tables = loaded.unwrap()
    columns = list(dict.fromkeys(chain(*(table.column_names for table in tables.values()))))
    parts = {split: partial(files.table_rows, table) for split, table in tables.items()}
    return _source(name, columns, choice, parts, partial(files.fingerprint, tables))


def _source(
    name: str,
    columns: list[str],
    choice: CodeValidationParameters,
    parts: Mapping[str, Callable[[], files.Rows]],
    fingerprint: Callable[[], str],
) -> Result[RowSource, str]:
    """Rows of a form that their columns tell, part by part."""
    form = _form(columns, choice)
    if form is None:
        return Failure(
            f"{name}: needs the columns {', '.join(REQUIRED)} (or those of APPS or buggy-apps), "
            f"but has {', '.join(map(shown, columns[:MOST_TOLD])) or 'none'}"
        )

    def rows() -> Iterator[Placed]:
        for split, read in parts.items():
            wanted = _wanted(split, parts)
            for row_place, row in read():
                place = ", ".join(filter(None, (name, split, row_place)))
                found = [BadField("row", row)] if isinstance(row, str) else form(row, split)
                yield from (Placed(place, _wanting(one, wanted)) for one in found)

    own = form is _one_own
    unused = tuple(column for column in columns if own and column not in COLUMNS)
    return Success(RowSource(name, fingerprint(), rows, unused))


def _wanting(
    found: LabelledSolution | BadField, wanted: SplitHint | None
) -> LabelledSolution | BadField:
    """What was found, in the split of its table unless it names another itself."""
    if isinstance(found, BadField) or found.wanted or not wanted:
        return found
    return replace(found, wanted=wanted)


_Form = Callable[[Mapping[str, Any], str], Iterable[LabelledSolution | BadField]]


def _form(columns: list[str], choice: CodeValidationParameters) -> _Form | None:
    for needed, read in (
        (apps.BUGGY_COLUMNS, apps.buggy_apps_row),
        (apps.APPS_COLUMNS, apps.apps_row),
    ):
        if set(needed) <= set(columns):
            return partial(_of_apps, read, choice)
    return _one_own if set(REQUIRED) <= set(columns) else None


def _of_apps(
    read: Callable[[Mapping[str, Any], str, CodeValidationParameters], Iterator[LabelledSolution]],
    choice: CodeValidationParameters,
    row: Mapping[str, Any],
    split: str,
) -> Iterator[LabelledSolution | BadField]:
    try:
        yield from list(read(row, split, choice))  # all of a row, or nothing
    except apps.BadColumn as error:
        yield BadField(*error.args)


def _one_own(row: Mapping[str, Any], split: str) -> Iterable[LabelledSolution | BadField]:
    read = read_row(row)
    return [read.failure() if isinstance(read, Failure) else read.unwrap()]


def _builtin_python() -> Iterator[Placed]:
    return (Placed(solution.problem_id, solution) for solution in python.solutions())


def _wanted(split: str, splits: Collection[str]) -> SplitHint | None:
    """What the rows of a split want: to stay there; held out where none is for validation."""
    if len(splits) == 1:
        return None
    if split == "test" and "validation" not in splits:
        return "held out"
    return split if split in ("train", "validation", "test") else None  # type: ignore[return-value]
