"""The `map` over the cores of this machine."""

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from nip_fn_adapters.processes import cores
from nip_fn_adapters.processes.cores import map_on_cores


@pytest.fixture(autouse=True)
def three_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_num_processes", lambda: 3)
    monkeypatch.setattr(cores, "WORTH_A_FORK", 0.0)


@pytest.mark.parametrize("size", range(9))
def test_values_come_in_the_order_of_the_items(size: int) -> None:
    assert map_on_cores(lambda item: item * item, range(size)) == [i * i for i in range(size)]


def test_the_items_are_shared_among_processes_none_of_which_is_left() -> None:
    pids = map_on_cores(lambda item: os.getpid(), range(12))
    assert len(set(pids)) == 3
    assert os.getpid() in pids
    for pid in {*pids} - {os.getpid()}:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_too_little_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "WORTH_A_FORK", 60.0)
    assert set(map_on_cores(lambda item: os.getpid(), range(12))) == {os.getpid()}


def in_a_fork(act: Callable[[], object]) -> Callable[[int], int]:
    here = os.getpid()
    return lambda item: item if os.getpid() == here else (act(), item)[1]


@pytest.mark.parametrize(
    "act",
    [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0, lambda: os._exit(0)],
    ids=["killed", "failed", "ended"],
)
def test_what_a_fork_does_not_compute_is_computed_here(act: Callable[[], object]) -> None:
    assert map_on_cores(in_a_fork(act), range(7)) == list(range(7))


@pytest.mark.parametrize("item", [0, 1, 2, 3, 8])
def test_an_error_is_raised_here_and_leaves_no_process(
    item: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, start = [], cores._start

    def noted(*work: object) -> cores._Fork:
        fork = start(*work)
        pids.append(fork.pid)
        return fork

    monkeypatch.setattr(cores, "_start", noted)
    with pytest.raises(ZeroDivisionError):
        map_on_cores(lambda number: 1 // (number - item), range(9))
    assert len(pids) == (2 if item else 0)
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_values_that_are_more_than_a_pipe_holds_arrive_and_stay_read_only() -> None:
    def zeros(item: int) -> np.ndarray:
        array = np.zeros(100_000)
        array.flags.writeable = False
        return array

    for array in map_on_cores(zeros, range(6)):
        assert array.shape == (100_000,)
        assert not array.flags.writeable
