"""Solutions of problems, each known to be right or to have a bug: the rows of data sets."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success, safe

from nip_fn.code.programs import Tests, abbreviated, read_checks
from nip_fn.errors import Problem, collect
from nip_fn.game.datapoint import Datapoint, Kind, Split, make_datapoint, text_hash

# The split that a row asks for; "held out" leaves open whether to validation or to test.
SplitHint = Literal["train", "validation", "test", "held out"]

A_TEXT = "a text"
SAVE_AS_UTF_8 = "save the file in UTF-8"

_T = TypeVar("_T")


class BugOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The origin of a bug."""

    made_by: str  # "author", "model", or whatever else made it
    how: str = ""  # what is wrong, in words; the model
    passed: int = 0  # tests that it still passes
    tests: int = 0  # of this number
    distance: int = 0  # characters to change to make it right (Levenshtein)


class LabelledSolution(msgspec.Struct, frozen=True):
    """A solution of a problem, and all that is known of both.

    With views it need not be code: what each side is shown is then in its view.  Where a prover
    writes the answer, it has neither solution nor label, but a reference or tests.
    """

    question: str
    solution: str  # "" where views say all there is to say, or an answer is to be written
    label: int | None  # 1 right, 0 with a bug; None if the answer is to be written
    problem_id: str
    difficulty: str | None = None
    tests: Tests | None = None
    stance: int | None = None  # None: the parity of the solution's SHA-256
    wanted: SplitHint | None = None  # the split it is meant for; None: any
    origin: BugOrigin | None = None  # of a bug
    views: tuple[tuple[str, str], ...] = ()  # (role or agent's name, what it alone is shown)
    kind: Kind = "code"  # of its whole data set
    reference: str = ""  # the right answer, for a checker to compare with


class PlacedSolution(NamedTuple):
    """A solution in its place in a data set."""

    split: Split
    id: str  # of its datapoint
    solution: LabelledSolution


def datapoint_of(solution: LabelledSolution) -> Datapoint:
    """The datapoint that agents play about."""
    point = make_datapoint(
        solution.problem_id,
        solution.question,
        solution.solution,
        solution.label,
        solution.views,
        solution.kind,
        solution.reference,
    )
    return point if solution.stance is None else replace(point, stance=solution.stance)


def wording_hash(question: str, views: tuple[tuple[str, str], ...] = ()) -> str:
    """A hash of the words of a question, and of its views if it has any, whatever their layout."""
    return text_hash("\0".join(" ".join(text.split()) for text in (question, *sum(views, ()))))


def read_row(row: Mapping[str, Any]) -> Result[LabelledSolution, Problem]:
    """A row of a user's own file; fields that are missing, null or "" count as not given.

    `question`, `solution` (texts; Windows line ends become "\\n") and `label` (1 or true: right,
    0 or false: with a bug; also as texts) must be given; or else, if a prover is to write the
    answer, `question` and what it is checked by: `reference`, the right answer, or `tests`.
    `problem_id` (by default a hash of the
    question and of the views), `difficulty`, `tests` (see `read_tests`), `stance` (0 or 1), `split`
    and `origin` may be.  So may `views`, an object of texts by role or agent, or its parts, in
    columns named `view.ROLE`; a row that has any needs no `solution`.  A problem is found at the
    name of its field.
    """
    # CSV files and tables of Parquet can leave a cell empty, but not out.
    cells = {name: value for name, value in row.items() if value is not None and value != ""}
    columns = [name for name in cells if name.startswith(VIEW)]
    fields: dict[str, Any] = {}
    for name, (attribute, read) in {**_FIELDS, **{c: (c, read_text) for c in columns}}.items():
        if name in cells:
            match _guarded(read, cells[name]):
                case Success(value):
                    fields[attribute] = value
                case Failure(problem):
                    return Failure(problem.at(name))
        elif name == "question":
            return Failure(Problem("is missing", name))
    view_columns = [(name.removeprefix(VIEW), fields.pop(name)) for name in columns]
    views = (*fields.pop("views", ()), *view_columns)
    if len(dict(views)) < len(views):
        return Failure(Problem(f"has a view that {columns[0]} or another column has, too", "views"))
    is_written = "solution" not in fields and bool({"reference", "tests"} & fields.keys())
    if "label" not in fields and not is_written:
        return Failure(Problem("is missing", "label"))
    if not views and "solution" not in fields and "label" in fields:
        return Failure(Problem("is missing", "solution"))
    problem_id = wording_hash(fields["question"], views)
    fields = {"problem_id": problem_id, "solution": "", "label": None, **fields}
    return Success(LabelledSolution(**fields, views=views))


def _guarded(read: Callable[[Any], Result[Any, Problem]], value: object) -> Result[Any, Problem]:
    try:
        return read(value)
    except RecursionError:  # nested as deeply as JSON may be, which is too deep for repr
        return Failure(Problem("is nested too deeply"))


def write_row(solution: LabelledSolution) -> dict[str, Any]:
    """The row that `read_row` reads back."""
    row = msgspec.to_builtins(solution)
    row["split"] = row.pop("wanted")
    del row["kind"]  # no column: it follows from all rows
    row["views"] = dict(solution.views) or None
    return {name: value for name, value in row.items() if value not in (None, "")}


def read_text(value: object) -> Result[str, Problem]:
    """A text with "\\n" as its line ends."""
    if not isinstance(value, str):
        return Failure(Problem(f"{abbreviated(value)} is not {A_TEXT}"))
    try:
        # JSON can spell lone surrogates, which no prompt could be sent with.
        value.encode()
    except UnicodeEncodeError as error:
        return Failure(Problem(f"character {error.start + 1} is not UTF-8", remedy=SAVE_AS_UTF_8))
    if not value.strip():
        return Failure(Problem("is empty"))
    return Success(value.replace("\r\n", "\n").replace("\r", "\n"))


