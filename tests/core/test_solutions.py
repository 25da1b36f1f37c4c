import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.code.programs import RunResult, Tests, tally
from nip_fn.code.solutions import (
    REQUIRED,
    ROW_COLUMNS,
    BugOrigin,
    LabelledSolution,
    datapoint_of,
    read_row,
    read_tests,
    write_row,
)
from nip_fn.errors import Problem
from nip_fn.game.datapoint import text_hash

ROW: Mapping[str, Any] = {
    "question": "Add two numbers.",
    "solution": "def add(a, b):\n    return a + b\n",
    "label": 1,
}
TWO = Tests(function="add", inputs=("[1, 2]", "[0, 0]"), outputs=("3", "0"))
DEEP = "[" * 100_000

UNICODE = st.characters(exclude_categories=["Cs"], exclude_characters="\r")
TEXTS = st.text(UNICODE, min_size=1).filter(str.strip)
LITERALS = st.lists(st.integers() | st.text(UNICODE)).map(repr)


@st.composite
def tables_of_tests(draw: st.DrawFn) -> Tests:
    inputs = tuple(draw(st.lists(LITERALS, min_size=1, max_size=3)))
    outputs = tuple(draw(LITERALS) for _ in inputs)
    return Tests(function=draw(st.none() | TEXTS), inputs=inputs, outputs=outputs)


NUMBERS = st.integers(0, 2**40)
ORIGINS = st.builds(
    BugOrigin,
    made_by=st.sampled_from(["author", "model", "mutation"]),
    how=st.text(UNICODE),
    passed=NUMBERS,
    tests=NUMBERS,
    distance=NUMBERS,
)
VIEWS = st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=3).map(lambda d: tuple(d.items()))
WITHOUT_VIEWS = st.builds(
    LabelledSolution,
    question=TEXTS,
    solution=TEXTS,
    label=st.integers(0, 1),
    problem_id=TEXTS,
    difficulty=st.none() | TEXTS,
    tests=st.none() | tables_of_tests(),
    stance=st.none() | st.integers(0, 1),
    wanted=st.none() | st.sampled_from(["train", "validation", "test", "held out"]),
    origin=st.none() | ORIGINS,
)
SOLUTIONS = WITHOUT_VIEWS | st.builds(
    LabelledSolution,
    question=TEXTS,
    solution=st.just("") | TEXTS,
    label=st.integers(0, 1),
    problem_id=TEXTS,
    views=VIEWS,
)


def good(**fields: object) -> LabelledSolution:
    read: LabelledSolution = read_row({**ROW, **fields}).unwrap()
    return read


def bad(**fields: object) -> Problem:
    found: Problem = read_row({**ROW, **fields}).failure()
    assert "\n" not in found.problem
    assert len(found.problem) < 400
    return found


@given(solution=SOLUTIONS)
def test_what_is_written_is_read_back(solution: LabelledSolution) -> None:
    row = write_row(solution)
    assert set(row) <= set(ROW_COLUMNS)
    assert read_row(row).unwrap() == solution
    assert read_row(json.loads(json.dumps(row))).unwrap() == solution
    assert read_row(msgspec.json.decode(msgspec.json.encode(row))).unwrap() == solution


@given(solution=SOLUTIONS)
def test_a_row_of_texts_alone_is_read_back_as_from_csv(solution: LabelledSolution) -> None:
    row = write_row(solution)
    cells = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()
    }
    assert read_row({**dict.fromkeys(ROW_COLUMNS, ""), **cells}).unwrap() == solution


