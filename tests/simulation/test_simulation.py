"""Whatever goes wrong, in whatever order: nothing is lost, and nothing is paid twice."""

from collections import Counter

import pytest

from .defects import DEFECTS, Defect, judge, planted
from .rare import STATES
from .world import play

CHUNK = 20  # schedules of one test


@pytest.mark.parametrize("chunk", range(5))
def test_the_laws_hold_under_the_first_schedules(chunk: int) -> None:
    _hold(range(chunk * CHUNK, (chunk + 1) * CHUNK))


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(5, 20))
def test_the_laws_hold_under_many_schedules(chunk: int) -> None:
    _hold(range(chunk * CHUNK, (chunk + 1) * CHUNK))


def _hold(seeds: range) -> None:
    reports = [play(seed) for seed in seeds]
    broken = {f"python -m tests.simulation --seed {r.seed}": r.broken for r in reports if r.broken}
    assert not broken
    reached = {state for report in reports for state in report.reached}
    assert reached <= set(STATES)
    assert len(reached) > len(STATES) / 3


def test_a_seed_is_a_schedule() -> None:
    first, again = play(11), play(11)
    assert first == again
    assert first.faults
    assert len(set(STATES)) == len(STATES)


def test_a_schedule_without_faults_has_one_session() -> None:
    report = play(11, faulty=0)
    assert (report.sessions, report.faults) == (1, Counter())


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_has_its_place(defect: Defect) -> None:
    compile(planted(defect), defect.file, "exec")


# Bugs that these schedules have found, each with the first seed that finds it again.
MENDED = {
    "a store that fails keeps its lock": 29,
    "the names of folders are not synced": 0,
    "a note begins empty": 6,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MENDED)
def test_a_mended_bug_would_be_found_again(name: str) -> None:
    (defect,) = [defect for defect in DEFECTS if defect.name == name]
    seed = MENDED[name]
    assert judge(defect, range(seed, seed + 1)) != ("", "")
