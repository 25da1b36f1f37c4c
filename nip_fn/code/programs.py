"""Programs that nobody trusts, their tests, and the results of running them.

A program is run on inputs alone: it never sees what is expected, so nothing it does to the process
it runs in can make a wrong output agree.  Comparing is done here, on the text that came out.
"""

import ast
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, collect
from nip_fn.params.base import Count, Positive, Record

_T = TypeVar("_T")

Ending = Literal["returned", "raised", "timeout", "memory", "output", "died"]

# Characters of the longest text that is compared: parsing hostile literals costs memory.
LONGEST_OUTPUT = 1 << 20
# And at most 32 times the expected text, and 1000 characters more: no way to write a
# value is, and parsing a set of integers with the same hash costs time, too (seconds for 256 kB).
STRETCH, SLACK = 32, 1000
RELATIVE = 1e-6


class Tests(Record, frozen=True):
    """Inputs of a program, and the output that each must lead to.

    With a function, an input is the text of a Python list of arguments and an output the text of a
    Python literal; without one, the program is a script, the input is what it reads and the output
    what it prints.
    """

    __test__ = False  # pytest takes the name for a test class

    function: str | None = None  # its name; a method of a class Solution will do
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    wrapped: bool = False  # an output may also come in a list of its own, as in APPS


class Limits(Record, frozen=True):
    """Limits of one program; a test that exceeds a limit ends, and the next one begins."""

    seconds: Annotated[
        Positive, Meta(description="of processor time of each test; four times that on the clock")
    ] = 4.0
    total_seconds: Annotated[Positive, Meta(description="of all tests together")] = 60.0
    memory_mb: Annotated[Count, Meta(description="of address space")] = 512
    output_kb: Annotated[Count, Meta(description="printed or returned in a test")] = 256
    processes: Annotated[Count, Meta(description="and threads, at a time")] = 16
    files_mb: Annotated[Count, Meta(description="written, in all")] = 16
    give_up: Annotated[
        bool, Meta(description="after the first test that runs out of time, take all to do so")
    ] = False


# The expected outputs are not in it, so that no program can find them, however it looks.
class Program(Record, frozen=True):
    """A request to a sandbox: the code, to be run once for each input."""

    code: str
    function: str | None
    inputs: tuple[str, ...]


class RunResult(msgspec.Struct, frozen=True):
    """The end of a program's run on one input.

    "returned" also stands for a script that ended well; "died" for a process that vanished without
    a word (`os._exit`, a signal); the others name the limit that was hit or that code raised.
    """

    ending: Ending
    text: str = ""  # the literal returned, what was printed, or "ValueError: ..."


# Four outcomes and not two: only a wrong output shows a subtle bug, a crash or a standstill would
# give it away (`bugs.is_subtle`).
class Tally(msgspec.Struct, frozen=True):
    """Counts of a program's tests by outcome."""

    passed: int = 0
    wrong: int = 0  # ended well, with another output than expected
    crashed: int = 0  # raised, died, or used too much memory or output
    stopped: int = 0  # ran out of time

    @property
    def tests(self) -> int:
        """The number of tests."""
        return self.passed + self.wrong + self.crashed + self.stopped

    @property
    def all_passed(self) -> bool:
        """True if there were tests and every one passed."""
        return 0 < self.tests == self.passed


class _Check(NamedTuple):
    """A line that calls a function and compares what it returns."""

    line: int
    function: str
    arguments: str
    expected: str


def program(code: str, tests: Tests) -> Program:
    """The program that runs code on the inputs of its tests."""
    return Program(code=code, function=tests.function, inputs=tests.inputs)


def tally(tests: Tests, runs: Sequence[RunResult]) -> Tally:
    """The counts of outcomes over the runs of a program, one for each test."""
    pairs = zip(runs, tests.outputs, strict=True)
    outcomes = [_outcome(tests, run, expected) for run, expected in pairs]
    return Tally(*(outcomes.count(name) for name in ("passed", "wrong", "crashed", "stopped")))


def _outcome(tests: Tests, run: RunResult, expected: str) -> str:
    if run.ending != "returned":
        return "stopped" if run.ending == "timeout" else "crashed"
    if tests.function is None:
        agree = prints_alike(expected, run.text)
    else:
        agree = agrees(expected, run.text)
        agree = agree or (tests.wrapped and agrees(f"[{expected}]", run.text))
    return "passed" if agree else "wrong"


