"""Runs of up to a million replies: time, memory and file for each reply, and the time of a replay.

The interpreter runs as it does live, on a clock that jumps from one answer to the next: 64
endpoints take a second for each request, and nobody waits.  Each size is a process of its own, so
that its peak of memory is its own.

With --full a run of 10^6 replies, iterations of 10^2, 10^3 and 10^4 trees, and tests of 5,000 and
138,000 dialogues, too.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from returns.result import Result, Success

import nip_fn as nip
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.run.events import Event, Replied, RunStarted, StageEnded
from nip_fn.run.ports import Unanswered, World
from nip_fn.run.request import Request
from nip_fn.run.state import RunState, StageMetrics
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.processes.cores import map_on_cores
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.recording import store
from tests.benchmarks.bench_core import sampler
from tests.benchmarks.memory import peak_megabytes

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

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        async with next(endpoints):
            await asyncio.sleep(LATENCY)
        return Success(sampler(request))

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
        peak = peak_megabytes()
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


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; of the large sizes, too, if `full`."""
    yield from _figures("a run of", (*SIZES, Size(10**6)) if full else SIZES)
    if full:
        yield from _figures("an iteration of", WIDTHS)
        yield from _figures("a test of", TESTS)


def _figures(what: str, sizes: Sequence[Size]) -> Iterator[tuple[str, str]]:
    each = []
    for size in sizes:
        found = _in_a_process(size)
        each.append(found["microseconds"])
        yield (
            f"{what} {found['replies']:,.0f} replies ({ENDPOINTS} endpoints, {LATENCY:g} s)",
            f"{found['microseconds']:.0f} µs of processor and {found['bytes']:.0f} bytes a reply; "
            f"peak {found['peak']:,.0f} MB (aim 1,024); replay {found['replay']:.1f} s on a core, "
            f"{found['replay_on_cores']:.1f} s on {len(os.sched_getaffinity(0))} "
            "(aim 60 for a million)",
        )
    ratio = f"{max(each) / min(each):.2f}"
    yield f"{what} so many replies, processor a reply, most / least (aim 1.3)", ratio


def _in_a_process(size: Size) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", *map(str, size)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return found


if __name__ == "__main__":
    print(json.dumps(_measure(Size(*map(int, sys.argv[1:])))))
