"""Models behind an API, at the fake provider: concurrency, throughput, memory.

The provider is a process of its own.  Its replies are valid, and no verifier decides early.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from nip_fn.config.codec import from_dict
from nip_fn.game.chat import Message
from nip_fn.game.datapoint import Dataset, make_datapoint
from nip_fn.keys import fold_in, key, split
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import BatchFetched, Event, Replied, RunStarted, StageEnded
from nip_fn.run.ports import World
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState, StageMetrics
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.processes.garbage import rare_collections
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.sampler import (
    ApiModel,
    api_sampler,
)
from nip_fn_adapters.recording import store
from tests.provider import Provider

LATENCY = 0.2  # s
NUM_REPLIES = 50_000  # for throughput and memory, in requests for 4

Figures = Iterator[tuple[str, str]]


class Forest(NamedTuple):
    """What is played."""

    trees: int
    k: int
    rounds: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.trees} trees, k = {self.k}, {self.rounds} rounds"


class Played(NamedTuple):
    """What it took."""

    wall: float  # s
    cpu: float  # s, of this process
    requests: int
    depth: int  # the longest chain of requests of which each waits for the last
    tail: float = 0.0  # s of processor time from the last reply to the end of the stage


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; there are no larger sizes."""
    with rare_collections(), Provider(log_bodies=False) as provider:
        play(provider, Forest(4, 2, 3))  # import what is needed, warm up
        yield from _limited(provider)
        yield from _throughput(provider)


# ------------------------------------------------------------------------------------ forests


def play(provider: Provider, forest: Forest) -> Played:
    """Sample a forest, recording it."""
    provider.configure(decision_rate=0.0)
    params, before = parameters(forest), provider.counters()["requests"]
    server = Endpoint(provider.url, "none")
    served = ApiModel((server,))
    sampler = api_sampler({agent.name: served for agent in params.agents})
    watch = _Watch()
    with TemporaryDirectory() as folder:
        opened = store.create(Path(folder) / "run").unwrap()
        data = in_memory(dataset(forest.trees))
        tuner, publisher = dummy.dummy_tuner(), dummy.serve_at_once
        world = World(sampler, tuner, publisher, data.source, opened, _no_tracker)
        first = (RunStarted(params, data.info, "0"),)
        asyncio.run(interpret(EMPTY, world, first=first, observe=watch)).unwrap()
        opened.close()
    requests = provider.counters()["requests"] - before
    return Played(watch.wall, watch.cpu, requests, watch.depth, watch.tail)


class _Watch:
    """Times the sampling, without the training that follows it."""

    def __init__(self) -> None:
        self.wall = self.cpu = self.tail = 0.0
        self.depth = 0
        self._observed = self._last_reply = 0.0

    def __call__(self, state: RunState, event: Event) -> None:
        before, self._observed = self._observed, time.process_time()
        if isinstance(event, BatchFetched):
            self._began = time.perf_counter(), time.process_time()
        elif isinstance(event, Replied):
            self._last_reply = before  # the step that ended with this call began then
            self.depth = max(self.depth, len(event.path) + event.attempt + 1)
        elif isinstance(event, StageEnded) and event.stage == "sample":
            self.wall = time.perf_counter() - self._began[0]
            self.cpu = time.process_time() - self._began[1]
            self.tail = time.process_time() - self._last_reply


def parameters(forest: Forest) -> HyperParameters:
    return from_dict(
        {
            "rl": {"num_iterations": 1, "rollouts_per_iteration": forest.trees},
            "text_rl": {"test_scheme": "none"},
            "malt": {"num_responses_per_timestep": forest.k},
            "nip_protocol": {"max_message_rounds": forest.rounds},
        }
    ).unwrap()


def dataset(size: int) -> Dataset:
    points = tuple(
        make_datapoint(f"p{i}", f"Sum the numbers, but {i}.\n" * 10, "    x = x + 1\n" * 20, i % 2)
        for i in range(size)
    )
    return Dataset("bench", train=points, validation=(), test=())


def _no_tracker(row: StageMetrics, seconds: float) -> None:
    """Keep nothing."""


def _limited(provider: Provider) -> Figures:
    provider.configure(latency=LATENCY)
    for forest, most in ((Forest(64, 2, 5), 32), (Forest(16, 2, 5), 8)):
        for what, settings in (
            ("others wait there", {"concurrency": most}),
            ("others are refused (429)", {"in_flight_limit": most}),
        ):
            provider.configure(concurrency=None, in_flight_limit=None)
            provider.configure(**settings)
            before = provider.counters()["by_status"].get("429", 0)
            played = play(provider, forest)
            refused = provider.counters()["by_status"].get("429", 0) - before
            answered = played.requests - refused
            least = answered * LATENCY / most
            yield (
                f"{forest}, at most {most} served at a time, {what}",
                f"{played.wall / least:.2f} x requests x latency / {most}",
            )
    provider.configure(concurrency=None, in_flight_limit=None)


# ------------------------------------------------------------------------------------ requests


def _throughput(provider: Provider) -> Figures:
    provider.configure(latency=0.0)
    asyncio.run(_sample(provider.url, 400))
    wall, cpu = time.perf_counter(), time.process_time()
    before, halfway, after = asyncio.run(_sample(provider.url, NUM_REPLIES))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    requests = NUM_REPLIES // 4
    yield (
        "client alone, requests for 4 replies, 64 in flight",
        f"{requests / wall:.0f} requests/s; {requests / cpu:.0f} in a second of its processor",
    )
    yield (
        f"client's memory after 10,000, 30,000 and {NUM_REPLIES:,} replies",
        f"{before:.1f}, {halfway:.1f} and {after:.1f} MB",
    )


async def _sample(url: str, num_replies: int) -> tuple[float, float, float]:
    """The memory in use after 1/5, 3/5 and all of the replies, in MB."""
    sampler = api_sampler({"verifier": ApiModel((Endpoint(url, "none"),))})
    left = iter(range(num_replies // 4))
    marks: dict[int, float] = {}

    async def work() -> None:
        for place in left:
            (await sampler(make_request(place))).unwrap()
            marks[place] = 0.0
            if len(marks) * 20 in (num_replies, 3 * num_replies):
                memory.append(_resident())

    memory: list[float] = []
    await asyncio.gather(*(work() for _ in range(64)))
    return memory[0], memory[1], _resident()


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def make_request(place: int) -> Request:
    chat = (
        Message("system", "You are Verifier. " + "Judge the code. " * 60),
        Message("user", f"Ask about {place}."),
    )
    return Request(
        model="m",
        adapter=None,
        chat=chat,
        keys=split(fold_in(key(0), place), 4),
        temperature=1.0,
        top_p=None,
        repetition_penalty=None,
        max_tokens=64,
        agent="verifier",
        is_verifier=True,
        headers=(),
        decisions=(),
    )
