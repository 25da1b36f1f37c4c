"""Checkers as adapters: functions, those of a user's own, and tests in the sandbox."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.code.programs import Tests
from nip_fn.code.solutions import LabelledSolution, PlacedSolution, datapoint_of
from nip_fn.errors import Problem
from nip_fn.game.checkers import exact, number
from nip_fn.game.datapoint import Datapoint, Dataset, make_datapoint
from nip_fn.run.events import Checked, RunStarted
from nip_fn.run.ports import CheckResult
from nip_fn.testing import CheckerError, check_checker
from nip_fn_adapters import load_run, train
from nip_fn_adapters.data.opening import Data, in_memory
from nip_fn_adapters.experiments.checking import by_function, by_tests, once
from nip_fn_adapters.recording.store import read_recording
from nip_fn_adapters.sandbox import open_sandbox

POINT = make_datapoint("p", "What is 3 + 4?", "", None, reference="7")
SQUARE = LabelledSolution(
    question="Square a number.",
    solution="",
    label=None,
    problem_id="square",
    tests=Tests(function="square", inputs=("[3]", "[-2]"), outputs=("9", "4")),
)


def checked(
    check: object, *answers: str, point: Datapoint = POINT
) -> list[Result[CheckResult, Problem]]:
    async def ask() -> list[Result[CheckResult, Problem]]:
        return await asyncio.gather(*(check(point, answer) for answer in answers))  # type: ignore[operator]

    return asyncio.run(ask())


def test_a_function_says_which_answers_are_right() -> None:
    results = checked(by_function(exact, is_own=False), "7", "8")
    assert results == [Success(CheckResult(1)), Success(CheckResult(0))]


def test_a_function_that_raises_or_returns_no_label_leaves_the_answer_unchecked() -> None:
    def own(point: Datapoint, answer: str) -> int | None:
        if answer == "raise":
            raise OSError("no such thing")
        return {"none": None, "odd": 7}[answer]

    raised, none, odd = (
        r.unwrap() for r in checked(by_function(own, is_own=True), "raise", "none", "odd")
    )
    assert (raised.label, none.label, odd.label) == (None, None, None)
    assert raised.problem == "OSError: no such thing"
    assert "7" in odd.problem


def test_equal_answers_are_checked_once_and_failures_again() -> None:
    asked: list[str] = []

    async def check(point: Datapoint, answer: str) -> Result[CheckResult, Problem]:
        asked.append(answer)
        await asyncio.sleep(0)
        return Failure(Problem("busy")) if answer == "later" else Success(CheckResult(1))

    remembered = once(check)
    results = checked(remembered, "7", "7", "later")
    assert [is_successful(result) for result in results] == [True, True, False]
    assert sorted(asked) == ["7", "later"]


def data_of(*solutions: LabelledSolution) -> Data:
    empty = in_memory(Dataset("tests", (), (), ()))
    placed = [PlacedSolution("train", datapoint_of(s).id, s) for s in solutions]
    return empty._replace(solutions=lambda: iter(placed))


@pytest.mark.skipif(not is_successful(open_sandbox()), reason="there is no sandbox here")
def test_programs_are_right_if_they_pass_the_tests_of_their_row() -> None:
    check, point = by_tests(data_of(SQUARE)), datapoint_of(SQUARE)
    right, wrong, broken = "def square(x): return x * x", "def square(x): return 9", "def square("
    labels = [r.unwrap().label for r in checked(check, right, wrong, broken, point=point)]
    assert labels == [1, 0, 0]


def test_a_row_without_tests_is_not_checked_by_them() -> None:
    (result,) = checked(
        by_tests(data_of(replace(SQUARE, tests=None))), "x", point=datapoint_of(SQUARE)
    )
    assert result.unwrap() == CheckResult(None, "its row has no tests")


OWN = """
def CHECKER(datapoint, answer):
    return int(answer == datapoint.reference)


def FAULTY(datapoint, answer):
    return 0
"""


def test_a_checker_of_ones_own_is_recorded_by_its_source_and_replays_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    settings = {
        "dataset": "builtin:sums",
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 2},
        "dataset_options": {"checker": "mine.py:CHECKER", "max_test_size": 4},
    }
    trained = train(settings, name="own", provider="dummy", runs=tmp_path)
    run = trained.unwrap()
    events = read_recording(run.path).unwrap().events
    checks = [event for event in events if isinstance(event, Checked)]
    assert {event.label for event in checks} == {0, 1}
    started = events[0]
    assert isinstance(started, RunStarted)
    assert [reference for reference, _ in started.sources] == ["mine.py:CHECKER"]
    # The labels are in the recording: another checker under that name would change nothing.
    (tmp_path / "mine.py").write_text(OWN.replace("int(answer == datapoint.reference)", "1 / 0"))
    assert load_run(run.path, trust=True).unwrap().state.faults == ()


def test_the_suite_of_checkers_passes_ours_and_finds_what_is_wrong() -> None:
    points = [POINT, make_datapoint("q", "?", "", None, reference="-1,200.5")]
    check_checker(number, points)
    check_checker(exact, points)
    with pytest.raises(CheckerError, match="the reference itself is wrong"):
        check_checker(lambda point, answer: 0, points)
    with pytest.raises(CheckerError, match="raises ValueError"):
        check_checker(lambda point, answer: int(float(answer) == 7), [POINT])
    with pytest.raises(CheckerError, match="not 0, 1 or None"):
        check_checker(lambda point, answer: 2, points)
