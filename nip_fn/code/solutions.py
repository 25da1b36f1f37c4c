"""Solutions of problems, each known to be right or to have a bug: what data sets are made of."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.code.programs import Tests, read_checks, shown
from nip_fn.game.datapoint import Datapoint, Split, make_datapoint, text_hash

# Where a row says it belongs; "held out" leaves open whether to validation or to test.
SplitHint = Literal["train", "validation", "test", "held out"]

TEXT = "a text"


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a bug came to be."""

    made_by: Literal["author", "mutation", "model"]
    how: str = ""  # what is wrong, in words; the operator of the mutation; the model
    line: int = 0  # of the solution, from 1
    before: str = ""  # the source text that a mutation replaced
    after: str = ""  # and by what
    passed: int = 0  # tests that it still passes
    tests: int = 0  # of so many
    distance: int = 0  # characters to change to make it right (Levenshtein)


class LabelledSolution(msgspec.Struct, frozen=True):
    """A solution of a problem, and what is known of both."""

    question: str
    solution: str
    label: int  # 1 right, 0 with a bug
    problem_id: str
    difficulty: str | None = None
    tests: Tests | None = None
    stance: int | None = None  # None: the parity of the solution's SHA-256
    wanted: SplitHint | None = None  # the split it is meant for; None: any
    origin: Origin | None = None  # of a bug


class PlacedSolution(NamedTuple):
    """A solution in its place in a data set."""

    split: Split
    id: str  # of its datapoint
    solution: LabelledSolution


class BadField(NamedTuple):
    """Why a row cannot be used."""

    field: str
    problem: str


def datapoint_of(solution: LabelledSolution) -> Datapoint:
    """The datapoint that agents play about."""
    point = make_datapoint(
        solution.problem_id, solution.question, solution.solution, solution.label
    )
    return point if solution.stance is None else replace(point, stance=solution.stance)


def wording_hash(question: str) -> str:
    """The same for questions in the same words, however they are laid out."""
    return text_hash(" ".join(question.split()))


def read_row(row: Mapping[str, Any]) -> Result[LabelledSolution, BadField]:
    """A row of a user's own file; fields that are missing, null or "" count as not given.

    `question`, `solution` (texts; Windows line ends become "\\n") and `label` (1 or true: right,
    0 or false: with a bug; also as texts) must be given.  `problem_id` (by default a hash of the
    question), `difficulty`, `tests` (see `read_tests`), `stance` (0 or 1), `split` and `origin` may
    be.
    """
    given = {name: value for name, value in row.items() if value is not None and value != ""}
    fields: dict[str, Any] = {}
    for name, (attribute, read) in _FIELDS.items():
        if name in given:
            try:
                fields[attribute] = read(given[name])
            except (ValueError, TypeError, RecursionError) as error:
                return Failure(BadField(name, str(error)))
        elif name in REQUIRED:
            return Failure(BadField(name, "is missing"))
    fields.setdefault("problem_id", wording_hash(fields["question"]))
    return Success(LabelledSolution(**fields))


def write_row(solution: LabelledSolution) -> dict[str, Any]:
    """The row that `read_row` reads back."""
    row = msgspec.to_builtins(solution)
    row["split"] = row.pop("wanted")
    return {name: value for name, value in row.items() if value is not None}


def read_text(value: object) -> str:
    """A text with "\\n" as its line ends; raises ValueError for what is not a text."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not {TEXT}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start + 1} is no Unicode (save the file in UTF-8)"
        ) from None
    if not value.strip():
        raise ValueError("is empty")
    return value.replace("\r\n", "\n").replace("\r", "\n")


def read_tests(value: object) -> Tests:
    """Tests in any form a data set writes them in; raises ValueError.

    Lines like `add(1, 2) == 3`, as one text or a list; or the object of APPS, `{"fn_name": ...,
    "inputs": [...], "outputs": [...]}`, where `fn_name` is left out for scripts that read and
    print; or what `write_row` wrote; each also as the text of its JSON.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith(("{", "[")):
            return read_checks(value)
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return read_checks("\n".join(value))
    if isinstance(value, Mapping):
        return _tests_of_table(value)
    raise ValueError(f'{shown(value)} is neither lines like "f(1) == 2" nor inputs and outputs')


def _tests_of_table(given: Mapping[str, Any]) -> Tests:
    table = _without_nulls(given)
    inputs, outputs = table.get("inputs"), table.get("outputs")
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple):
        raise ValueError("inputs and outputs must be lists")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs, but {len(outputs)} outputs")
    if not inputs:
        raise ValueError("no test")
    if "function" in table:
        return msgspec.convert(table, Tests)
    name = table.get("fn_name")
    if not name:
        return Tests(inputs=tuple(map(_typed, inputs)), outputs=tuple(map(_typed, outputs)))
    wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
    if wrapped:
        outputs = [output[0] for output in outputs]
    for number, arguments in enumerate(inputs, 1):
        if not isinstance(arguments, list):
            raise ValueError(f"input {number}: {shown(arguments)} is no list of arguments")
    return Tests(
        function=read_text(name),
        inputs=tuple(map(repr, inputs)),
        outputs=tuple(map(repr, outputs)),
        wrapped=wrapped,
    )


def _without_nulls(table: Mapping[str, Any]) -> dict[str, Any]:
    """Only what is given: a column of tables has a null for what others of its tables have."""
    return {name: value for name, value in table.items() if value is not None}


def _typed(lines: object) -> str:
    """What a script reads or prints: a text, or a list of its lines."""
    if isinstance(lines, list):
        return "\n".join(map(str, lines))
    return str(lines)


def _label(value: object) -> int:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return int(value.lower() == "true")
    return _zero_or_one(value, "1 (right) nor 0 (with a bug)")


def _stance(value: object) -> int:
    return _zero_or_one(value, "1 (accept) nor 0 (reject)")


def _zero_or_one(value: object, meaning: str) -> int:
    if value in (0, 1, "0", "1"):
        return int(value)
    raise ValueError(f"{shown(value)} is neither {meaning}")


def _split(value: object) -> SplitHint:
    if value in get_args(SplitHint):
        return value  # type: ignore[return-value]
    raise ValueError(f"{shown(value)} is none of {', '.join(get_args(SplitHint))}")


def _name(value: object) -> str:
    return read_text(str(value) if type(value) is int else value)


def _origin(value: Any) -> Origin:
    try:
        if isinstance(value, str):
            value = msgspec.json.decode(value)
        return msgspec.convert(
            _without_nulls(value) if isinstance(value, Mapping) else value, Origin
        )
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


REQUIRED = ("question", "solution", "label")

# Column: the attribute it becomes, and how it is read.
_FIELDS: dict[str, tuple[str, Callable[[object], object]]] = {
    "question": ("question", read_text),
    "solution": ("solution", read_text),
    "label": ("label", _label),
    "problem_id": ("problem_id", _name),
    "difficulty": ("difficulty", read_text),
    "tests": ("tests", read_tests),
    "stance": ("stance", _stance),
    "split": ("wanted", _split),
    "origin": ("origin", _origin),
}

COLUMNS = tuple(_FIELDS)
