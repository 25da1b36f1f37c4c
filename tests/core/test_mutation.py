"""Mutants: each is the program with one change of its tree, and of no more text than that."""

import ast
import bisect
import heapq
import inspect
import statistics
import textwrap
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nip_fn
from nip_fn.code.fingerprint import fingerprint, tree_fingerprint
from nip_fn.code.mutation import OPERATORS, Mutant, draw_order, edit_distance, mutants, subtlety
from nip_fn.code.mutation.context import Context, Edit, sites
from nip_fn.code.mutation.first_order import shape
from nip_fn.code.mutation.source import Patch, SourceText, apply
from nip_fn.code.programs import Tally
from nip_fn.keys import key

from .fresh import printed
from .mutation_examples import EXAMPLES, HARD


@cache
def sources() -> tuple[str, ...]:
    """Functions of the standard library and of the problems, of at most 60 lines."""
    found = []
    for module in (heapq, bisect, textwrap, statistics):
        for _, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                found.append(textwrap.dedent(inspect.getsource(function)))
    problems = Path(nip_fn.__file__).parent / "code" / "builtin" / "problems"
    for path in sorted(problems.glob("*.toml")):
        entries = tomllib.loads(path.read_text("utf-8"))["problem"]
        found += [entry["solution"] for entry in entries[::6]]
    short = [code for code in found if code.count("\n") <= 60]
    assert len(short) > 50
    return tuple(short)


@cache
def made(code: str) -> tuple[Mutant, ...]:
    return mutants(code)


corpus = st.sampled_from(range(len(sources()))).map(lambda place: sources()[place])

programs = st.one_of(corpus, st.sampled_from(sorted(HARD.values())))


# -------------------------------------------------------------------------------------- operators


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_makes_these_programs_of_its_example(name: str) -> None:
    code, *wanted = EXAMPLES[name]
    assert wanted
    assert [one.code for one in mutants(code) if one.operator == name] == wanted


def test_a_mutant_says_where_it_is_and_what_changed() -> None:
    code = "def f(a):\n    b = a  # é\n    return max(a, b) <= 3\n"
    found = {(one.operator, one.line, one.before, one.after) for one in mutants(code)}
    assert ("comparison_boundary", 3, "max(a, b) <= 3", "max(a, b) < 3") in found
    assert ("function_swapped", 3, "max(a, b)", "min(a, b)") in found


@pytest.mark.parametrize(
    ("code", "spared"),
    [
        ('"""1 + 2"""\ndef f(a):\n    "3"\n    return a', ("1 + 2", '"3"')),
        ("def f(a: 1 + 2 = b) -> 3: return g(a)", ("1 + 2", "-> 3")),
        ("@cache(1)\ndef f(a): return g(a)", ("@cache(1)",)),
        ("def f(a):\n    return g(a)\n    h(1, 2)", ("h(1, 2)",)),
        ("x = f(a, f'{b + 1}')", ("f'{b + 1}'",)),
        ("def f(a):\n    assert a > 1, 'no'\n    raise E(2)", ("assert a > 1, 'no'", "raise E(2)")),
        (
            "f(a, b)\nif __name__ == '__main__':\n    g(1)",
            ("if __name__ == '__main__':\n    g(1)",),
        ),
        ("import a.b as c\nf(c, d)", ("import a.b as c",)),
        ("match a:\n    case [1, 2]: f(b, c)", ("case [1, 2]:",)),
    ],
)
def test_no_mutant_touches_what_has_no_effect(code: str, spared: tuple[str, ...]) -> None:
    for mutant in mutants(code):
        assert all(part in mutant.code for part in spared), mutant


def test_nothing_is_made_where_all_would_be_equivalent() -> None:
    assert mutants("def f(a, b):\n    '''Say 1 + 1.'''\n    return max(f, g) == h\n")
    assert {one.operator for one in mutants("x = max(f, g) == h")} == {
        "function_swapped",
        "comparison_negated",
    }


# ----------------------------------------------------------------------------------------- laws


@given(programs)
def test_every_mutant_compiles_and_is_another_program(code: str) -> None:
    prints = {fingerprint(code)}
    for mutant in made(code):
        compile(mutant.code, "mutant", "exec")
        print_ = fingerprint(mutant.code)
        assert print_ not in prints, mutant
        prints.add(print_)


@given(corpus)
def test_real_code_has_mutants_of_many_kinds(code: str) -> None:
    found = made(code)
    if len(list(sites(ast.parse(code)))) > 80:
        assert len({mutant.operator for mutant in found}) >= 6


@given(programs)
def test_a_mutant_is_the_text_but_for_the_part_that_it_names(code: str) -> None:
    source = SourceText(code)
    for mutant in made(code):
        size = len(mutant.before)
        assert any(
            code[:place] + mutant.after + code[place + size :] == mutant.code
            and source.line_of(place) <= mutant.line <= source.line_of(place + size)
            for place in range(len(code) + 1)
            if code.startswith(mutant.before, place)
        )


@given(programs)
def test_what_is_written_is_what_the_operators_meant(code: str) -> None:
    """Each edit finds a text that parses to the edited tree, unless the program is made already."""
    tree = ast.parse(code)
    context = Context(code, tree)
    meant = {}
    for node in sites(tree):
        for operator in OPERATORS.values():
            for result in operator(node, context):
                other = edited(tree, node, result)
                meant[repr(shape(other))] = tree_fingerprint(other)
    texts = {repr(shape(ast.parse(mutant.code))) for mutant in made(code)}
    assert texts <= meant.keys()
    prints = {fingerprint(code), *(fingerprint(mutant.code) for mutant in made(code))}
    assert {print_ for other, print_ in meant.items() if other not in texts} <= prints