@given(solution=SOLUTIONS)
def test_a_row_with_nulls_for_all_that_is_missing_is_read_back(solution: LabelledSolution) -> None:
    nulls = dict.fromkeys(ROW_COLUMNS)
    row = {**nulls, **write_row(solution)}
    if row["origin"]:
        row["origin"] = {**dict.fromkeys(BugOrigin.__struct_fields__), **row["origin"]}
    if row["tests"]:
        row["tests"] = {"fn_name": None, **row["tests"]}
    assert read_row(row).unwrap() == solution


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
), column=st.sampled_from(ROW_COLUMNS))  # fmt: skip
def test_whatever_a_field_holds_it_is_read_or_named(value: object, column: str) -> None:
    read = read_row({**ROW, column: value})
    problem = read.swap().value_or(None)
    assert problem is None or problem.address.split(":")[0] == column


@pytest.mark.parametrize("column", REQUIRED)
@pytest.mark.parametrize("nothing", [None, ""])
def test_what_must_be_given_is_missed(column: str, nothing: str | None) -> None:
    assert bad(**{column: nothing}) == Problem("is missing", column)
    row = {name: value for name, value in ROW.items() if name != column}
    assert read_row(row).failure() == Problem("is missing", column)


@pytest.mark.parametrize("column", sorted(set(ROW_COLUMNS) - set(REQUIRED)))
@pytest.mark.parametrize("nothing", [None, ""])
def test_what_may_be_given_need_not_be(column: str, nothing: str | None) -> None:
    assert good(**{column: nothing}) == good()


def test_columns_that_nothing_is_read_from_do_not_matter() -> None:
    assert good(author="me", wanted="test", function=3) == good()


@given(solution=SOLUTIONS)
def test_a_column_for_each_view_holds_what_an_object_does(solution: LabelledSolution) -> None:
    row = write_row(solution)
    flat = {f"view.{name}": text for name, text in row.pop("views", {}).items()}
    assert read_row({**row, **flat}).unwrap() == solution
    # In a table every row has the columns that any row needs.
    assert read_row({**dict.fromkeys(ROW_COLUMNS), **row, **flat, "view.nobody": ""}).unwrap() == (
        solution
    )


def test_with_views_no_solution_is_needed() -> None:
    read = good(solution=None, views={"verifier": "poured", "prover": "tasted", "judge": None})
    assert (read.solution, read.views) == ("", (("verifier", "poured"), ("prover", "tasted")))
    assert datapoint_of(read).view("prover") == "tasted"
    assert bad(solution=None, views={"judge": None}) == Problem("is missing", "solution")
    other = good(solution=None, views={"verifier": "poured", "prover": "read"})
    assert other.problem_id != read.problem_id  # the question is the same


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"views": "prover: I"}, "views"),
        ({"views": ["prover"]}, "views"),
        ({"views": DEEP}, "views"),
        ({"views": {"prover": 3}}, "views: prover"),
        ({"views": {"prover": " "}}, "views: prover"),
        ({"view.prover": 3}, "view.prover"),
        ({"views": {"prover": "I"}, "view.prover": "I"}, "views"),
    ],
)
def test_views_that_cannot_be_read_are_named(fields: dict[str, object], address: str) -> None:
    assert bad(**fields).address == address


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1, 1), (0, 0), (True, 1), (False, 0), ("1", 1), ("0", 0), (1.0, 1),
        ("true", 1), ("True", 1), ("FALSE", 0),
    ],
)  # fmt: skip
def test_labels(value: object, label: int) -> None:
    assert good(label=value).label == label
    assert type(good(label=value).label) is int


@pytest.mark.parametrize("value", [2, -1, 0.5, "yes", "right", "2", " ", [1], {"a": 1}, b"1"])
def test_other_labels_are_refused(value: object) -> None:
    assert bad(label=value).address.split(":")[0] == "label"


@pytest.mark.parametrize("column", ["question", "solution"])
@pytest.mark.parametrize(
    "value",
    [3, True, ["a"], {"a": 1}, b"text", " ", "\n\t", "half \ud800", "latin-1 \udce9"],
    ids=repr,
)
def test_texts_are_texts(column: str, value: object) -> None:
    assert bad(**{column: value}).address.split(":")[0] == column


