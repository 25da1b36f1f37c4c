"""Small tables in the true shapes of the benchmarks, made up for this project."""

from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]

WORD = "pear"  # of the articles, and of nothing else


def gsm8k(first: int, last: int) -> Rows:
    """Sums, whose steps are marked for a calculator."""
    return [
        {
            "question": f"Ann has {n} nuts and finds {n} more. How many has she?",
            "answer": f"She has {n}+{n}=<<{n}+{n}={2 * n}>>{2 * n} nuts.\n#### {2 * n:,}",
        }
        for n in range(first, last)
    ]


def math(first: int, last: int) -> Rows:
    """Problems in LaTeX."""
    return [
        {
            "problem": f"What is ${n}/7$ as a fraction?",
            "level": f"Level {n % 5 + 1}",
            "solution": rf"Not \boxed{{0}}, but $\boxed{{\frac{{{n}}}{{7}}}}$.",
            "type": "Prealgebra",
        }
        for n in range(first, last)
    ]


def gpqa(first: int, last: int) -> Rows:
    """Questions with one right and three wrong answers; the true tables have columns more."""
    return [
        {
            "Record ID": f"rec{n}",
            "Question": f"Which number is {n}?\n",
            "Correct Answer": f"{n}\n",
            **{f"Incorrect Answer {k}": f"{n}+{k}" for k in (1, 2, 3)},
            "Explanation": "It is.",
            "Subdomain": "Arithmetic",
            "High-level domain": "Mathematics",
        }
        for n in range(first, last)
    ]


def quality(first: int, last: int) -> Rows:
    """Questions about articles, two of each."""
    return [
        {
            "article": f"The {WORD} of story {n // 2}. " * 20,
            "question": f"Who is {n % 2}?",
            "options": [f"{name} {n}" for name in ("Ada", "Bob", "Cid", "Dan")],
            "answer": n % 4,
            "hard": n % 3 == 0,
        }
        for n in range(first, last)
    ]


def code_contests(first: int, last: int) -> Rows:
    """Problems with solutions in C++ (2), Python 2 (1) and Python 3 (3)."""

    def table(sign: str, n: int) -> dict[str, list[Any]]:
        programs = ["int main() {}", "print input()", f"print(int(input()) {sign} {n})"]
        return {"language": [2, 1, 3], "solution": programs}

    return [
        {
            "name": f"{n}_A. Add",
            "description": f"Read a number and add {n}.",
            "public_tests": {"input": ["1\n"], "output": [f"{n + 1}\n"]},
            "private_tests": {"input": ["2\n"], "output": [f"{n + 2}\n"]},
            "generated_tests": {"input": ["3\n", "4\n"], "output": [f"{n + 3}\n", f"{n + 4}\n"]},
            "source": 2,
            "difficulty": 7,
            "solutions": table("+", n),
            "incorrect_solutions": table("-", n),
            "input_file": "",
            "output_file": "",
        }
        for n in range(first, last)
    ]
