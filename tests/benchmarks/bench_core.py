"""Processor time of the pure core: per reply, early and late in a long run, and in large tests."""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import nip_fn as nip
from nip_fn.run import checkpoint
from nip_fn.run.events import Effect, Event, Replied
from nip_fn_adapters.recording import store

TEXTS = (
    "Question for Expert: does the loop reach the last element?",
    "Question for Expert: what happens on an empty list?",
    "The bounds are off by one.\nDecision: reject",
    "Everything is as the statement says.\nDecision: accept",
)
POINTS = tuple(
    nip.make_datapoint(f"p{i}", f"Question {i}", f"solution {i}", i % 2) for i in range(400)
)
DATA = nip.game.Dataset("bench", POINTS, (), POINTS)


def sampler(asked: nip.run.Request) -> tuple[nip.Completion, ...]:
    """One of four texts; the key alone decides which."""
    texts = (TEXTS[nip.randint(key, len(TEXTS))] for key in asked.keys)
    return tuple(nip.Completion(text, "stop", "bench", 60, 12) for text in texts)


TRAINING: dict[str, Any] = {
    "rl": {"num_iterations": 10**5, "rollouts_per_iteration": 50},
    "malt": {"num_responses_per_timestep": 3},
    "nip_protocol": {"max_message_rounds": 5},
}


def testing(num_dialogues: int) -> dict[str, Any]:
    """The settings of a single test."""
    repeats = num_dialogues // len(POINTS)
    return {
        "rl": {"num_iterations": 0, "num_test_iterations": repeats},
        "text_rl": {"test_scheme": "all"},
    }


def play(num_replies: int, folder: Path, settings: dict[str, Any]) -> list[float]:
    """The seconds that each reply of a run of so many took in the core."""
    params = nip.from_dict(settings).unwrap()
    appending = store.create(folder).unwrap()
    perform = nip.run.pure_world(DATA, sampler)
    state, times = nip.run.EMPTY, list[float]()
    queue: deque[Effect] = deque()
    answers: Iterable[Event] = (nip.run.started(params, DATA),)
    while len(times) < num_replies:
        for event in answers:
            began = time.process_time()
            appending.append(checkpoint.frame(event))
            state, effects = nip.step(state, event)
            elapsed = time.process_time() - began
            if isinstance(event, Replied):
                replies = len(event.completions)
                times.extend([elapsed / replies] * replies)
            queue.extend(effects)
        answers = perform(state, queue.popleft())
    appending.close()
    return times


def help_seconds() -> float:
    """The best of five: `nip-fn --help`, from the shell's point of view."""
    command = (Path(sys.executable).parent / "nip-fn", "--help")

    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    return min(once() for _ in range(5))


def microseconds(times: list[float]) -> str:
    """Median and mean of some times in seconds."""
    return f"{median(times) * 1e6:.1f} µs median, {sum(times) / len(times) * 1e6:.1f} µs mean"


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; there are no larger sizes."""
    with TemporaryDirectory() as folder:
        times = play(100_000, Path(folder) / "run", TRAINING)
        early, late = times[:1000], times[-1000:]
        yield "core per reply, first 1,000 replies (aim 50 µs)", microseconds(early)
        yield "core per reply, last 1,000 of 100,000", microseconds(late)
        yield "late / early, medians (aim 1)", f"{median(late) / median(early):.2f}"
        yield "core per reply over all 100,000, stage ends included", microseconds(times)
        few = play(4000, Path(folder) / "few", testing(5200))
        yield "core per reply in a test of 5,200 dialogues", microseconds(few)
        many = play(4000, Path(folder) / "many", testing(138_000))
        yield "core per reply in a test of 138,000", microseconds(many)
        yield "many / few, medians (aim 1)", f"{median(many) / median(few):.2f}"
    yield "nip-fn --help (aim 0.25 s)", f"{help_seconds():.2f} s"
