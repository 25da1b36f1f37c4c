"""What laying out a data set costs: rows per second, and memory as rows grow in number."""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from os import environ
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from nip_fn.config.codec import from_dict
from nip_fn_adapters.data.opening import CACHE_VARIABLE, open_data
from tests.benchmarks.memory import peak_megabytes

SOLUTIONS = 5  # of each problem
READ_AT_A_TIME = 100


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Solutions of 20 to 23 lines, all different, five of each problem."""
    for number in range(count):
        problem, random = number // SOLUTIONS, Random(number)
        yield {
            "problem_id": f"problem-{problem}",
            "question": question(problem),
            "solution": solution(problem, random),
            "label": number % 2,
            "difficulty": ("introductory", "interview", "competition")[problem % 3],
            "tests": f"solve([{problem}, 2, 3], {problem}) == {problem * 7}",
        }


def question(problem: int) -> str:
    """About a thousand characters, as those of APPS."""
    sentence = f"Given a list of integers and the number {problem}, count what lies between. "
    return f"Problem {problem}.\n" + sentence * 12


def solution(problem: int, random: Random) -> str:
    """A program that looks like one."""
    body = [
        f"        if values[i] % {random.randrange(2, 99)} == {random.randrange(9)}:\n"
        f"            total += values[i] - {random.randrange(1000)}\n"
        f"            seen[i] = {random.randrange(99)}"
        for _ in range(random.randrange(4, 6))
    ]
    lines = [
        "def solve(values, limit):",
        f'    """Problem {problem}."""',
        "    total, seen = 0, {}",
        "    for i in range(len(values)):",
        *body,
        "    best = max(seen.values(), default=0)",
        f"    while best > {problem}:",
        "        best -= limit or 1",
        "    return sorted(seen, key=lambda value: (-seen[value], value))[:best], total",
    ]
    return "\n".join(lines) + "\n"


def write(path: Path, count: int) -> None:
    """A file of so many rows, of the form that its name tells."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(list(rows(count))), path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows(count))
        else:
            writer = csv.DictWriter(file, list(next(rows(1))))
            writer.writeheader()
            writer.writerows(rows(count))


def measure(path: Path) -> dict[str, float]:
    """Lay a file out, open it again, read it all: seconds, and the peak of memory in MB."""
    params = from_dict({"dataset": str(path)}).unwrap()

    before, began = peak_megabytes(), time.perf_counter()
    open_data(params).unwrap()
    made, kept = time.perf_counter(), peak_megabytes()
    data = open_data(params).unwrap()
    opened = time.perf_counter()
    size = data.info.train_size
    for start in range(0, size, READ_AT_A_TIME):
        data.source("train", range(start, min(start + READ_AT_A_TIME, size)))
    read = time.perf_counter()
    return {
        "seconds": made - began, "again": opened - made, "read": size / (read - opened),
        "peak": kept, "grown": kept - before,
    }  # fmt: skip


def fresh(path: Path) -> dict[str, float]:
    """The same, in a process that has done nothing before."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_data", str(path)],
        check=True,
        capture_output=True,
        env={**environ, CACHE_VARIABLE: str(path.parent / "cache")},
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; of 100,000 rows if `full`."""
    few, many = (10_000, 100_000) if full else (2_000, 20_000)
    figures = dict[int, dict[str, float]]()
    with TemporaryDirectory() as folder:
        for suffix, count in ((".csv", 2_000), (".parquet", 2_000), (".jsonl", few),
                              (".jsonl", many)):  # fmt: skip
            path = Path(folder) / f"{count}{suffix}"
            write(path, count)
            found = figures[count] = fresh(path)
            name = f"data: {count:,} rows of {suffix.removeprefix('.').upper()}, first use"
            yield name, f"{count / found['seconds']:,.0f} rows/s, peak {found['peak']:.0f} MB"
    large, small = figures[many], figures[few]
    ratio = f"{large['peak'] / small['peak']:.2f}; {large['grown'] / many * 1e3:.2f} kB a row"
    yield f"data: peak memory, {many:,} rows / {few:,} rows (aim: far below 10)", ratio
    yield f"data: {many:,} rows, each later use", f"{large['again']:.2f} s"
    yield "data: drawn from the laid-out file", f"{large['read']:,.0f} datapoints/s"


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