def test_characters_that_are_none_are_counted_from_one() -> None:
    assert "character 4 " in bad(question="caf\udce9").problem
    assert "UTF-8" in bad(question="caf\udce9").problem


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_line_ends_do_not_make_another_solution(end: str) -> None:
    texts = {name: ROW[name].replace("\n", end) for name in ("question", "solution")}
    assert good(**texts) == good()
    assert datapoint_of(good(**texts)) == datapoint_of(good())


def test_non_ascii_prose_and_code_are_kept() -> None:
    texts = {"question": "Größe – 日本語 🙂", "solution": "größe = '日本\u2028'\r\n"}
    assert good(**texts).question == texts["question"]
    assert good(**texts).solution == "größe = '日本\u2028'\n"


def test_a_problem_is_named_by_the_words_of_its_question() -> None:
    assert good().problem_id == text_hash("Add two numbers.")
    assert good(question=" Add  two\r\nnumbers. ").problem_id == good().problem_id
    assert good(question="Add three numbers.").problem_id != good().problem_id


def test_problem_ids_may_be_numbers() -> None:
    assert good(problem_id=7).problem_id == "7"
    assert good(problem_id="7").problem_id == "7"
    for value in (7.5, True, ["7"], " "):
        assert bad(problem_id=value).address.split(":")[0] == "problem_id"


@pytest.mark.parametrize("value", [1.5, " ", ["easy"], "\ud800"])
def test_difficulties_are_texts(value: object) -> None:
    assert good(difficulty="easy").difficulty == "easy"
    assert bad(difficulty=value).address.split(":")[0] == "difficulty"


@pytest.mark.parametrize("value", [0, 1, "0", "1", True])
def test_a_given_stance_goes_before_the_parity_of_the_hash(value: object) -> None:
    assert datapoint_of(good(stance=value)).stance == int(value)  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [2, "accept", -1, 0.5, []])
def test_other_stances_are_refused(value: object) -> None:
    assert bad(stance=value).address.split(":")[0] == "stance"


@given(text=TEXTS)
def test_the_stance_is_the_parity_of_the_solutions_sha256(text: str) -> None:
    point = datapoint_of(good(solution=text))
    assert point.stance == int(sha256(text.encode()).hexdigest(), 16) % 2
    assert point.id == datapoint_of(good(solution=text, difficulty="easy", problem_id="x")).id
    assert point.id != datapoint_of(good(solution=text, label=0)).id


@pytest.mark.parametrize("value", ["train", "validation", "test", "held out"])
def test_a_row_may_say_where_it_belongs(value: str) -> None:
    assert good(split=value).wanted == value


@pytest.mark.parametrize("value", ["dev", "Train", 1, ["train"], {"a": 1}])
def test_other_splits_are_refused(value: object) -> None:
    assert bad(split=value).address.split(":")[0] == "split"


@pytest.mark.parametrize(
    "value",
    [3, "made by hand", "[]", DEEP, {"made_by": 3}, {}, {"made_by": "model", "passed": "x"}, []],
    ids=lambda value: repr(value)[:20],
)
def test_origins_that_cannot_be_read_are_refused(value: object) -> None:
    assert bad(origin=value).address.split(":")[0] == "origin"


@pytest.mark.parametrize(
    "form",
    [
        "add(1, 2) == 3\nadd(0, 0) == 0",
        "\r\n add(1, 2) == 3\r\n\r\nadd(0, 0) == 0 # nothing\r\n",
        ["add(1, 2) == 3", "add(0, 0) == 0"],
        '["add(1, 2) == 3", "add(0, 0) == 0"]',
        {"fn_name": "add", "inputs": [[1, 2], [0, 0]], "outputs": [3, 0]},
        {"fn_name": "add", "inputs": [[1, 2], [0, 0]], "outputs": [3, 0], "function": None},
        '{"fn_name": "add", "inputs": [[1, 2], [0, 0]], "outputs": [3, 0]}',
        {"function": "add", "inputs": ["[1, 2]", "[0, 0]"], "outputs": ["3", "0"]},
        ' {"function": "add", "inputs": ["[1, 2]", "[0, 0]"], "outputs": ["3", "0"]}',
    ],
    ids=lambda form: repr(form)[:25],
)
def test_tests_in_every_form_are_the_same(form: object) -> None:
    assert read_tests(form).unwrap() == TWO
    assert good(tests=form).tests == TWO


