"""Data sets of every form, written to files as other programs write them."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_fn.config.codec import from_dict
from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.data.building import BadRows
from nip_fn_adapters.data.opening import Data, open_data
from nip_fn_adapters.extensions import remember_sources

from ..lazily import datasets

Rows = Sequence[Mapping[str, Any]]
DIFFICULTIES = ("introductory", "interview", "competition")
SKIP = {"skip_bad_rows": True}
GOOD = {"question": "q", "solution": "print(1)", "label": 1}


def code(kind: int, number: int, name: str = "value") -> str:
    """One of many programs; those that differ in the name alone are near-duplicates."""
    return f"def f({name}):\n    {name} = {name} * {kind}\n    return {name} + {number}\n"


def own_rows(problems: int = 30) -> list[dict[str, Any]]:
    """Problems with unequal numbers of solutions; some share a question, some nearly a solution."""
    rows = []
    for n in range(problems):
        for k in range(n % 4 + 1):
            twin = n % 6 == 5 and k == 0  # the same code as the problem before, with other names
            solution = code(n - 1, 0, "other") if twin else code(n, k)
            rows.append(
                {
                    "question": f"Größe {n // 2 if n % 10 == 1 else n + 1000}? 日本\n",
                    "solution": solution,
                    "label": int((n + k) % 3 > 0),
                    "problem_id": f"p{n}",
                    "difficulty": DIFFICULTIES[n % 3],
                    "tests": "f(1) == 1\nf(2) == 2",
                }
            )
    return rows


def apps_rows(first: int = 0, last: int = 30) -> list[dict[str, Any]]:
    """Rows in the schema of codeparrot/apps."""
    return [
        {
            "problem_id": n - first,
            "question": f"Größe {n % 23}?\r\n日本\r\n",
            "solutions": json.dumps([code(n % 19, k) for k in range(n % 4)]) if n % 4 else "",
            "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["é\n"]}) if n % 3 else "",
            "difficulty": DIFFICULTIES[n % 2],
            "url": f"https://example.org/{n}",
            "starter_code": "",
        }
        for n in range(first, last)
    ]


def buggy_rows(first: int = 0, last: int = 30) -> list[dict[str, Any]]:
    """Rows in the schema of lrhammond/buggy-apps; either list may be the longer or empty."""
    return [
        {
            "apps_split": "train" if n % 5 else "test",
            "apps_problem_id": n,
            "difficulty": DIFFICULTIES[n % 2],
            "question": f"Größe {n % 23}?\r\n日本\r\n",
            "solutions": [
                {"apps_solution_number": k, "solution": code(n % 19, k).replace("\n", "\r\n")}
                for k in range(n % 4)
            ],
            "buggy_solutions": [
                {
                    "apps_solution_number": k,
                    "solution": code(n % 19, 100 + k),
                    "levenshtein_distance": {"normalised": 0.1, "raw": 2},
                    "checks": {"pass": 3, "fail": 1, "error": 0},
                    "generation_attempts": 1,
                }
                for k in range((n + 2) % 3)
            ],
            "flags": (None, [], ["violence"])[n % 3] if n > 8 else None,
        }
        for n in range(first, last)
    ]


def to_jsonl(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def to_csv(path: Path, rows: Rows) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(
            {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()} for row in rows
        )
    return path


def to_parquet(path: Path, rows: Rows) -> Path:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def to_saved(path: Path, **splits: Rows) -> Path:
    tables = {name: datasets.Dataset.from_list(list(rows)) for name, rows in splits.items()}
    datasets.DatasetDict(tables).save_to_disk(path)
    return path


def to_saved_alone(path: Path, rows: Rows) -> Path:
    datasets.Dataset.from_list(list(rows)).save_to_disk(path)
    return path


def params_of(dataset: object, **options: Any) -> HyperParameters:
    """Parameters; options that begin with apps_ are code_validation's."""
    apps = {"apps_difficulty": "all"} | {k: v for k, v in options.items() if k.startswith("apps_")}
    others = {k: v for k, v in options.items() if not k.startswith("apps_")}
    table = {"dataset": str(dataset), "dataset_options": others, "code_validation": apps}
    # One split alone is for tests.
    rl = {"rl": {"num_iterations": 0}} if "only_split" in options else {}
    return from_dict({**table, **rl}).unwrap()


def opened(dataset: object, **options: Any) -> Data:
    remember_sources({"dataset": str(dataset)})
    data: Data = open_data(params_of(dataset, **options)).unwrap()
    return data


def refused(dataset: object, **options: Any) -> str:
    """Why there is no such data set: one line."""
    problem = open_data(params_of(dataset, **options)).failure()
    assert isinstance(problem, Problem), problem
    assert "\n" not in str(problem)
    return str(problem)


def bad_rows(dataset: object, **options: Any) -> list[str]:
    problem = open_data(params_of(dataset, **options)).failure()
    assert isinstance(problem, BadRows), problem
    assert problem.count == len(problem.first)
    return [str(row) for row in problem.first]


def solutions(data: Data) -> list[str]:
    return sorted(laid.solution.solution for laid in data.solutions())


def shape(data: Data) -> set[tuple[object, ...]]:
    """What the data set holds, without the names that files and tables give to problems."""
    return {
        (laid.id, one.question, one.solution, one.label, one.difficulty, one.tests)
        for laid in data.solutions()
        for one in [laid.solution]
    }


OWN: Mapping[str, Callable[[Path, Rows], Path]] = {
    "jsonl": lambda folder, rows: to_jsonl(folder / "own.jsonl", rows),
    "csv": lambda folder, rows: to_csv(folder / "own.csv", rows),
    "parquet": lambda folder, rows: to_parquet(folder / "own.parquet", rows),
    "saved alone": lambda folder, rows: to_saved_alone(folder / "alone", rows),
    "saved in splits": lambda folder, rows: to_saved(
        folder / "splits", train=rows[:30], test=rows[30:]
    ),
    "downloaded jsonl": lambda folder, rows: (
        (
            to_jsonl(folder / "down/train.jsonl", rows[:30]),
            to_jsonl(folder / "down/test.jsonl", rows[30:]),
        )[0].parent
    ),
    "downloaded parquet": lambda folder, rows: (
        (
            to_parquet(folder / "hub/data/train-00000-of-00001.parquet", rows[:30]),
            to_parquet(folder / "hub/data/validation-00000-of-00001.parquet", rows[30:45]),
            to_parquet(folder / "hub/data/test-00000-of-00001.parquet", rows[45:]),
        )[0].parent.parent
    ),
}

LOADERS: Mapping[str, Callable[[Path], Path]] = {
    **{name: lambda folder, make=make: make(folder, own_rows()) for name, make in OWN.items()},
    "apps as jsonl": lambda folder: to_jsonl(folder / "apps.jsonl", apps_rows()),
    "apps as parquet": lambda folder: to_parquet(folder / "apps.parquet", apps_rows()),
    "apps saved": lambda folder: to_saved(
        folder / "apps", train=apps_rows(0, 20), test=apps_rows(20, 40)
    ),
    "buggy-apps as jsonl": lambda folder: to_jsonl(folder / "buggy.jsonl", buggy_rows()),
    "buggy-apps saved": lambda folder: to_saved(
        folder / "buggy", train=buggy_rows(0, 20), test=buggy_rows(20, 40)
    ),
    "buggy-apps saved alone": lambda folder: to_saved_alone(folder / "buggy1", buggy_rows()),
}
