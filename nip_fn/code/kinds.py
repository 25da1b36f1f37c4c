"""The kind of a data set's solutions: Python programs, or answers in words."""

import ast
from collections import Counter
from typing import Literal

from nip_fn.code.fingerprint import syntax_tree
from nip_fn.code.solutions import LabelledSolution
from nip_fn.game.datapoint import Kind

# "Paris", "42" and "x = 7" are Python as well, so a program has to do or define something.
_DOES = (
    *(ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.For, ast.While, ast.With, ast.Import, ast.ImportFrom),
)


Evidence = Literal["tests", "program", "words", "none"]


def is_program(text: str) -> bool:
    """True if the text is Python that calls, defines, repeats or imports something.

    >>> is_program("print(2)"), is_program("Paris"), is_program("It is Paris, the capital.")
    (True, False, False)
    """
    try:
        return any(isinstance(node, _DOES) for node in ast.walk(syntax_tree(text)))
    except SyntaxError:
        return False


def evidence(solution: LabelledSolution) -> Evidence:
    """The evidence that one solution gives of the kind of its data set."""
    if solution.tests is not None:
        return "tests"
    if not solution.solution:  # views stand for it, or its answer is to be written
        return "words" if solution.reference else "none"
    return "program" if is_program(solution.solution) else "words"


def data_kind(counts: Counter[Evidence]) -> Kind:
    """The kind of a data set, by the number of solutions that give each evidence.

    >>> data_kind(Counter(program=1, words=1)), data_kind(Counter(program=1, words=2))
    ('code', 'prose')
    """
    return "code" if counts["tests"] or counts["program"] >= counts["words"] else "prose"
