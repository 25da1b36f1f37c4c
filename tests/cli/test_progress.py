"""The estimate of the time that is left."""

import os
import pty
import subprocess
import sys

from msgspec.structs import replace

from nip_fn.config.codec import from_dict
from nip_fn.keys import key
from nip_fn.run.stages import Done, Fetching, Growing, Training
from nip_fn.run.state import RunState
from nip_fn.trees.grow import Forest
from nip_fn_cli.progress import seconds_left

FOLLOWING = """
from nip_fn.run.ports import Progress
from nip_fn.run.stages import Training
from nip_fn.run.state import RunState
from nip_fn_cli.progress import Display

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


def test_nothing_is_left_of_a_finished_run() -> None:
    state = RunState(params=PARAMS, iteration=3, stage=Done(), seconds=ONE_ITERATION)
    assert seconds_left(state, 5.0) == 0.0
