"""What is wrong with a file, a row or a name is said in a line, with its place."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nip_fn_adapters.data.opening import open_data

from .datafiles import (
    GOOD,
    SKIP,
    bad_rows,
    buggy_rows,
    opened,
    params_of,
    refused,
    solutions,
    to_csv,
    to_jsonl,
    to_parquet,
    to_saved,
)

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.xdist_group("data")]


def test_jsonl_may_have_a_mark_windows_line_ends_and_blank_lines(folder: Path) -> None:
    lines = [json.dumps({**GOOD, "solution": f"print({n})"}) for n in range(4)]
    text = "\ufeff" + lines[0] + "\r\n\r\n  \r\n" + "\r\n".join(lines[1:])
    (folder / "a.jsonl").write_text(text, "utf-8", newline="")
    assert solutions(opened("a.jsonl")) == [f"print({n})" for n in range(4)]


def test_every_bad_line_is_named_by_file_line_and_field(folder: Path) -> None:
    lines = [
        json.dumps(GOOD),
        "{",
        "",
        "[1]",
        '"text"',
        json.dumps({**GOOD, "label": 5}),
        json.dumps({"question": "q", "label": 1}),
        json.dumps({**GOOD, "tests": "no test"}),
        "[" * 100_000,
        '{"question": NaN}',
        json.dumps({**GOOD, "solution": "print(1)", "label": 0}),  # the same with another label
        json.dumps({**GOOD, "solution": "print(2)"}),
    ]
    binary = b"\n".join(line.encode() for line in lines) + b'\n{"question": "caf\xe9"}\n{"que'
    (folder / "a.jsonl").write_bytes(binary)
    told = bad_rows("a.jsonl")
    places = [line.split(": ")[0] for line in told]
    assert places == [
        "a.jsonl, line 2, row", "a.jsonl, line 4, row", "a.jsonl, line 5, row",
        "a.jsonl, line 6, label", "a.jsonl, line 7, solution", "a.jsonl, line 8, tests",
        "a.jsonl, line 9, row", "a.jsonl, line 10, row", "a.jsonl, line 11, label",
        "a.jsonl, line 13, row", "a.jsonl, line 14, row",
    ]  # fmt: skip
    assert all("\n" not in line and len(line) < 300 for line in told)
    data = opened("a.jsonl", **SKIP)
    assert data.report.bad == len(told)
    assert solutions(data) == ["print(1)", "print(2)"]


def test_half_of_a_surrogate_pair_is_a_bad_row(folder: Path) -> None:
    (folder / "a.jsonl").write_text(json.dumps(GOOD) + '\n{"question": "\\ud800"}\n')
    assert [line[:19] for line in bad_rows("a.jsonl")] == ["a.jsonl, line 2, ro"]


def test_cells_may_hold_quotes_commas_and_line_ends(folder: Path) -> None:
    rows = [
        {**GOOD, "question": 'a "quoted", word\nand é', "solution": 'print("a,b")\n\nprint(1)\n'},
        {**GOOD, "question": "\u2028", "solution": "x = '\x0b'\n"},
        {**GOOD, "label": "true", "solution": "print(3)"},
    ]
    rows[1]["question"] = "a\u2028b"
    expected = sorted(row["solution"] for row in rows)
    text = to_csv(folder / "a.csv", rows).read_text("utf-8")
    for variant in (text, "\ufeff" + text, text.replace("\r\n", "\n"), text.rstrip("\r\n")):
        (folder / "a.csv").write_text(variant, "utf-8", newline="")
        assert solutions(opened("a.csv")) == expected


def test_every_bad_csv_row_is_named_by_file_row_and_field(folder: Path) -> None:
    text = (
        "question,solution,label\n"
        "q,print(1),1\n"
        "q,print(2),1,more\n"
        "q,print(3)\n"
        "q,caf\xe9,1\n"
        'q,"print"(4),1\n'
        "q,print(5),maybe\n"
        ",print(6),1\n"
        "\n"
        "q,print(7),0\n"
        'q,"never closed,1\n'
    )
    (folder / "a.csv").write_bytes(text.encode("latin-1"))
    told = bad_rows("a.csv")
    assert [line.split(": ")[0] for line in told] == [
        "a.csv, row 2, row", "a.csv, row 3, label", "a.csv, row 4, solution", "a.csv, row 5, row",
        "a.csv, row 6, label", "a.csv, row 7, question", "a.csv, row 9, row",
    ]  # fmt: skip
    assert "UTF-8" in told[2]
    data = opened("a.csv", **SKIP)
    assert data.report.bad == len(told)
    assert solutions(data) == ["print(1)", "print(7)"]


def test_long_cells_are_read(folder: Path) -> None:
    row = {**GOOD, "solution": f"x = 1  # {'long ' * 100_000}"}
    assert solutions(opened(to_csv(folder / "a.csv", [row]))) == [row["solution"]]


def test_bad_rows_of_saved_tables_are_named_by_split_and_row(folder: Path) -> None:
    bad = {**buggy_rows()[3], "solutions": [{"apps_solution_number": 0, "solution": ""}]}
    path = to_saved(folder / "a", train=buggy_rows(), test=[*buggy_rows(30, 34), bad])
    (line,) = bad_rows(path)
    assert line == f"{path}, test, row 5, solutions: is empty"
    assert opened(path, **SKIP).report.bad == 1


def test_a_bad_entry_leaves_out_all_of_its_row(folder: Path) -> None:
    right = [{"solution": "print(1)"}, {"solution": ""}]
    rows = [*buggy_rows(), {**buggy_rows()[0], "apps_problem_id": 99, "solutions": right}]
    data = opened(to_jsonl(folder / "a.jsonl", rows), **SKIP)
    assert data.report.bad == 1
    assert "print(1)" not in solutions(data)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", ["question", "none"]),
        ("a.jsonl", b"{\n{\n", ["line 1", "not JSON"]),
        ("a.jsonl", b"\x80\x04\x95", ["line 1", "not JSON"]),
        ("a.jsonl", b'{"q": 1}', ["question", "'q'"]),
        ("a.jsonl", b'{"' + b"q" * 100_000 + b'": 1}', ["question"]),
        ("a.csv", b"", ["question", "none"]),
        ("a.csv", b"question,label\n", ["solution", "'label'"]),
        ("a.csv", b'question,"a\nb",label\n', ["solution", "'a\\nb'"]),
        ("a.csv", b'"question\n', ["not CSV"]),
        ("a.csv", b'"a"b,c\n', ["not CSV"]),
        ("a.csv", bytes(range(256)) * 1000, []),
        ("a.csv", b"question,solution,label\n", ["none of its rows"]),
        ("a.parquet", b"", ["not a Parquet file"]),
        ("a.parquet", b"PAR1" * 100, ["not a Parquet file"]),
        ("a.txt", b"", [".txt", ".jsonl"]),
        ("a", b"", ["''", ".jsonl"]),
        ("a.json", b"[]", [".json", ".jsonl"]),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_in_one_line(
    folder: Path, name: str, content: bytes, words: list[str]
) -> None:
    (folder / name).write_bytes(content)
    line = refused(name)
    assert name in line
    assert all(word in line for word in words), line
    assert len(line) < 1500


@pytest.mark.parametrize("name", ["a.jsonl", "builtin:nothing", "hf:", "", "builtin:"])
def test_a_name_that_stands_for_nothing_is_refused_with_what_there_is(name: str) -> None:
    line = refused(name) if name else str(open_data(replace(params_of("x"), dataset="")).failure())
    assert "builtin:python" in line
    assert "hf:NAME" in line


def test_damage_inside_a_parquet_file_ends_the_reading(folder: Path) -> None:
    rows = [{**GOOD, "solution": f"print({n}) # {n * 7919}"} for n in range(20_000)]
    whole = to_parquet(folder / "a.parquet", rows).read_bytes()
    (folder / "a.parquet").write_bytes(whole[:2000] + b"\xff" * 5000 + whole[7000:])
    for options in ({}, SKIP):
        found = open_data(params_of("a.parquet", **options)).failure()
        assert "a.parquet" in str(found)
    (folder / "a.parquet").write_bytes(whole[:-100])
    assert "not a Parquet file" in refused("a.parquet")


@pytest.mark.parametrize("content", [{}, {"a.txt": "x"}, {"dataset_dict.json": "{"},
                                     {"state.json": "{}"}, {"train.jsonl": "{"}])  # fmt: skip
def test_a_directory_that_holds_no_data_is_refused_in_one_line(
    folder: Path, content: dict[str, str]
) -> None:
    (folder / "a").mkdir()
    for name, text in content.items():
        (folder / "a" / name).write_text(text)
    assert refused("a").startswith("dataset: a: ")
