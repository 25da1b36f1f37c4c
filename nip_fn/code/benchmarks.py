"""Benchmarks of the field, by name: how each row is read, shown and checked.

Where the data have options or wrong solutions, a right and a wrong claim are made of them; where
they have right answers alone, as GSM8K and MATH, there is a right claim and no wrong one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.code.builtin.apps import read_apps
from nip_fn.code.programs import Tests
from nip_fn.code.questions import Claim, Question, read_column, read_list
from nip_fn.code.solutions import read_tests, read_text
from nip_fn.errors import Problem, collect
from nip_fn.game.datapoint import Kind, text_hash
from nip_fn.keys import fold_in, key, permutation, randint
from nip_fn.params.data import CodeValidationParameters

CheckerName = Literal["exact", "number", "choice", "tests"]

# (row, the name of its table, the choice of rows of APPS) -> its question; () if it is left out.
_Read = Callable[
    [Mapping[str, Any], str, CodeValidationParameters], Result[tuple[Question, ...], Problem]
]

# The data never change with a run's seed: the same name is the same data.
_KEY = key(0)

PYTHON_3 = 3  # among the languages of CodeContests

_GPQA_WRONG = tuple(f"Incorrect Answer {number}" for number in (1, 2, 3))
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's marks of what a calculator was asked
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+)")


class Benchmark(NamedTuple):
    """A data set of the field.

    hub: its name on the Hugging Face hub.
    config: the configuration there; None for its only one.
    columns: those by which its tables are recognised.
    kind: of its solutions.
    checker: what decides if an answer is right; None where the data give nothing to decide by.
    read: the question of a row.
    """

    hub: str
    config: str | None
    columns: tuple[str, ...]
    kind: Kind
    checker: CheckerName | None
    read: _Read


# ----------------------------------------------------------------------------------------- numbers


def _gsm8k(row: Mapping[str, Any], *_: object) -> Result[tuple[Question, ...], Problem]:
    """Steps in words, and on the last line `#### 72`."""
    return Result.do(
        (_worked(text, f"{steps}\nAnswer: {number}", number),)
        for text in read_column(row, "question")
        for answer in read_column(row, "answer")
        for steps, number in _steps_and_number(_CALCULATOR.sub("", answer))
    )


def _steps_and_number(answer: str) -> Result[tuple[str, str], Problem]:
    steps, mark, number = answer.rpartition("####")
    if not mark or not number.strip():
        return Failure(Problem('has no number after "####"', "answer"))
    return Success((steps.strip(), number.strip()))


def _math(row: Mapping[str, Any], *_: object) -> Result[tuple[Question, ...], Problem]:
    """A solution in LaTeX, with its answer in a box."""
    return Result.do(
        (_worked(text, solution, answer, str(row.get("level") or "") or None),)
        for text in read_column(row, "problem")
        for solution in read_column(row, "solution")
        for answer in _boxed(solution)
    )


def _boxed(solution: str) -> Result[str, Problem]:
    r"""The content of the last box: `\boxed{...}`, braces in it matched, or `\boxed 3$`."""
    boxes = list(_BOX.finditer(solution))
    rest = solution[boxes[-1].end() :] if boxes else ""
    if not boxes or boxes[-1][0].endswith("{"):
        answer = _before_closing_brace(rest)
    else:
        answer = rest.partition("$")[0]
    if not answer.strip():
        return Failure(Problem(r"has no answer in \boxed{}", "solution"))
    return Success(answer.strip())


def _before_closing_brace(text: str) -> str:
    """The text before the brace that closes one opened before it; "" if none does."""
    depth = 1
    for end, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return text[:end]
    return ""


def _worked(text: str, solution: str, answer: str, difficulty: str | None = None) -> Question:
    """A question of which a right solution is known, and no wrong one."""
    return Question(text, answer, (Claim(solution, 1),), text_hash(text), difficulty)


# ----------------------------------------------------------------------------------------- choices


def _gpqa(row: Mapping[str, Any], *_: object) -> Result[tuple[Question, ...], Problem]:
    """A right answer and three wrong ones, put in an order by the question's key."""

    def question(text: str, answers: Sequence[str]) -> Question:
        order = permutation(fold_in(_KEY, "options", text), len(answers))
        options = [answers[index].strip() for index in order]
        return _choice(text, options, order.index(0), str(row.get("Record ID") or text_hash(text)))

    return Result.do(
        (question(text, answers),)
        for text in read_column(row, "Question")
        for answers in collect(
            read_column(row, column) for column in ("Correct Answer", *_GPQA_WRONG)
        )
    )


def _quality(row: Mapping[str, Any], *_: object) -> Result[tuple[Question, ...], Problem]:
    """A question about an article that provers read and the verifier does not."""

    def question(text: str, article: str, options: Sequence[str], right: int) -> Question:
        chosen = _choice(text, options, right, text_hash(f"{text}\0{text_hash(article)}"))
        difficulty = "hard" if row.get("hard") else "easy"
        return chosen._replace(difficulty=difficulty, views=(("prover", article),))

    return Result.do(
        (question(text, article, options, right),)
        for text in read_column(row, "question")
        for article in read_column(row, "article")
        for options in read_list(row, "options")
        for right in _index(row, "answer", len(options))
    )


def _index(row: Mapping[str, Any], column: str, number: int) -> Result[int, Problem]:
    """The index of the right one of some options, two or more."""
    value = row.get(column)
    if isinstance(value, int) and 0 <= value < number and 1 < number <= len(ascii_uppercase):
        return Success(value)
    return Failure(Problem(f"{value!r} is not the index of one of {number} options", column))


