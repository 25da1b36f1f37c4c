"""Fingerprints: equal for programs that differ in names and layout alone, and for no others."""

import ast
import bisect
import builtins
import heapq
import inspect
import keyword
import statistics
import textwrap
import tokenize
import warnings
from collections.abc import Callable
from functools import cache
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.code.builtin import python
from nip_fn.code.fingerprint import DEEPEST_TREE, fingerprint

from .fresh import printed

ALIKE = {
    "names of functions, arguments and variables": (
        "def f(a, *b, c=1, **d):\n    e = a\n    return e, b, c, d, f",
        "def g(v, *w, x=1, **y):\n    z = v\n    return z, w, x, y, g",
    ),
    "names of classes": ("class A: pass\nx = A()", "class B: pass\ny = B()"),
    "names of imports": ("import numpy as np\nnp.sum()", "import numpy\nnumpy.sum()"),
    "names taken from modules": ("from m import a as b\nb()", "from m import a\na()"),
    "names in comprehensions": ("f([a for a in b if a])", "f([c for c in b if c])"),
    "names bound by a walrus in a comprehension": (
        "def f(a): return [y for x in a if (y := x)], y",
        "def f(a): return [z for x in a if (z := x)], z",
    ),
    "names of errors and files": (
        "try: f()\nexcept E as e:\n    with g() as h: i(e, h)",
        "try: f()\nexcept E as x:\n    with g() as y: i(x, y)",
    ),
    "names in patterns": (
        "match v:\n    case [a, *b] | {'k': a, **b} if a: f(a, b)\n    case c: g(c)",
        "match v:\n    case [x, *y] | {'k': x, **y} if x: f(x, y)\n    case z: g(z)",
    ),
    "global names": (
        "n = 0\ndef f():\n    global n\n    n += 1",
        "m = 0\ndef f():\n    global m\n    m += 1",
    ),
    "global names bound in a function alone": (
        "def f():\n    global n\n    n = 1\ndef g(): return n",
        "def f():\n    global m\n    m = 1\ndef g(): return m",
    ),
    "nonlocal names": (
        "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1",
        "def f():\n    m = 0\n    def g():\n        nonlocal m\n        m += 1",
    ),
    "a name that hides a builtin": ("def f(list): return list", "def f(a): return a"),
    "a name that is bound later": (
        "def f(): return g()\ndef g(): 1",
        "def h(): return i()\ndef i(): 1",
    ),
    "docstrings": ('"a"\ndef f():\n    "b"\n    return 1', "def f():\n    return 1"),
    "annotations": ("def f(a: int) -> str:\n    b: int = a\n    c: str", "def f(a):\n    b = a"),
    "pass": ("if a:\n    pass\n    b()\nelse: pass", "if a: b()"),
    "comments": ("a = 1  # one\n# two", "a = 1"),
    "the way a string is quoted": ("f('a' \"b\")", 'f("ab")'),
}

UNLIKE = {
    "a constant": ("f(1)", "f(2)"),
    "the kind of a constant": ("f(1)", "f(1.0)"),
    "a truth value and a number": ("f(1)", "f(True)"),
    "an operator": ("f(a + b)", "f(a - b)"),
    "the order of operands": ("def f(a, b): return a - b", "def f(a, b): return b - a"),
    "which variable is returned": ("def f(a, b): return a", "def f(a, b): return b"),
    "a builtin": ("def f(a): return min(a)", "def f(a): return max(a)"),
    "a builtin and a variable": ("def f(a): return list", "def f(a): return a"),
    "an attribute": ("a.b()", "a.c()"),
    "a method's name": ("class A:\n    def f(self): 1", "class A:\n    def g(self): 1"),
    "a keyword": ("f(a=1)", "f(b=1)"),
    "a module": ("import a as c\nc()", "import b as c\nc()"),
    "a package and its module": ("import a.b\na()", "import a.b as a\na()"),
    "a local and a global variable": (
        "n = 0\ndef f():\n    n = 1",
        "n = 0\ndef f():\n    global n\n    n = 1",
    ),
    "what belongs to a block": ("if a:\n    b()\nc()", "if a:\n    b()\n    c()"),
    "a default": ("def f(a, b=1): 1", "def f(a=1, b=1): 1"),
    "a kind of argument": ("def f(a, b): 1", "def f(a, *, b): 1"),
    "async": ("def f(): 1", "async def f(): 1"),
    "a pattern": ("match a:\n    case _: f()", "match a:\n    case b: f()"),
    "a format": ("f'{a:>2}'", "f'{a:>3}'"),
}


@pytest.mark.parametrize("what", ALIKE)
def test_this_does_not_count(what: str) -> None:
    one, two = ALIKE[what]
    assert fingerprint(one) == fingerprint(two)


@pytest.mark.parametrize("what", UNLIKE)
def test_this_counts(what: str) -> None:
    one, two = UNLIKE[what]
    assert fingerprint(one) != fingerprint(two)


@cache
def sources() -> tuple[str, ...]:
    """Functions of the standard library and solutions of problems, of at most 60 lines."""
    modules = (heapq, bisect, textwrap, statistics)
    functions = [
        textwrap.dedent(inspect.getsource(function))
        for module in modules
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
    ]
    solutions = [solution.solution for solution in python.solutions()][::5]
    return tuple(code for code in (*functions, *solutions) if code.count("\n") <= 60)


