"""The costs of running programs that nobody trusts, against running them in this process."""

import ast
import asyncio
import time
from collections.abc import Iterator
from statistics import median

from returns.result import Success

from nip_fn.code.programs import Limits, Program
from nip_fn_adapters.sandbox import Sandbox, limited, open_sandbox

CODE = """
from typing import List

class Solution:
    def two_sum(self, numbers: List[int], target: int) -> List[int]:
        seen = {}
        for place, number in enumerate(numbers):
            if target - number in seen:
                return [seen[target - number], place]
            seen[number] = place
        return []
"""
TESTS = 10
PROGRAM = Program(CODE, "two_sum", tuple(f"[[2, 7, 11, 15], {9 + n}]" for n in range(TESTS)))
ONE = Program(CODE, "two_sum", PROGRAM.inputs[:1])
ROUNDS = 20
AT_ONCE = 4


def bare_seconds() -> float:
    """Seconds of the ten tests in this process: the code is compiled once and run for each."""
    began = time.perf_counter()
    for _ in range(ROUNDS):
        code = compile(CODE, "<program>", "exec")
        for text in PROGRAM.inputs:
            names: dict[str, type] = {}
            exec(code, names)
            repr(names["Solution"]().two_sum(*ast.literal_eval(text)))
    return (time.perf_counter() - began) / ROUNDS


async def seconds(box: Sandbox, program: Program, at_once: int) -> float:
    """Median seconds of one run of the program, with `at_once` of them at a time."""
    times = []
    for _ in range(ROUNDS // at_once):
        began = time.perf_counter()
        ran = await asyncio.gather(*(box(program, Limits()) for _ in range(at_once)))
        times.append((time.perf_counter() - began) / at_once)
        assert all(isinstance(result, Success) for result in ran)
    return median(times)


def figures(box: Sandbox, bare: float) -> str:
    """The costs of a sandbox in words."""
    whole = asyncio.run(seconds(box, PROGRAM, 1))
    one = asyncio.run(seconds(box, ONE, 1))
    together = asyncio.run(seconds(box, PROGRAM, AT_ONCE))
    each = (whole - one) / (TESTS - 1)
    return (
        f"{whole * 1e3:.0f} ms, {whole / bare:.0f} × in-process; "
        f"{each * 1e3:.1f} ms for each more test; "
        f"{AT_ONCE} at once: {1 / together:.0f} programs/s, {TESTS / together:.0f} tests/s"
    )


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; there are no larger sizes."""
    bare = bare_seconds()
    yield f"a program of {TESTS} quick tests, in-process", f"{bare * 1e3:.2f} ms"
    isolated = open_sandbox().map(lambda box: figures(box, bare))
    yield "the same, in bubblewrap (aim 60 ms)", isolated.value_or("cannot be used here")
    yield "the same, with resource limits alone", figures(limited(), bare)