def read_json(text: str) -> Result[Any, Problem]:
    """The value that a text of JSON stands for."""
    decoded = safe((msgspec.DecodeError, RecursionError))(msgspec.json.decode)(text)
    return decoded.alt(lambda error: Problem(f"not JSON: {error}"))


def read_tests(value: object) -> Result[Tests, Problem]:
    """Tests in any form a data set writes them in.

    Lines like `add(1, 2) == 3`, as one text or a list; or the object of APPS, `{"fn_name": ...,
    "inputs": [...], "outputs": [...]}`, where `fn_name` is left out for scripts that read and
    print; or the object that `write_row` wrote; each also as the text of its JSON.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith(("{", "[")):
            return read_checks(value)
        return read_json(value).bind(_tests_of)
    return _tests_of(value)


def _tests_of(value: object) -> Result[Tests, Problem]:
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return read_checks("\n".join(value))
    if isinstance(value, Mapping):
        return _tests_of_table(_without_nulls(value))
    problem = f'{abbreviated(value)} is neither lines like "f(1) == 2" nor inputs and outputs'
    return Failure(Problem(problem))


def _tests_of_table(table: Mapping[str, Any]) -> Result[Tests, Problem]:
    inputs, outputs = table.get("inputs"), table.get("outputs")
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple):
        return Failure(Problem("inputs and outputs must be lists"))
    if len(inputs) != len(outputs):
        return Failure(Problem(f"{len(inputs)} inputs, but {len(outputs)} outputs"))
    if not inputs:
        return Failure(Problem("no test"))
    if "function" in table:
        return _converted(table, Tests)
    name = table.get("fn_name")
    if not name:
        return Success(
            Tests(inputs=tuple(map(_typed, inputs)), outputs=tuple(map(_typed, outputs)))
        )
    # In APPS each output of a function may stand in a list of one.  Nothing tells if that list is a
    # part of the answer, so a value may come with it or without.
    wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
    if wrapped:
        outputs = [output[0] for output in outputs]
    for number, arguments in enumerate(inputs, 1):
        if not isinstance(arguments, list):
            problem = f"input {number}: {abbreviated(arguments)} is no list of arguments"
            return Failure(Problem(problem))
    read = tuple(map(repr, inputs)), tuple(map(repr, outputs))
    return read_text(name).map(lambda function: Tests(function, *read, wrapped))


def _converted(table: Any, record: type[_T]) -> Result[_T, Problem]:
    """The record that a table stands for."""
    converted = safe((msgspec.ValidationError,))(msgspec.convert)(table, record)
    return converted.alt(lambda error: Problem(str(error)))


def _without_nulls(table: Any) -> Any:
    """The table without nulls: in a column of tables each has one for what only others have."""
    if not isinstance(table, Mapping):
        return table
    return {name: value for name, value in table.items() if value is not None}


def _typed(lines: object) -> str:
    """The text that a script reads or prints, given as such or as a list of lines."""
    return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)


def _label(value: object) -> Result[int, Problem]:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return Success(int(value.lower() == "true"))
    return _zero_or_one(value, "1 (right) nor 0 (with a bug)")


def _stance(value: object) -> Result[int, Problem]:
    return _zero_or_one(value, "1 (accept) nor 0 (reject)")


def _zero_or_one(value: object, meaning: str) -> Result[int, Problem]:
    if value in (0, 1, "0", "1"):
        return Success(int(value))
    return Failure(Problem(f"{abbreviated(value)} is neither {meaning}"))


def _split(value: object) -> Result[SplitHint, Problem]:
    if value in get_args(SplitHint):
        return Success(value)  # type: ignore[arg-type]
    return Failure(Problem(f"{abbreviated(value)} is none of {', '.join(get_args(SplitHint))}"))


def _name(value: object) -> Result[str, Problem]:
    # `type`, because True is an int as well and names no problem.
    return read_text(str(value) if type(value) is int else value)


def _views(value: object) -> Result[tuple[tuple[str, str], ...], Problem]:
    read = read_json(value) if isinstance(value, str) else Success(value)
    return read.bind(_views_of_table)


def _views_of_table(table: object) -> Result[tuple[tuple[str, str], ...], Problem]:
    if not isinstance(table, Mapping):
        return Failure(Problem(f"{abbreviated(table)} is no object of texts by role"))
    # A table of Parquet has an entry for every role that any row has a view of.
    views = {str(name): text for name, text in table.items() if text not in (None, "")}
    read = (read_text(text).alt(partial(Problem.at, address=n)) for n, text in views.items())
    return collect(read).map(lambda texts: tuple(zip(views, texts, strict=True)))


def _origin(value: object) -> Result[BugOrigin, Problem]:
    read = read_json(value) if isinstance(value, str) else Success(value)
    return read.map(_without_nulls).bind(lambda table: _converted(table, BugOrigin))


REQUIRED = ("question", "solution", "label")  # a row with views needs no solution

VIEW = "view."  # before the role that a column holds the view of

# Column: the attribute it becomes, and how it is read.
_FIELDS: dict[str, tuple[str, Callable[[object], Result[Any, Problem]]]] = {
    "question": ("question", read_text),
    "solution": ("solution", read_text),
    "label": ("label", _label),
    "problem_id": ("problem_id", _name),
    "difficulty": ("difficulty", read_text),
    "tests": ("tests", read_tests),
    "stance": ("stance", _stance),
    "split": ("wanted", _split),
    "origin": ("origin", _origin),
    "views": ("views", _views),
    "reference": ("reference", _name),
}

ROW_COLUMNS = tuple(_FIELDS)
