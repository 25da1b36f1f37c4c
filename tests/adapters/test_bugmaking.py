"""Bugs made of right solutions, judged by tests that really run."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from returns.result import Failure, Result, Success

from nip_fn.code.programs import Limits, read_checks
from nip_fn.code.solutions import LabelledSolution, PlacedSolution
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.run.ports import Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.data.bugfile import journal_of, open_bug_file
from nip_fn_adapters.data.bugmaking import Ask, BugWriter, Made
from nip_fn_adapters.sandbox import open_sandbox

RIGHT = """\
def longest(words):
    best = ""
    for word in words:
        if len(word) > len(best):
            best = word
    return best
"""
TESTS = """
longest(["a", "bb", "c"]) == "bb"
longest(["aa", "bb"]) == "aa"
longest([]) == ""
longest(["", "x"]) == "x"
longest(["ccc", "a", "bb"]) == "ccc"
"""
LAST_WINS = RIGHT.replace(">", ">=")
CRASHES = RIGHT.replace('""', "words[9]")
ENDLESS = RIGHT.replace("    return best", "    while best:\n        pass\n    return best")


def laid(code: str = RIGHT) -> PlacedSolution:
    solution = LabelledSolution(
        "Which is longest?", code, 1, "p", tests=read_checks(TESTS).unwrap()
    )
    return PlacedSolution("train", "id", solution)


class Script:
    """A model that writes what it is told to, a list of replies for each request."""

    def __init__(self, *replies: Sequence[str | None]) -> None:
        self.replies, self.requests = list(replies), list[Request]()

    async def __call__(self, request: Request) -> Result[tuple[Completion, ...], Problem]:
        self.requests.append(request)
        if not self.replies:
            return Failure(Problem("the model is gone"))
        texts = self.replies.pop(0)
        return Success(tuple(Completion(text, "stop", "writer", 10, 5) for text in texts))


def block(code: str) -> str:
    return f"Here it is:\n```python\n{code}```\n"


def writer(ask: Ask, attempts: int = 2, wanted: int = 2) -> BugWriter:
    return BugWriter(
        ask,
        "m",
        max_tokens=100,
        temperature=None,
        attempts=attempts,
        wanted=wanted,
        key=key(0),
        sandbox=open_sandbox(unsafe=True).unwrap(),
        limits=Limits(seconds=0.5, give_up=True),
        free=asyncio.Semaphore(2),
    )


@pytest.mark.parametrize(
    ("code", "passed"), [(LAST_WINS, 4), ("print 'two'\n", 0)], ids=["wrong", "no Python"]
)
def test_no_bug_is_made_of_a_solution_that_fails_its_own_tests(code: str, passed: int) -> None:
    sampler = Script()
    made = asyncio.run(writer(sampler).make(laid(code))).unwrap()
    assert made == Made(problem=f"passes {passed} of its own 5 tests")
    assert not sampler.requests


@pytest.mark.parametrize("code", [RIGHT, CRASHES, ENDLESS, "x = (\n", RIGHT.replace("best", "b")])
def test_what_a_model_writes_counts_only_if_tests_show_a_wrong_answer(code: str) -> None:
    made = asyncio.run(writer(Script([block(code)]), 1, wanted=1).make(laid())).unwrap()
    assert made.bugs == ()
    assert made.tried == 1


def test_a_model_is_asked_again_until_there_are_enough_bugs() -> None:
    shorter = RIGHT.replace("> len(best)", "< len(best) or not best")
    sampler = Script([None, "I can not."], [block(LAST_WINS), block(RIGHT)], [block(shorter)])
    made = asyncio.run(writer(sampler, attempts=5).make(laid())).unwrap()
    assert [bug.code for bug in made.bugs] == [LAST_WINS, shorter]
    assert made.tried == 3
    assert [len(request.keys) for request in sampler.requests] == [2, 2, 2]
    keys = [one for request in sampler.requests for one in request.keys]
    assert len(set(keys)) == len(keys)
    assert all(bug.model == "writer" for bug in made.bugs)


def test_a_model_that_fails_stops_the_making() -> None:
    failed = asyncio.run(writer(Script()).make(laid()))
    assert failed.failure().problem == "the model is gone"


# ------------------------------------------------------------------------------------- its file

ASKED = {"by": "model"}


def request(num: int = 3) -> Request:
    return writer(Script(), wanted=num).request(laid(), 0)


def test_no_reply_is_asked_for_twice_whatever_became_of_its_siblings(tmp_path: Path) -> None:
    """A sampler that gives one reply, then fails, then gives the others."""
    first, second, third = (Completion(text, "stop", "m") for text in "abc")
    answers: list[Result[tuple[Completion | Unanswered, ...], Problem]] = [
        Success((Unanswered("gone"), second, Unanswered())),
        Failure(Problem("still gone")),
        Success((first, third)),
    ]
    asked: list[Request] = []

    async def sampler(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        asked.append(request)
        return answers.pop(0)

    def sit() -> Result[tuple[Completion, ...], Problem]:
        with closing(open_bug_file(tmp_path / "bugs.jsonl", ASKED).unwrap()) as file:
            return asyncio.run(one_of(file.remembered(sampler), request()))

    assert sit().failure().problem == "gone"
    with journal_of(tmp_path / "bugs.jsonl").open("ab") as journal:
        journal.write(b'{"type": "reply", "ke')  # killed while it wrote
    assert sit().failure().problem == "still gone"
    for _ in range(2):
        assert sit().unwrap() == (first, second, third)
    keys = request().keys
    missing = (keys[0], keys[2])
    assert [one.keys for one in asked] == [keys, missing, missing]


async def one_of(ask: Ask, wanted: Request) -> Result[tuple[Completion, ...], Problem]:
    return await ask(wanted)
