"""Rows of the benchmarks: what is asked, what is shown to whom, and what is right."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.code.benchmarks import BENCHMARKS, benchmark_of
from nip_fn.code.questions import Question, labelled, unsolved
from nip_fn.code.solutions import datapoint_of
from nip_fn.config.codec import from_dict
from nip_fn.game.checkers import CHECKER_OF_KIND, CHECKERS
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import reset
from nip_fn.game.protocol import has_answers
from nip_fn.keys import key
from nip_fn.params.data import CodeValidationParameters
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import PROTOCOLS, protocol_of

from .benchmark_rows import WORD, Rows, code_contests, gpqa, gsm8k, math, quality

ALL = CodeValidationParameters(apps_difficulty="all")
ROWS = {
    "gsm8k": gsm8k(600, 603),
    "math": math(0, 3),
    "gpqa": gpqa(0, 200),
    "quality": quality(0, 200),
    "code-contests": code_contests(0, 3),
}


def questions(name: str, rows: Rows) -> list[Question]:
    return [q for row in rows for q in BENCHMARKS[name].read(row, "train", ALL).unwrap()]


def first(name: str, **fields: object) -> Question:
    (question,) = questions(name, [{**ROWS[name][0], **fields}])
    return question


@pytest.mark.parametrize("name", ROWS)
def test_a_benchmark_is_recognised_by_its_columns(name: str) -> None:
    benchmark = benchmark_of(list(ROWS[name][0]))
    assert benchmark is not None
    assert benchmark.read is BENCHMARKS[name].read
    assert benchmark_of(["question"]) is None


def test_a_calculation_ends_in_its_number_and_keeps_no_marks() -> None:
    question = first("gsm8k")
    assert question.reference == "1,200"
    (claim,) = question.claims
    assert claim == ("She has 600+600=1200 nuts.\nAnswer: 1,200", 1, None)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"$\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{1} or rather \boxed{{2}}", "{2}"),
        (r"\fbox {x}", "x"),
        (r"so $x = \boxed 3$, as was asked", "3"),
    ],
)
def test_the_answer_is_in_the_last_box(solution: str, answer: str) -> None:
    assert first("math", solution=solution).reference == answer
    assert first("math", level=5).difficulty == "5"


@pytest.mark.parametrize("name", ["gpqa", "quality"])
def test_of_each_choice_a_right_and_a_wrong_option_are_claimed(name: str) -> None:
    for row, question in zip(ROWS[name], questions(name, ROWS[name]), strict=True):
        right, wrong = question.claims
        assert (right.label, wrong.label) == (1, 0)
        options = question.text.split("\n\n")[1].splitlines()
        assert len(options) == 4
        assert {right.solution, wrong.solution} < set(options)
        assert right.solution.startswith(f"({question.reference}) ")
        true = row.get("Correct Answer", "").strip() or row["options"][row["answer"]]
        assert right.solution.partition(") ")[2] == true


@pytest.mark.parametrize("name", ["gpqa", "quality"])
def test_no_letter_betrays_which_option_is_right(name: str) -> None:
    """Of 200 questions each letter is claimed 100 times; by a coin each, 50 ± 12 are right."""
    letters: dict[int, Counter[str]] = {0: Counter(), 1: Counter()}
    for question in questions(name, ROWS[name]):
        for claim in question.claims:
            letters[claim.label][claim.solution[:3]] += 1
    for counted in letters.values():
        assert len(counted) == 4
        assert all(25 <= number <= 75 for number in counted.values())


def test_an_option_that_repeats_the_right_one_is_not_claimed_to_be_wrong() -> None:
    for answer in range(4):
        options = ["same"] * 4
        options[3] = "another"
        claims = first("quality", options=options, answer=answer).claims
        assert {claim.solution[4:] for claim in claims if claim.label == 0} == {
            "same" if answer == 3 else "another"
        }
    assert first("quality", options=["same"] * 4).claims == ()


def test_a_row_is_read_the_same_whatever_stands_beside_it() -> None:
    whole = questions("gpqa", ROWS["gpqa"])
    assert [first("gpqa", **row) for row in ROWS["gpqa"]] == whole


def test_programs_are_those_in_python_3_and_come_in_pairs() -> None:
    question = first("code-contests")
    assert [(claim.solution, claim.label) for claim in question.claims] == [
        ("print(int(input()) + 0)", 1),
        ("print(int(input()) - 0)", 0),
    ]
    assert question.tests is not None
    assert question.tests.inputs == ("1\n", "2\n", "3\n", "4\n")
    no_wrong = {"language": [2], "solution": ["int main() {}"]}
    assert first("code-contests", incorrect_solutions=no_wrong).claims == ()
    assert not questions("code-contests", [{**ROWS["code-contests"][0], "input_file": "in.txt"}])


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("gsm8k", "answer", "She has 4."),
        ("gsm8k", "answer", "She has 4.\n#### "),
        ("gsm8k", "question", None),
        ("math", "solution", "It is 4."),
        ("math", "solution", r"\boxed{4"),
        ("math", "solution", r"\boxed $"),
        ("math", "problem", 4),
        ("gpqa", "Incorrect Answer 2", None),
        ("quality", "answer", 4),
        ("quality", "answer", None),
        ("quality", "options", ["only one"]),
        ("quality", "article", ""),
        ("code-contests", "solutions", 5),
        ("code-contests", "incorrect_solutions", {"language": [3], "solution": [None]}),
        ("code-contests", "public_tests", ["1"]),
    ],
)
def test_what_cannot_be_read_is_named_by_its_column(name: str, column: str, value: object) -> None:
    problem = BENCHMARKS[name].read({**ROWS[name][0], column: value}, "train", ALL).failure()
    assert problem.address == ("answer" if column == "options" else column)
    assert "\n" not in str(problem)


def prompts(name: str, protocol_name: str) -> Mapping[str, str]:
    """The system prompt of each agent about the first claim of a benchmark, by role."""
    params = from_dict({"interaction_protocol": protocol_name}).unwrap()
    protocol, point = protocol_of(params), claim_of(name)
    return {
        spec.role: build_chat(params, protocol, point, reset(point, key(0)), agent)[0].content
        for agent, spec in enumerate(protocol.agents)
    }


def claim_of(name: str, **fields: Any) -> Datapoint:
    solution = labelled(first(name, **fields))[0]
    return datapoint_of(replace(solution, kind=BENCHMARKS[name].kind))


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("name", ROWS)
def test_only_programs_are_shown_as_programs(name: str, protocol: str) -> None:
    is_written = has_answers(protocol_of(HyperParameters(interaction_protocol=protocol)))
    for prompt in prompts(name, protocol).values():
        assert is_written or claim_of(name).solution in prompt
        assert is_written or ("python" in prompt.lower()) == (name == "code-contests")


@pytest.mark.parametrize("name", ROWS)
def test_a_question_whose_answer_is_to_be_written_has_what_it_is_checked_by(name: str) -> None:
    benchmark = BENCHMARKS[name]
    for question in questions(name, ROWS[name]):
        (solution,) = unsolved(question)
        point = datapoint_of(replace(solution, kind=benchmark.kind))
        assert (point.solution, point.label) == ("", None)
        usual = CHECKER_OF_KIND[benchmark.kind]
        assert usual == benchmark.checker
        right = CHECKERS[usual](point, point.reference)
        assert right == (None if name == "code-contests" else 1)
        assert (solution.tests is None) == (name != "code-contests")


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_the_article_is_the_provers_alone(protocol: str) -> None:
    shown = prompts("quality", protocol)
    assert WORD not in shown["verifier"]
    assert all(WORD in prompt for role, prompt in shown.items() if role == "prover")


def test_the_wording_is_that_of_the_kind() -> None:
    asked = {name: prompts(name, "solo_verifier")["verifier"] for name in ROWS}
    assert "You cannot use a calculator" in asked["gsm8k"]
    assert "weigh each option" in asked["gpqa"]
    assert "check what the answer says" in asked["math"]
    assert "You cannot run the code" in asked["code-contests"]