@pytest.mark.parametrize("text", ["3", "[3]"])
def test_an_output_that_apps_wraps_in_a_list_may_come_with_the_list_or_without(text: str) -> None:
    wrapped = read_tests({"fn_name": "f", "inputs": [[1]], "outputs": [[3]]}).unwrap()
    assert tally(wrapped, [RunResult("returned", text)]).all_passed
    assert not tally(wrapped, [RunResult("returned", "[[3]]")]).passed
    plain = read_tests({"fn_name": "f", "inputs": [[1]], "outputs": [3]}).unwrap()
    assert tally(plain, [RunResult("returned", text)]).all_passed is (text == "3")


@pytest.mark.parametrize(
    "form",
    [
        {"inputs": ["1 2\n3\n", "4"], "outputs": ["5\n", "6"]},
        {"inputs": [["1 2", "3", ""], 4], "outputs": [["5", ""], 6]},
        {"inputs": ["1 2\n3\n", "4"], "outputs": ["5\n", "6"], "fn_name": None},
        {"inputs": ["1 2\n3\n", "4"], "outputs": ["5\n", "6"], "function": None},
        '{"inputs": ["1 2\\n3\\n", "4"], "outputs": ["5\\n", "6"]}',
    ],
    ids=lambda form: repr(form)[:25],
)
def test_scripts_are_tested_by_what_they_read_and_print(form: object) -> None:
    assert read_tests(form).unwrap() == Tests(inputs=("1 2\n3\n", "4"), outputs=("5\n", "6"))


def test_outputs_that_are_not_all_wrapped_stay_as_they_are() -> None:
    table = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 2]]}
    assert read_tests(table).unwrap().outputs == ("[1]", "[1, 2]")


def test_large_integers_in_json_stay_exact() -> None:
    text = f'{{"fn_name": "f", "inputs": [[{10**30}]], "outputs": [{10**30 + 1}]}}'
    assert read_tests(text).unwrap() == Tests(
        function="f", inputs=(f"[{10**30}]",), outputs=(str(10**30 + 1),)
    )


@pytest.mark.parametrize(
    "form",
    [
        "works",
        "add(1, 2)",
        "{",
        "[]",
        "[1]",
        "{}",
        DEEP,
        '{"a":' * 100_000,
        5,
        b"add(1, 2) == 3",
        [],
        [1],
        ["add(1, 2) == 3", 1],
        ["add(1, 2) == 3", "sub(1, 2) == 3"],
        {},
        {"inputs": [], "outputs": []},
        {"inputs": ["1"]},
        {"inputs": "1", "outputs": "2"},
        {"inputs": ["1"], "outputs": ["2", "3"]},
        {"fn_name": "f", "inputs": ["abc"], "outputs": [1]},
        {"fn_name": "f", "inputs": [5], "outputs": [1]},
        {"fn_name": "f", "inputs": [{"a": 1}], "outputs": [1]},
        {"fn_name": 5, "inputs": [[5]], "outputs": [1]},
        {"function": 5, "inputs": ["[1]"], "outputs": ["1"]},
        {"function": "f", "inputs": [[1]], "outputs": ["1"]},
        {"function": "f", "inputs": ["[1]"], "outputs": ["1"], "more": 1},
    ],
    ids=lambda form: repr(form)[:30],
)
def test_what_is_no_test_is_refused(form: object) -> None:
    assert bad(tests=form).address.split(":")[0] == "tests"
