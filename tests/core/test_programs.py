import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.code.programs import (
    LONGEST_OUTPUT,
    SLACK,
    STRETCH,
    RunResult,
    Tally,
    Tests,
    agrees,
    prints_alike,
    program,
    read_checks,
    tally,
)

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
VALUES = st.recursive(
    LEAVES | st.sets(st.integers() | st.text("ab")),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text("abc") | st.integers(), inner)
    ),
    max_leaves=12,
)

HOSTILE = (
    "[" * 100_000,
    "[" * 250 + "]" * 250,
    "{" * 50 + "}" * 50,
    "-" * 100_000 + "1",
    "1+" * 100_000 + "1",
    "(" * 90 + "1" + ",)" * 90,
    "9" * 5000,
    "0x" + "f" * 100_000,
    "9" * (LONGEST_OUTPUT + 1),
    "{[]: 1}",
    "{[1]}",
    "'\ud800'",
    "\ud800",
    "'\0'",
    "\0",
    "",
    " ",
    "\n",
    "nan",
    "inf",
    "-inf",
    "__import__('os').getpid()",
    "<list_iterator>",
    "f'{1}'",
    "'abc",
    "1 if 1 else 2",
    "lambda: 1",
    "1; 1",
    "\N{MATHEMATICAL BOLD DIGIT ONE}",
)


@given(value=VALUES)
def test_a_value_agrees_with_itself_however_it_is_laid_out(value: object) -> None:
    assert agrees(repr(value), f" ( {value!r} )\n".lstrip())
    assert agrees(ast.unparse(ast.parse(repr(value))), repr(value))


@given(one=VALUES, other=VALUES)
def test_agreeing_is_symmetric(one: object, other: object) -> None:
    assert agrees(repr(one), repr(other)) == agrees(repr(other), repr(one))


def test_agreeing_compares_whole_values() -> None:
    assert not agrees("[1, 2]", "[1]")
    assert not agrees("[1]", "[1, 2]")
    assert not agrees("[[1], 2]", "[[1], 3]")
    assert not agrees("{'a': 1}", "{'a': 1, 'b': 2}")
    assert not agrees("{'a': 1}", "{'b': 1}")
    assert not agrees("[0, 1]", "{0, 1}")


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("(1, 2)", "[1, 2]", True),
        ("[(1, [2])]", "([1, (2,)],)", True),
        ("()", "[]", True),
        ("{1, 2}", "{2, 1}", True),
        ("set()", "set()  ", True),
        ("set()", "[]", False),
        ("set()", "{}", False),
        ("{1, 2}", "[1, 2]", False),
        ("True", "1", False),
        ("False", "0", False),
        ("False", "None", False),
        ("[True]", "[1]", False),
        ("{True}", "{1}", False),
        ("{True: 'a'}", "{1: 'a'}", False),
        ("{1: 'a', 2: 'b'}", "{2: 'b', 1: 'a'}", True),
        ("{'a': 0.3}", "{'a': 0.30000000001}", True),
        ("{'a': (1,)}", "{'a': [1]}", True),
        ("1", "1.0", True),
        ("1.0", "1", True),
        ("0.3", "0.30000000000000004", True),
        ("0.3", "0.30001", False),
        ("1000000.0", "1000000.5", True),  # relative
        ("0.0", "-0.0", True),
        ("0.0", "1e-12", True),
        ("1000000", "1000001", False),  # integers are exact
        (str(10**20), str(10**20 + 1), False),
        (str(10**400), "1e300", False),
        (str(10**400), str(10**400), True),
        (str(10**400), "1e999", False),
        ("1e999", "1e309", True),
        ("1e999", "-1e999", False),
        ("1e999", "1e300", False),
        ("'1'", "1", False),
        ("'a'", "b'a'", False),
        ("b'a'", 'b"a"', True),
        ("'ä'", "'\\xe4'", True),
        ("'a\\nb'", "'''a\nb'''", True),
        ("'é'", "'e\u0301'", False),  # not normalised
        ("1+2j", "(1+2j)", True),
        ("None", "None", True),
        ("nan", "nan", True),  # the same text
        ("nan", "[nan]", False),
    ],
)
def test_agreeing_case_by_case(one: str, other: str, agree: bool) -> None:
    assert agrees(one, other) is agree
    assert agrees(other, one) is agree


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
@pytest.mark.filterwarnings("error")
def test_hostile_output_agrees_with_nothing_but_its_own_text(text: str) -> None:
    for expected in ("1", "[1]", "'a'", "{1: 2}", "0.5", "x" * 10_000):
        assert not agrees(expected, text)
        assert not agrees(text, expected)
    assert agrees(text, text)


