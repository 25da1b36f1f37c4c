"""Searches in studies: what a log says of draws and cells."""

import tomllib
from typing import Any

import pytest
from returns.pipeline import is_successful

from nip_fn.config.codec import flatten
from nip_fn.config.search import (
    Begun,
    Ended,
    Entry,
    Reported,
    Suggested,
    in_force,
    result_of,
    tried,
    with_suggested,
)
from nip_fn.config.study import Search, Study, cells, study_of

TEXT = """
seeds = 2
[random]
num = 3
rl.lr = { log = [1e-5, 1e-3] }
[tests.greedy]
text_rl.test_temperature = 0.0
[search]
algorithm = "optuna"
"""


def study(text: str = TEXT) -> Study:
    return study_of("x", tomllib.loads(text)).unwrap()


def begun(text: str = TEXT) -> Begun:
    whole = study(text)
    assert whole.search is not None
    assert whole.draws is not None
    return Begun(whole.search, whole.draws.spaces)


def test_what_was_suggested_takes_the_place_of_what_was_drawn() -> None:
    whole = study()
    found = with_suggested(whole, [Suggested("draw-2", {"rl.lr": 0.5})])
    for before, after in zip(cells(whole), cells(found), strict=True):
        assert before.name == after.name
        changed = before.levels["draw"] == "draw-2"
        assert (before.table != after.table) == changed
        assert not changed or flatten(after.table)["rl.lr"] == 0.5


def test_the_result_of_a_draw_is_the_mean_of_its_cells_once_all_have_ended() -> None:
    entries: list[Entry] = [
        begun(),
        Suggested("draw-1", {"rl.lr": 0.1}),
        Reported("draw-1-seed-1", 0, 0.9),
        Reported("draw-1-seed-1", 1, 0.4),
        Ended("draw-1-seed-1"),
        Reported("draw-1-seed-2", 0, 0.2, stop=True),
        Reported("draw-3-seed-1", 0, 1.0),
        Ended("draw-3-seed-1"),
    ]
    assert tried(study(), entries[:5]) == ()
    (known,) = tried(study(), entries)
    assert known == ("draw-1", {"rl.lr": 0.1}, pytest.approx(0.3))
    # One that ended without a result tells nothing of the others.
    more = tried(study(), [*entries, Ended("draw-3-seed-2")])
    assert [one.draw for one in more] == ["draw-1", "draw-3"]
    assert more[1].result == 1.0


def test_a_log_is_in_force_for_the_search_that_it_was_written_for() -> None:
    whole = study()
    assert whole.search is not None
    log: tuple[Entry, ...] = (
        begun(),
        Suggested("draw-1", {"rl.lr": 0.1}),
        Reported("draw-1-seed-1", 0, 0.9, stop=True),
    )
    assert in_force(whole, whole.search, ()).unwrap() == log[:1]
    assert in_force(whole, whole.search, log).unwrap() == log
    # By another metric results are read again, and stops decided again; draws were made.
    other = Search(metric="sample.accuracy", algorithm="optuna")
    again = in_force(whole, other, log).unwrap()
    assert again == (Begun(other, log[0].spaces), log[1])
    assert in_force(whole, other, (*log, again[0])).unwrap() == again
    assert in_force(whole, whole.search, (*log, again[0])).unwrap() == log[:2]


def test_draws_stay_among_the_values_that_they_were_chosen_from() -> None:
    wider = study(TEXT.replace("1e-3", "1e-2"))
    assert wider.search is not None
    log: tuple[Entry, ...] = (begun(),)
    assert is_successful(in_force(wider, wider.search, log))
    refused = in_force(wider, wider.search, (*log, Suggested("draw-1", {"rl.lr": 0.1})))
    assert "random: draws were chosen among other values before" in str(refused.failure())


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"stage": "sample", "iteration": 1, "prover.reward": 0.5}, 0.5),
        ({"stage": "test", "iteration": 1, "prover.reward": 0.5}, None),
        ({"stage": "sample", "iteration": 1, "reward": 0.5}, None),
    ],
)
def test_a_metric_is_that_of_a_stage(row: dict[str, Any], expected: float | None) -> None:
    assert result_of(Search(metric="sample.prover.reward"), row) == expected
