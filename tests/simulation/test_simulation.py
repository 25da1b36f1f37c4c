"""Whatever goes wrong, in whatever order: nothing is lost, and nothing is paid twice."""

from collections import Counter

import pytest

from .defects import DEFECTS, Defect, planted
from .rare import STATES
from .world import play

CHUNK = 20  # schedules of one test


@pytest.mark.parametrize("chunk", range(5))
def test_the_laws_hold_under_the_first_schedules(chunk: int) -> None:
    _hold(range(chunk * CHUNK, (chunk + 1) * CHUNK))


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(5, 100))
def test_the_laws_hold_under_many_schedules(chunk: int) -> None:
    _hold(range(chunk * CHUNK, (chunk + 1) * CHUNK))


def _hold(seeds: range) -> None:
    reports = (play(seed) for seed in seeds)
    broken = {f"python -m tests.simulation --seed {r.seed}": r.broken for r in reports if r.broken}
    assert not broken


def test_a_seed_is_a_schedule() -> None:
    first, again = play(11), play(11)
    assert first == again
    assert first.faults


def test_a_schedule_without_faults_has_one_session() -> None:
    report = play(11, faulty=0)
    assert (report.sessions, report.faults) == (1, {})


def test_rare_states_are_named_once_and_reached() -> None:
    assert len(set(STATES)) == len(STATES)
    reached = Counter[str]()
    for seed in range(30):
        reached += play(seed).reached
    assert reached.keys() <= set(STATES)
    assert len(reached) > len(STATES) / 2


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_has_its_place(defect: Defect) -> None:
    compile(planted(defect), defect.file, "exec")