def test_output_that_is_far_longer_than_expected_is_not_parsed() -> None:
    same_hash = 2**61 - 1
    crowd = "{" + ", ".join(str(same_hash * i) for i in range(10_000)) + "}"  # 8 seconds to parse
    assert len(crowd) > STRETCH * len("{1}") + SLACK
    assert not agrees("{1}", crowd)


@given(value=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300))
def test_every_way_to_write_a_number_is_short_enough_to_be_parsed(value: float) -> None:
    assert agrees(repr(float(value)), repr(value))


@given(text=st.text())
def test_any_text_is_compared_without_an_error(text: str) -> None:
    assert agrees(text, text)
    assert prints_alike(text, text)
    agrees("1", text)
    prints_alike("0.5 1", text)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("1 2\n", "1 2", True),
        ("\n1 2\n\n", "1 2", True),
        ("1 2", " 1   2 \r\n", True),
        ("1\n2", "1\r\n2\r\n", True),
        ("1\n2", "1 2", False),
        ("1\n\n2", "1\n2", False),
        ("", "  \n ", True),
        ("", "0", False),
        ("Yes", "YES", False),
        ("12", "12.0", False),  # a whole number is expected
        ("0.1", "0.10000000001", True),
        ("0.5", ".5", True),
        ("1e3", "1000.0", True),
        ("0.1", "0.2", False),
        ("0.1", "nan", False),
        ("nan", "nan", True),
        ("end.", "end.", True),
        ("end.", "end", False),
        ("1000.5", "1_000.5", False),
        ("x\ud800", "x\ud800", True),
        ("0.5", "\ud800", False),
        ("0.5", "9" * 100_000, False),
        ("naïve 日本語", "naïve 日本語 ", True),
    ],
)
def test_printing_alike_case_by_case(one: str, other: str, alike: bool) -> None:
    assert prints_alike(one, other) is alike


@given(
    words=st.lists(
        st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc", "Zs"]), min_size=1))
        .map(tuple)
        .filter(bool),
        min_size=1,
    ),
    space=st.sampled_from([" ", "  ", "\t"]),
    end=st.sampled_from(["\n", "\r\n", " \n"]),
)
def test_space_does_not_matter(words: list[tuple[str, ...]], space: str, end: str) -> None:
    plain = "\n".join(" ".join(line) for line in words)
    assert prints_alike(plain, end.join(space.join(line) for line in words) + end)


ARGUMENTS = st.lists(VALUES, max_size=3)


@given(calls=st.lists(st.tuples(ARGUMENTS, VALUES), min_size=1, max_size=4))
def test_lines_of_checks_are_read_as_what_they_say(
    calls: list[tuple[list[object], object]],
) -> None:
    lines = [f"f({', '.join(map(repr, given))}) == {expected!r}" for given, expected in calls]
    tests = read_checks("\n\n".join(lines) + "\r\n").unwrap()
    assert tests.function == "f"
    assert [ast.literal_eval(text) for text in tests.inputs] == [given for given, _ in calls]
    assert [ast.literal_eval(text) for text in tests.outputs] == [found for _, found in calls]


