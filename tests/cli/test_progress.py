"""The progress of a run, and the estimate of the time that is left."""

import os
import pty
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace

from nip_fn.config.codec import from_dict
from nip_fn.keys import key
from nip_fn.run.events import JobFinished, StageEnded
from nip_fn.run.forest import Forest
from nip_fn.run.stages import Done, Fetching, Growing, Training
from nip_fn.run.state import RunState, StageMetrics
from nip_fn_cli.shown.progress import Display, ended, place, seconds_left

FOLLOWING = """
from nip_fn.run.ports import Progress
from nip_fn.run.stages import Training
from nip_fn.run.state import RunState
from nip_fn_cli.shown.progress import Display

with Display(RunState(stage=Training(None, ()))) as display:
    display.follow("verifier-0", Progress(3, 10, 0.61, 12.2))
"""
PARAMS = from_dict({"rl": {"num_iterations": 3}, "text_rl": {"test_scheme": "all"}}).unwrap()
ONE_ITERATION = ((0, "test", 1.0), (0, "sample", 10.0), (0, "train", 20.0), (0, "publish", 0.5))


def test_no_estimate_before_a_training_has_ended() -> None:
    state = RunState(params=PARAMS, stage=Fetching("sample"), seconds=ONE_ITERATION[:1])
    assert seconds_left(state, 3.0) is None


def test_what_is_ahead_takes_as_long_as_it_took() -> None:
    state = RunState(params=PARAMS, iteration=1, stage=Fetching("test"), seconds=ONE_ITERATION)
    assert seconds_left(state, 0.0) == 2 * 31.5 + 1.0
    grown = Growing("sample", key(0), (), Forest(), num_waiting=0)
    later = replace(state, iteration=2, stage=Training(grown, jobs=()))
    assert seconds_left(later, 5.0) == 20.5 + 1.0 - 5.0


def test_a_training_is_followed_on_a_terminal() -> None:
    """A program of its own, whose standard error is a terminal."""
    leader, follower = pty.openpty()
    wide = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", FOLLOWING], stderr=follower, env=wide, check=True)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "training verifier-0: step 3/10, loss 0.61, about 12 s left" in shown


@pytest.mark.parametrize("least", [-9.9, -21.4])
def test_a_chosen_reply_that_a_training_made_much_less_likely_is_warned_of(
    least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    report = (("chosen_log_ratio", 0.2), ("chosen_log_ratio_min", least))
    state = RunState(stage=Training(None, ()))  # type: ignore[arg-type]
    with Display(state) as display:
        display(state, JobFinished("verifier-0", "verifier-0-a", report))
    warning = "training verifier-0: a chosen reply's log-probability fell by 21 nats"
    assert (warning in capsys.readouterr().err) == (least < -10)


def test_nothing_is_told_before_it_is_known() -> None:
    """A run that has not begun, on a terminal: neither iterations nor replies."""
    leader, follower = pty.openpty()
    program = "from nip_fn_cli.shown.progress import *\nwith Display(RunState()): pass"
    wide = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", program], stderr=follower, env=wide, check=True)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "start" in shown
    assert re.findall(r"\d+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)) == []


def test_an_iteration_has_the_number_that_tables_give_it() -> None:
    for iteration, stage in ((0, Fetching("sample")), (3, Done())):
        state = RunState(params=PARAMS, iteration=iteration, stage=stage)
        assert place(state).startswith(f"iteration {iteration} of 3")


def test_a_test_that_has_ended_tells_its_accuracy() -> None:
    measured = (("accuracy", 0.625), ("accuracy_low", 0.5), ("accuracy_high", 0.75))
    rows = (StageMetrics(0, "test", measured), StageMetrics(0, "sample", ()))
    state = RunState(params=PARAMS, rows=rows)
    assert ended(state, StageEnded(0, "test", "", 1.25), 1200, "$0.10") == (
        "iteration 0: test done, accuracy 62.5% [50.0%, 75.0%], 1,200 replies, 1.2 s, $0.10"
    )
    assert (
        ended(state, StageEnded(0, "sample", "", 2.0), 0, "") == "iteration 0: sample done, 2.0 s"
    )


def test_nothing_is_left_of_a_finished_run() -> None:
    state = RunState(params=PARAMS, iteration=3, stage=Done(), seconds=ONE_ITERATION)
    assert seconds_left(state, 5.0) == 0.0