def _choice(text: str, options: Sequence[str], right: int, problem_id: str) -> Question:
    """A question with lettered options; the right one and, by its key, a wrong one are claimed.

    Args:
        text: Without the options.
        options: Two or more.
        right: The index of the right one.
        problem_id: Of the question.
    """
    letters = ascii_uppercase[: len(options)]
    lettered = [f"({letter}) {option}" for letter, option in zip(letters, options, strict=True)]
    wrong = [
        option
        for option, content in zip(lettered, options, strict=True)
        if content != options[right]
    ]
    with_options = "\n".join((text.strip(), "", *lettered))
    if not wrong:
        return Question(with_options, letters[right], (), problem_id)
    # By a key of its own: if the first wrong option were claimed, its letter would betray it.
    chosen = wrong[randint(fold_in(_KEY, "wrong option", problem_id, text), len(wrong))]
    claims = Claim(lettered[right], 1), Claim(chosen, 0)
    return Question(with_options, letters[right], claims, problem_id)


# ---------------------------------------------------------------------------------------- programs


def _code_contests(row: Mapping[str, Any], *_: object) -> Result[tuple[Question, ...], Problem]:
    """A right and a wrong program in Python 3 by the problem's key, if it has both."""
    if row.get("input_file"):  # programs that read a file, which the sandbox does not have
        return Success(())
    problem_id = f"{row.get('source')}/{row.get('name')}"
    return Result.do(
        (Question(text, "", _paired(problem_id, right, wrong), problem_id, None, tests),)
        for text in read_column(row, "description")
        for right in _in_python(row, "solutions")
        for wrong in _in_python(row, "incorrect_solutions")
        for tests in _contest_tests(row)
    )


def _paired(problem_id: str, right: Sequence[str], wrong: Sequence[str]) -> tuple[Claim, ...]:
    """One solution of either label; none where a label has none, which would tell the other."""
    if not right or not wrong:
        return ()
    draw = fold_in(_KEY, "programs", problem_id)
    return (
        Claim(right[randint(fold_in(draw, "right"), len(right))], 1),
        Claim(wrong[randint(fold_in(draw, "wrong"), len(wrong))], 0),
    )


def _in_python(row: Mapping[str, Any], column: str) -> Result[tuple[str, ...], Problem]:
    """The programs of a column that are written in Python 3."""
    return read_list(row, column).bind(
        lambda entries: collect(
            read_text(entry.get("solution")).alt(lambda problem: problem.at(column))
            for entry in entries
            if isinstance(entry, Mapping) and entry.get("language") == PYTHON_3
        )
    )


def _contest_tests(row: Mapping[str, Any]) -> Result[Tests | None, Problem]:
    """All tests of a problem: public ones, private ones, and generated ones."""
    columns = ("public_tests", "private_tests", "generated_tests")

    def read(lists: Sequence[list[Any]]) -> Result[Tests | None, Problem]:
        cases = list(chain(*lists))
        if not all(
            isinstance(case, Mapping) and {"input", "output"} <= set(case) for case in cases
        ):
            return Failure(Problem("a test is no pair of input and output", columns[0]))
        table = {f"{name}s": [case[name] for case in cases] for name in ("input", "output")}
        return read_tests(table) if cases else Success(None)

    return collect(read_list(row, column) for column in columns).bind(read)


_GPQA = Benchmark(
    hub="Idavidrein/gpqa",
    config="gpqa_main",
    columns=("Question", "Correct Answer", *_GPQA_WRONG),
    kind="choice",
    checker="choice",
    read=_gpqa,
)

_APPS = Benchmark(
    hub="codeparrot/apps",
    config=None,
    columns=("question", "solutions", "input_output", "difficulty"),
    kind="code",
    checker="tests",
    read=read_apps,
)

BENCHMARKS: Mapping[str, Benchmark] = {
    "gpqa": _GPQA,
    "gpqa-diamond": _GPQA._replace(config="gpqa_diamond"),
    "quality": Benchmark(
        hub="emozilla/quality",
        config=None,
        columns=("article", "question", "options", "answer"),
        kind="choice",
        checker="choice",
        read=_quality,
    ),
    "math": Benchmark(
        hub="DigitalLearningGmbH/MATH-lighteval",
        config=None,
        columns=("problem", "solution", "level"),
        kind="prose",
        checker="exact",
        read=_math,
    ),
    "gsm8k": Benchmark(
        hub="openai/gsm8k",
        config="main",
        columns=("question", "answer"),
        kind="number",
        checker="number",
        read=_gsm8k,
    ),
    "code-contests": Benchmark(
        hub="deepmind/code_contests",
        config=None,
        columns=("description", "solutions", "incorrect_solutions"),
        kind="code",
        checker="tests",
        read=_code_contests,
    ),
    "apps": _APPS,
    "buggy-apps": _APPS._replace(
        hub="lrhammond/buggy-apps",
        columns=("question", "solutions", "buggy_solutions", "difficulty"),
        checker=None,  # its rows have no tests
    ),
}


def benchmark_of(columns: Sequence[str]) -> Benchmark | None:
    """The benchmark that tables with these columns are of; None if of none.

    The one with the most columns, since GSM8K's are also those of others.
    """
    matching = [b for b in BENCHMARKS.values() if set(b.columns) <= set(columns)]
    return max(matching, key=lambda benchmark: len(benchmark.columns), default=None)