def test_programs_that_differ_have_fingerprints_that_differ() -> None:
    trees = {ast.dump(ast.parse(code)) for code in sources()}
    assert len({fingerprint(code) for code in sources()}) == len(trees) > 100


# ------------------------------------------------------------------------------------------- laws

corpus = st.deferred(lambda: st.sampled_from(sources()))

LAYOUTS: dict[str, Callable[[list[str]], str]] = {
    "comments": lambda lines: "\n".join(f"{line}  # a < b and not True, '" for line in lines),
    "blank lines": lambda lines: "\n\n".join(lines) + "\n\n",
    "windows": lambda lines: "\r\n".join(lines) + "\r\n",
    "tabs": lambda lines: "\n".join(
        "\t" * ((len(line) - len(line.lstrip())) // 4) + line.lstrip() for line in lines
    ),
    "spaces": lambda lines: "\n".join(line + "   " for line in lines),
}


@given(corpus, st.sampled_from(sorted(LAYOUTS)))
def test_layout_does_not_count(code: str, layout: str) -> None:
    plain = ast.unparse(without_docstrings(ast.parse(code)))
    laid_out = LAYOUTS[layout](plain.splitlines())
    assert laid_out != plain
    assert fingerprint(laid_out) == fingerprint(plain) == fingerprint(code)


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


@given(corpus, st.integers(0, 10**6))
def test_names_do_not_count(code: str, number: int) -> None:
    """All that a function binds may be renamed, if nothing else has the name."""
    renamed = rename(code, f"_{number}")
    assert renamed != code
    assert fingerprint(renamed) == fingerprint(code)


def rename(code: str, suffix: str) -> str:
    """The code with a suffix at all names that it binds and that name nothing but variables."""
    bound, others = set(), set(dir(builtins)) | set(keyword.kwlist)
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name):
                bound.add(name)
            case ast.ClassDef(body=body):
                others.update(getattr(method, "name", "") for method in body)
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.alias(name=name):
                others.add(name)
            case ast.JoinedStr():  # its names are no tokens of their own before Python 3.12
                others.update(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
    names = bound - others
    assert names
    tokens = [
        (token.type, token.string + suffix if token.string in names else token.string)
        for token in tokenize.generate_tokens(StringIO(code).readline)
    ]
    return tokenize.untokenize(tokens)


@given(st.text() | st.text(alphabet="def f(a):\n return'\"\\#[]\0\t+1"))
def test_any_text_has_a_fingerprint(text: str) -> None:
    assert len(fingerprint(text)) == 32
    assert int(fingerprint(text), 16) >= 0


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 9999, "x=" + "-" * 30000 + "1", "1" + "+1" * 9999, "a" + ".b" * 30000),
        *(
            "[" * 150 + "]" * 150,
            '"""' * 30001,
            "\0",
            "\ud800",
            "x = 0x" + "f" * 9999,
            "'''\\" * 9999,
            " \n\t" * 30000,
        ),
    ],
)
def test_hostile_text_has_a_fingerprint_too(text: str) -> None:
    assert len(fingerprint(text)) == 32


# --------------------------------------------------------------------------------- other Pythons


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        ("print 'a'  # b", "print   'a'\n\n", True),
        ("if a:\n  print 'x'\n", "if a:\r\n\r\n  print 'x' # y\r\n", True),
        ("print '# a'", "print '# b'", False),
        ("print 'a'", "print 'b'", False),
        ("if a:\n  print 1\nprint 2", "if a:\n  print 1\n  print 2", False),
        ("print 1, 2", "print 12", False),
    ],
)
def test_text_that_does_not_parse_counts_but_for_space_and_comments(
    one: str, two: str, alike: bool
) -> None:
    assert (fingerprint(one) == fingerprint(two)) == alike


def test_deep_programs_have_the_same_fingerprint_however_deep_the_caller_is() -> None:
    def called_at(depth: int, code: str) -> str:
        return called_at(depth - 1, code) if depth else fingerprint(code)

    for terms in (DEEPEST_TREE - 3, DEEPEST_TREE + 3, 3 * DEEPEST_TREE):
        code = "x = " + " + ".join(["a"] * terms)
        assert called_at(0, code) == called_at(300, code)
        assert fingerprint(code) != fingerprint(code.replace("a", "b"))


def test_no_warning_is_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fingerprint("f('\\d', 1 is 1, 1if a else 2)") == fingerprint(
            "f('\\\\d', 1 is 1, 1 if a else 2)"
        )
        with pytest.raises(DeprecationWarning):
            warnings.warn("still an error", DeprecationWarning, stacklevel=1)


def test_processes_agree_whatever_their_hash_seed() -> None:
    codes = [*sources()[:40], "print 'a'"]
    script = (
        "import sys, ast; from nip_fn.code.fingerprint import fingerprint\n"
        "print([fingerprint(code) for code in ast.literal_eval(sys.stdin.buffer.read().decode())])"
    )
    outputs = [printed("-c", script, hash_seed=seed, given=repr(codes)) for seed in ("1", "2")]
    assert [ast.literal_eval(output) for output in outputs] == [list(map(fingerprint, codes))] * 2


def test_a_fingerprint_is_the_same_in_every_release() -> None:
    assert fingerprint("def f(a): return a + 1") == "eb836a486654a30810cac4b63e88ae4e"
    assert fingerprint("print 'a'") == "d1faaee55fd24b44c826b93a614c3d2c"