def agrees(expected: str, got: str) -> bool:
    """True if two literals are the same value, floats to a relative error of 1e-6.

    A tuple agrees with a list of the same items, as data read from JSON knows only lists; True
    does not agree with 1.  What is in a set or a key of a dict must be equal exactly.

    >>> agrees("[(1, 'a'), 0.3]", "[[1, 'a'], 0.30000000001]"), agrees("1", "True")
    (True, False)
    """
    if expected == got:
        return True
    if max(len(expected), len(got)) > LONGEST_OUTPUT or len(got) > STRETCH * len(expected) + SLACK:
        return False
    try:
        return _alike(ast.literal_eval(expected), ast.literal_eval(got))
    # All that hostile text can make the parser raise: it agrees with nothing, and ends no run.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _alike(expected: Any, got: Any) -> bool:
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        return len(expected) == len(got) and all(map(_alike, expected, got))
    # True equals 1 in Python, but an answer of 1 to a question of yes or no is a wrong one.
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return _near(expected, got)
    if isinstance(expected, dict) and isinstance(got, dict):
        return _typed(expected) == _typed(got) and all(
            _alike(expected[k], got[k]) for k in expected
        )
    if isinstance(expected, set) and isinstance(got, set):
        return _typed(expected) == _typed(got)
    return type(expected) is type(got) and bool(expected == got)


def _typed(items: Iterable[Any]) -> set[tuple[bool, Any]]:
    """Items of a set, or keys of a dict, such that True is not 1."""
    return {(isinstance(item, bool), item) for item in items}


def _near(expected: float, got: float) -> bool:
    if isinstance(expected, int) and isinstance(got, int):
        return expected == got
    try:
        # The absolute part is for results near zero, of which no relative error is small.
        return math.isclose(expected, got, rel_tol=RELATIVE, abs_tol=1e-9)
    except OverflowError:  # an integer beyond all floats
        return False


def prints_alike(expected: str, got: str) -> bool:
    """True if two printed texts agree line by line and word by word.

    Space between words and around the text does not count; numbers with a decimal point or an
    exponent agree to a relative error of 1e-6.

    >>> prints_alike("1 2\\n0.5\\n", "1 2 \\r\\n0.5000000001"), prints_alike("1\\n2", "1 2")
    (True, False)
    """
    expected_lines, lines = ([line.split() for line in _lines(text)] for text in (expected, got))
    return len(expected_lines) == len(lines) and all(
        len(expected_words) == len(words) and all(map(_same_word, expected_words, words))
        for expected_words, words in zip(expected_lines, lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


def _same_word(expected: str, got: str) -> bool:
    if expected == got:
        return True
    # Integers must agree digit by digit, as rounding them would hide an error by one.  `float` also
    # reads "1_0" as 10, which no program prints for that.
    if not any(mark in expected for mark in ".eE") or "_" in got:
        return False
    try:
        return math.isclose(float(expected), float(got), rel_tol=RELATIVE, abs_tol=1e-9)
    except ValueError:
        return False


def read_checks(text: str) -> Result[Tests, Problem]:
    """The tests that lines like `merge([[1, 3], [2, 6]]) == [[1, 6]]` stand for.

    All call the same function, with literals, and compare with a literal; otherwise a problem at
    the address "line N".

    >>> read_checks("add(1, 2) == 3\\n\\nadd(0, 0) == 0").unwrap().inputs
    ('[1, 2]', '[0, 0]')
    """
    numbered = enumerate(text.split("\n"), 1)  # a literal may hold other line ends
    checks = [_check(line.strip(), number) for number, line in numbered if line.strip()]
    return collect(checks).bind(_tests_of)


def _tests_of(checks: tuple[_Check, ...]) -> Result[Tests, Problem]:
    """The tests of lines that were read."""
    if not checks:
        return Failure(Problem("no test"))
    first = checks[0]
    for check in checks:
        if check.function != first.function:
            problem = f"calls {check.function}, the lines before {first.function}"
            return Failure(Problem(problem, f"line {check.line}"))
    inputs, outputs = (tuple(texts) for texts in zip(*(check[2:] for check in checks), strict=True))
    return Success(Tests(function=first.function, inputs=inputs, outputs=outputs))


def _check(line: str, number: int) -> Result[_Check, Problem]:
    """The check that one line stands for."""
    problem = "is not `function(literals) == literal`"
    try:
        match ast.parse(line, mode="eval").body:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id=name), args=args, keywords=[]),
                ops=[ast.Eq()],
                comparators=[expected],
            ):
                arguments = f"[{', '.join(map(_literal, args))}]"
                # Arguments and result are rendered anew from the tree: what is recorded is a
                # literal and nothing else, however the line was written.
                return Success(_Check(number, name, arguments, _literal(expected)))
    except (ValueError, SyntaxError, TypeError) as error:
        problem = f": {error.msg if isinstance(error, SyntaxError) else error}"
    except (MemoryError, RecursionError):
        problem = ": nested too deeply"
    return Failure(
        Problem(f"{abbreviated(line, 120)} {problem}".replace(" :", ":"), f"line {number}")
    )


def abbreviated(value: object, most: int = 40) -> str:
    """A value for people to recognise, cut short."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _literal(node: ast.expr) -> str:
    ast.literal_eval(node)
    return ast.unparse(node)