@pytest.mark.parametrize(
    "line",
    [
        "f('a\u2028b\x0c\x85') == 1",  # splitlines would break these
        "f(1e999, -1e999) == 1e999",
        "f(0.1, 1e-300, 2j, b'\\x00', '\\ud800', '\\r\\n') == -0.0",
        f"f({10**400}) == {10**400}",
        "  f( 1 ,[ 2,] )==  set()  ",
        "größe('ä') == '日本'",
        "f(" + "[" * 90 + "]" * 90 + ") == 1",
        "f() == None  # nothing",
    ],
)
def test_inputs_and_outputs_are_always_literals(line: str) -> None:
    tests = read_checks(line).unwrap()
    assert tests.function in ("f", "größe")
    for text in (*tests.inputs, *tests.outputs):
        ast.literal_eval(text)
        assert agrees(text, text + " ")


@pytest.mark.parametrize(
    "line",
    [
        "f(1)",
        "f(1) = 1",
        "f(1) != 1",
        "f(1) == 1 == 1",
        "f(1) == g(2)",
        "f(x) == 1",
        "f(x=1) == 1",
        "f(*[1]) == 1",
        "f(**{}) == 1",
        "a.f(1) == 1",
        "f(1)(2) == 1",
        "1 == f(1)",
        "f(1 == 1",
        "f({[]: 1}) == 1",
        "f(nan) == 1",
        "f(1) == inf",
        "g(1) == 1",  # another function than the first line's
        "f('\0') == 1",
        "f('\ud800') == 1",
        "f(" + "9" * 5000 + ") == 1",
        "f(0x" + "f" * 5000 + ") == 1",
        "f(" + "-" * 10_000 + "1) == 1",
        "f(" + "[" * 250 + "]" * 250 + ") == 1",
        "f(" + "1+" * 5000 + "1) == 1",
        "f(1) == " + "-" * 10_000 + "1",
        "assert f(1) == 1",
        "import os",
    ],
    ids=lambda line: repr(line[:20]),
)
def test_a_line_that_is_no_check_is_named_briefly(line: str) -> None:
    told = str(read_checks(f"f(0) == 0\n\n{line}\nf(2) == 2").failure())
    assert told.startswith("line 3: ")
    assert len(told) < 400
    assert "\n" not in told


@pytest.mark.parametrize("text", ["", "\n", " \n\t\r\n"])
def test_no_line_is_no_test(text: str) -> None:
    assert str(read_checks(text).failure()) == "no test"


def test_every_run_is_counted_once() -> None:
    tests = Tests(function="f", inputs=("[1]",) * 8, outputs=("1",) * 8)
    runs = (
        RunResult("returned", "1"),
        RunResult("returned", " 1"),
        RunResult("returned", "2"),
        RunResult("raised", "ValueError: 1"),
        RunResult("timeout", "1"),
        RunResult("memory"),
        RunResult("output", "1"),
        RunResult("died", "1"),
    )
    found = tally(tests, runs)
    assert found == Tally(passed=2, wrong=1, crashed=4, stopped=1)
    assert found.tests == 8
    assert not found.all_passed
    assert tally(tests, runs[:2] * 4).all_passed
    with pytest.raises(ValueError, match="zip"):
        tally(tests, runs[:7])


def test_a_script_is_judged_by_what_it_prints_and_a_function_by_its_value() -> None:
    given = {"inputs": ("1\n",), "outputs": ("1 2\n",)}
    assert tally(Tests(**given), [RunResult("returned", "1  2")]).all_passed
    assert not tally(Tests(function="f", **given), [RunResult("returned", "1  2")]).all_passed


def test_without_tests_nothing_is_passed() -> None:
    assert not tally(Tests(), ()).all_passed


def test_a_program_never_holds_what_is_expected() -> None:
    asked = program("code", Tests(function="f", inputs=("[1]",), outputs=("'secret'",)))
    assert (asked.code, asked.function, asked.inputs) == ("code", "f", ("[1]",))
    assert "secret" not in repr(asked)
