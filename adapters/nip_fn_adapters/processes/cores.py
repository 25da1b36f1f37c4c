"""A `map` over the cores of this machine."""

import gc
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

WORTH_A_FORK = 0.1  # s of work; a fork takes some milliseconds


def map_on_cores(function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    """The value of a pure function for each item, in the order of the items.

    Forks of this process compute all shares but one, unless there is too little to do.  The
    function need not be picklable, but its values must be.  An error is raised here, whichever
    process met it first.
    """
    began = perf_counter()
    first = list(map(function, items[:1]))
    is_worth_it = (perf_counter() - began) * len(items) > WORTH_A_FORK
    rest = items[1:]
    return first + (_in_forks(function, rest) if is_worth_it else list(map(function, rest)))


def _in_forks(function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    num, collects = _num_processes(), gc.isenabled()
    # A collection writes to all objects: each page of memory that is shared would be copied.
    gc.disable()
    forks = [_start(function, items[rank::num]) for rank in range(1, num)]
    try:
        shares = [list(map(function, items[0::num]))]
        while forks:
            share = _values(forks.pop(0))
            # Whatever ended the fork, an error or a lack of memory: this process finds out.
            again = items[len(shares) :: num]
            shares.append(list(map(function, again)) if share is None else share)
    finally:
        for fork in forks:
            os.kill(fork.pid, signal.SIGKILL)
            _values(fork)
        if collects:
            gc.enable()
    return [shares[index % num][index // num] for index in range(len(items))]


def _num_processes() -> int:
    # A fork has one thread, and a lock that another thread held remains locked in it for ever.  The
    # system libraries of macOS do not survive a fork, either.
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return len(os.sched_getaffinity(0))


class _Fork(NamedTuple):
    pid: int
    pipe: int  # the end to read from


def _start(function: Callable[[Item], Value], items: Sequence[Item]) -> _Fork:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _compute(function, items, writing)
    os.close(writing)
    return _Fork(pid, reading)


def _compute(function: Callable[[Item], Value], items: Sequence[Item], pipe: int) -> NoReturn:
    """Write the values and end the process, without what the parent does when it ends."""
    code = 1
    try:
        # In protocol 5 an array that is read-only remains so.
        with open(pipe, "wb") as file:
            pickle.dump(list(map(function, items)), file, protocol=5)
        code = 0
    finally:
        os._exit(code)


def _values(fork: _Fork) -> list[Any] | None:
    """The values that the fork computed, once it has ended; None if it could not."""
    with open(fork.pipe, "rb") as file:
        data = file.read()
    _, status = os.waitpid(fork.pid, 0)
    return None if status or not data else pickle.loads(data)
