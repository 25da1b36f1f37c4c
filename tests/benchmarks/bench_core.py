"""What the pure core costs: per reply, early and late in a long run, and for a whole replay."""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from nip_fn.config.codec import from_dict
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.reply import Completion
from nip_fn.keys import randint
from nip_fn.run import checkpoint
from nip_fn.run.events import (
    BatchFetched,
    CreateJob,
    DatasetInfo,
    Effect,
    EndStage,
    Event,
    FetchBatch,
    JobCreated,
    JobFinished,
    Publish,
    Published,
    Replied,
    RunStarted,
    SampleReplies,
    StageEnded,
    Train,
)
from nip_fn.run.replay import replay
from nip_fn.run.request import request
from nip_fn.run.state import EMPTY, RunState, digest
from nip_fn.run.step import step
from nip_fn_adapters import store

TEXTS = (
    "Question for Expert: does the loop reach the last element?",
    "Question for Expert: what happens on an empty list?",
    "The bounds are off by one.\nDecision: reject",
    "Everything is as the statement says.\nDecision: accept",
)
POINTS = tuple(make_datapoint(f"p{i}", f"Question {i}", f"solution {i}", i % 2) for i in range(400))
INFO = DatasetInfo("bench", "0", len(POINTS), 0, len(POINTS))


def answers(state: RunState, effect: Effect) -> Iterator[Event]:
    """What a world without models, files or waiting answers."""
    match effect:
        case FetchBatch(_, indices):
            yield BatchFetched(tuple(POINTS[i] for i in indices))
        case SampleReplies(tree, ask):
            for index, key in zip(ask.indices, request(state, effect).keys, strict=True):
                done = Completion(TEXTS[randint(key, len(TEXTS))], "stop", "bench", 60, 12)
                yield Replied(tree, ask.path, ask.agent, index, ask.attempt, done)
        case EndStage(iteration, stage):
            yield StageEnded(iteration, stage, digest(state), 0.0)
        case CreateJob(job):
            yield JobCreated(job.name, job.data_hash)
        case Train(job):
            yield JobFinished(job.name, f"{job.name}-{job.data_hash[:8]}")
        case Publish(group, _, adapter):
            yield Published(group, adapter)


def play(num_replies: int, folder: Path) -> tuple[list[float], list[Event]]:
    """A run of that many replies: the seconds that each took in the core, and all its events."""
    params = from_dict(
        {
            "rl": {"num_iterations": 10**6, "rollouts_per_iteration": 50},
            "malt": {"num_responses_per_timestep": 3},
            "nip_protocol": {"max_message_rounds": 5},
        }
    ).unwrap()
    appending = store.create(folder).unwrap()
    state, times, events = EMPTY, list[float](), list[Event]()
    queue: deque[Effect] = deque()
    first: Iterator[Event] = iter((RunStarted(params, INFO, "0"),))
    while len(times) < num_replies:
        for event in first:
            began = time.perf_counter()
            appending.append(checkpoint.frame(event))
            state, effects = step(state, event)
            elapsed = time.perf_counter() - began
            if isinstance(event, Replied):
                times.append(elapsed)
            events.append(event)
            queue.extend(effects)
        first = answers(state, queue.popleft())
    appending.close()
    return times, events


def help_seconds() -> float:
    """The best of five: `nip-fn --help`, from the shell's point of view."""
    command = [Path(sys.executable).parent / "nip-fn", "--help"]

    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    return min(once() for _ in range(5))


def run() -> list[tuple[str, str]]:
    """Rows of (what, figure)."""
    with TemporaryDirectory() as folder:
        times, events = play(100_000, Path(folder) / "run")
    early, late = times[:1000], times[-1000:]
    recorded = checkpoint.write(events[:12_400])
    began = time.perf_counter()
    replay(checkpoint.read(recorded).unwrap().events).unwrap()
    replay_seconds = time.perf_counter() - began

    def microseconds(window: list[float]) -> str:
        return (
            f"{median(window) * 1e6:.1f} µs median, {sum(window) / len(window) * 1e6:.1f} µs mean"
        )

    return [
        ("core per reply, first 1,000 replies (aim 50 µs)", microseconds(early)),
        ("core per reply, last 1,000 of 100,000", microseconds(late)),
        ("late / early, medians (aim 1)", f"{median(late) / median(early):.2f}"),
        ("core per reply over all 100,000, stage ends included", microseconds(times)),
        ("replay of 12,400 events (aim 1 s)", f"{replay_seconds:.2f} s"),
        ("nip-fn --help (aim 0.25 s)", f"{help_seconds():.2f} s"),
    ]
