"""Runs of up to a million replies: time, memory and file for each reply, and the time of a replay.

The interpreter runs as it does live, on a clock that jumps from one answer to the next: 64
endpoints take a second for each request, and nobody waits.  Each size is a process of its own, so
that its peak of memory is its own.

    python -m tests.benchmarks.bench_scale           runs of 10^4 and 10^5 replies, as `make bench`
    python -m tests.benchmarks.bench_scale --full    a run of 10^6 replies, too: some minutes
    python -m tests.benchmarks.bench_scale --wide    iterations of 10^2, 10^3 and 10^4 trees, and
                                                     tests of 5,000 and 138,000 dialogues
"""

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from returns.result import Result, Success

import nip_fn as nip
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.run.events import Event, Replied, RunStarted, StageEnded
from nip_fn.run.ports import World
from nip_fn.run.request import Request
from nip_fn.run.state import RunState, StageMetrics
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.processes.cores import map_on_cores
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.recording import store
from tests.benchmarks.bench_core import sampler

TREES = 80  # of an iteration, with about 106 replies each
ENDPOINTS, LATENCY, IN_FLIGHT = 64, 1.0, 16


class Size(NamedTuple):
    """The size of a run."""

    replies: int  # after which it is stopped; 0: after its first iteration, or its test
    trees: int = TREES  # of an iteration
    dialogues: int = 0  # of the test; 0: there is none


SIZES = (Size(10**4), Size(10**5))
WIDTHS = (Size(0, trees=100), Size(0, trees=1_000), Size(0, trees=10_000))
TESTS = (Size(0, dialogues=5_000), Size(0, dialogues=138_000))


class JumpingClock(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Watch:
    """Counts replies, and stops the run after so many, or at the end of its first stage."""

    def __init__(self, size: Size, stop: asyncio.Event) -> None:
        self.count, self._size, self._stop = 0, size, stop

    def __call__(self, state: RunState, event: Event) -> None:
        self.count += len(event.completions) if isinstance(event, Replied) else 0
        most = self._size.replies
        if self.count >= most if most else isinstance(event, StageEnded):
            self._stop.set()


async def _play(size: Size, folder: Path) -> tuple[Watch, float]:
    params = nip.from_dict(
        {
            "rl": {
                "num_iterations": 10**5 if size.replies else 1,
                "rollouts_per_iteration": size.trees,
            },
            "text_rl": {
                "stop_grace_seconds": 0.0,
                "test_scheme": "first_and_last" if size.dialogues else "none",
            },
            "malt": {"num_responses_per_timestep": 3},
            "nip_protocol": {"max_message_rounds": 5},
        }
    ).unwrap()
    points = tuple(
        nip.make_datapoint(f"p{i}", f"Question {i}", f"code {i}", i % 2)
        for i in range(max(size.trees, size.dialogues))
    )
    dataset = nip.game.Dataset("scale", points[: size.trees], (), points[: size.dialogues])
    endpoints = cycle([asyncio.Semaphore(IN_FLIGHT) for _ in range(ENDPOINTS)])

    async def sample(asked: Request) -> Result[Sequence[Completion], Problem]:
        async with next(endpoints):
            await asyncio.sleep(LATENCY)
        return Success(sampler(asked))

    data, appending, stop = in_memory(dataset), store.create(folder).unwrap(), asyncio.Event()
    watch = Watch(size, stop)
    world = World(
        sample, dummy.dummy_tuner(), dummy.serve_at_once, data.source, appending, _no_tracker
    )
    first = (RunStarted(params, data.info, "0"),)
    (await interpret(nip.run.EMPTY, world, first=first, stop=stop, observe=watch)).unwrap()
    appending.close()
    return watch, asyncio.get_running_loop().time()


def _no_tracker(row: StageMetrics, seconds: float) -> None:
    """Keep nothing."""


def _measure(size: Size) -> dict[str, float]:
    """The figures of a run."""
    gc.freeze()  # as the command does
    gc.set_threshold(50_000)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with asyncio.Runner(loop_factory=JumpingClock) as runner:
            began = time.process_time()
            watch, simulated = runner.run(_play(size, path))
            seconds = time.process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        written = (path / store.CHECKPOINT).stat().st_size
        recording = store.read_recording(path / store.CHECKPOINT).unwrap()
        began = time.process_time()
        nip.replay(recording.events).unwrap()
        replayed = time.process_time() - began
        began = time.perf_counter()
        nip.replay(recording.events, map=map_on_cores).unwrap()
        on_cores = time.perf_counter() - began
    return {
        "replies": watch.count,
        "microseconds": seconds / watch.count * 1e6,
        "simulated": simulated,
        "peak": peak,
        "bytes": written / watch.count,
        "replay": replayed,
        "replay_on_cores": on_cores,
    }


def run(sizes: Sequence[Size] = SIZES) -> list[tuple[str, str]]:
    """Name and figure of each measurement."""
    return _figures("a run of", sizes)


def run_wide() -> list[tuple[str, str]]:
    """The same of single stages, from small to large."""
    return [*_figures("an iteration of", WIDTHS), *_figures("a test of", TESTS)]


def _figures(what: str, sizes: Sequence[Size]) -> list[tuple[str, str]]:
    found = [_in_a_process(size) for size in sizes]
    each = [one["microseconds"] for one in found]
    replayed = [one["replay"] for one in found]
    names = ", ".join(f"{one['replies']:,.0f}" for one in found)
    return [
        (
            f"{what} {names} replies ({ENDPOINTS} endpoints, {LATENCY:g} s), processor a reply",
            f"{_list(each, '.0f')} µs; {max(each) / min(each):.2f} x (aim 1.3)",
        ),
        ("peak of memory", f"{_list([one['peak'] for one in found], ',.0f')} MB (aim 1,024)"),
        ("recording, for each reply", f"{_list([one['bytes'] for one in found], '.0f')} bytes"),
        ("replay, processor time on one core", f"{_list(replayed, '.1f')} s"),
        (
            f"replay, {len(os.sched_getaffinity(0))} cores",
            f"{_list([one['replay_on_cores'] for one in found], '.1f')} s (aim 60 for a million)",
        ),
    ]


def _in_a_process(size: Size) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", *map(str, size)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return found


def _list(values: Sequence[float], form: str) -> str:
    return ", ".join(f"{value:{form}}" for value in values)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--wide"]:
            figures = run_wide()
        case ["--full"]:
            figures = run((*SIZES, Size(10**6)))
        case []:
            figures = run()
        case size:
            print(json.dumps(_measure(Size(*map(int, size)))))
            sys.exit()
    for name, figure in figures:
        print(f"{name:60} {figure}")