def edited(tree: ast.Module, node: ast.AST, result: ast.AST | Edit) -> ast.Module:
    """A copy of the tree with what an operator asks for."""
    changes = {}
    if isinstance(result, Edit):
        changes = {(owner, field): value for owner, field, value in result.changes}

    def copy(here: object) -> Any:
        if isinstance(here, list):
            return [copy(item) for item in here]
        if not isinstance(here, ast.AST) or (here is result and here is not node):
            return here
        if here is node and isinstance(result, ast.AST):
            return result
        fields = {name: changes.get((here, name), old) for name, old in ast.iter_fields(here)}
        return type(here)(**{name: copy(value) for name, value in fields.items()})

    return cast(ast.Module, copy(tree))


LAYOUTS = ("comments", "blank lines", "windows", "tabs", "spaces")


@given(corpus, st.sampled_from(LAYOUTS))
def test_the_layout_of_a_program_decides_no_mutant(code: str, layout: str) -> None:
    plain = ast.unparse(without_docstrings(ast.parse(code)))
    other = laid_out(plain, layout)
    assert other != plain
    assert [fingerprint(one.code) for one in mutants(other)] == [
        fingerprint(one.code) for one in made(plain)
    ]


def laid_out(code: str, layout: str) -> str:
    lines = code.splitlines()
    match layout:
        case "comments":
            return "\n".join(f"{line}  # a < b and not True, '" for line in lines)
        case "blank lines":
            return "\n\n".join(lines) + "\n\n"
        case "windows":
            return "\r\n".join(lines) + "\r\n"
        case "tabs":
            depths = [(len(line) - len(line.lstrip())) // 4 for line in lines]
            return "\n".join(
                "\t" * depth + line.lstrip() for depth, line in zip(depths, lines, strict=True)
            )
    return "\n".join(line + "   " for line in lines)


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def test_the_comments_of_a_program_stay() -> None:
    code = (
        "def f(a, b):  # one\n    # two\n    if (a <  # three\n        b):\n"
        "        return a-b  # four\n"
    )
    found = [one for one in mutants(code) if one.operator != "guard_dropped"]
    assert len(found) > 4
    for mutant in found:
        assert all(f"# {word}" in mutant.code for word in ("one", "two", "three", "four"))


def test_what_is_new_is_written_like_the_rest() -> None:
    loop = "for i in range(3): f(a[i], b{}c, d{}e)"
    tight = {one.after for one in mutants(loop.format("+", "-"))}
    loose = {one.after for one in mutants(loop.format(" + ", " - "))}
    assert "a[i-1]" in tight - loose
    assert "a[i - 1]" in loose - tight
    assert any(one.code == 'f(" ", "x")' for one in mutants('f("", "x")'))


@pytest.mark.parametrize(
    "code",
    [
        "print 'a'",
        "\0",
        "\ud800",
        "(" * 5000,
        "x=" + "-" * 20000 + "1",
        "1" + "+1" * 300,
        "def f(:",
    ],
)
def test_what_does_not_parse_is_a_syntax_error(code: str) -> None:
    with pytest.raises(SyntaxError):
        mutants(code)


def test_processes_agree_whatever_their_hash_seed() -> None:
    code = sources()[0]
    script = (
        "import sys; from nip_fn.code.mutation import mutants\n"
        "from nip_fn.code.fingerprint import fingerprint\n"
        "code = sys.stdin.buffer.read().decode()\n"
        "print([(m, fingerprint(m.code)) for m in mutants(code)])"
    )
    outputs = {printed("-c", script, hash_seed=seed, given=code) for seed in ("1", "2")}
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


# ------------------------------------------------------------------------------------------- text


@given(st.text(alphabet="aé🎉 \t\f", max_size=8), st.integers(0, 8))
def test_a_place_of_the_parser_is_found_in_any_text(line: str, place: int) -> None:
    column = len(line[:place].encode())
    source = SourceText(f"x\r\n{line};\r{line};\n")
    wanted = min(place, len(line))
    assert source.offset(2, column) == 3 + wanted
    assert source.offset(3, column) == 3 + len(line) + 2 + wanted


def test_patches_that_overlap_are_refused() -> None:
    assert apply("abcd", [Patch(2, 3, "X"), Patch(0, 1, "Y")]) == "YbXd"
    assert apply("abcd", [Patch(0, 2, "X"), Patch(1, 3, "Y")]) is None


# ---------------------------------------------------------------------------------------- subtlety


@given(st.text(alphabet="abé", max_size=7), st.text(alphabet="abé", max_size=7))
def test_the_distance_is_that_of_levenshtein(one: str, other: str) -> None:
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (left != right))
    assert edit_distance(one, other) == row[-1]


def test_a_program_that_passes_all_its_tests_or_has_none_is_not_subtly_wrong() -> None:
    assert subtlety(Tally(passed=3, wrong=1)) == 0.75
    assert subtlety(Tally(passed=1, wrong=1, crashed=1, stopped=1)) == 0.25
    assert subtlety(Tally(passed=4)) == subtlety(Tally()) == subtlety(Tally(crashed=2)) == 0.0


@given(corpus, st.integers(0, 99))
def test_operators_take_turns(code: str, seed: int) -> None:
    found = made(code)
    order = draw_order(found, key(seed))
    assert sorted(order, key=repr) == sorted(found, key=repr)
    assert draw_order(found, key(seed)) == order
    kinds = len({one.operator for one in found})
    assert len({one.operator for one in order[:kinds]}) == kinds
    counts: Counter[str] = Counter()
    for one in order:
        counts[one.operator] += 1
        assert counts[one.operator] == max(counts.values())


def test_another_key_draws_another_order() -> None:
    found = made(HARD["try"])
    assert len({draw_order(found, key(seed)) for seed in range(20)}) > 15
