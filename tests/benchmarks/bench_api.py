"""Models behind an API, at the fake provider: latency, throughput, memory, prompt tokens.

The provider is a process of its own.  Its replies are valid; a verifier that may decide early does
so at a given rate, which makes trees smaller.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
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
from nip_fn_adapters.experiments.recordings import rare_collections
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.pace import Bounds
from nip_fn_adapters.providers.api.sampler import (
    DEFAULT_SETTINGS,
    ApiModel,
    ClientSettings,
    api_sampler,
)
from nip_fn_adapters.recording import store
from tests.provider import Provider

LATENCY = 0.2  # s
REAL_LATENCY = 2.0  # s, about that of a real model's reply
NUM_REPLIES = 50_000  # for throughput and memory, in requests for 4
ONE_AT_A_TIME = ClientSettings(bounds=Bounds(1, 1, 1))
PACKAGES = {"openai": "openai", "pydantic": "openai", "httpx2": "httpx2", "aiohttp": "aiohttp"}

Figures = Iterator[tuple[str, str]]


class Forest(NamedTuple):
    """What is played."""

    trees: int
    k: int
    rounds: int
    decision_rate: float = 0.0

    def __str__(self) -> str:
        """For people."""
        kind = f"{self.decision_rate:.0%} decide early" if self.decision_rate else "full"
        return f"{self.trees} trees ({kind}), k = {self.k}, {self.rounds} rounds"


class Played(NamedTuple):
    """What it took."""

    wall: float  # s
    cpu: float  # s, of this process
    requests: int
    prompt_tokens: int
    depth: int  # the longest chain of requests of which each waits for the last
    tail: float = 0.0  # s of processor time from the last reply to the end of the stage


def run() -> list[tuple[str, str]]:
    """Name and figure of each measurement."""
    with rare_collections(), Provider(log_bodies=False) as provider:
        play(provider, Forest(4, 2, 3))  # import what is needed, warm up
        figures = [*_latency(provider), *_limited(provider), *_tokens(provider)]
        return [*figures, *_throughput(provider)]


# ------------------------------------------------------------------------------------ forests


def play(
    provider: Provider,
    forest: Forest,
    settings: ClientSettings = DEFAULT_SETTINGS,
    how: str = "auto",
) -> Played:
    """Sample a forest, recording it."""
    provider.configure(decision_rate=forest.decision_rate)
    params, before = parameters(forest), provider.counters()
    server = Endpoint(provider.url, "none")
    served = ApiModel((server,), replies_per_request=how)
    sampler = api_sampler({agent.name: served for agent in params.agents}, settings)
    watch = _Watch()
    with TemporaryDirectory() as folder:
        opened = store.create(Path(folder) / "run").unwrap()
        data = in_memory(dataset(forest.trees))
        tuner, publisher = dummy.dummy_tuner(), dummy.serve_at_once
        world = World(sampler, tuner, publisher, data.source, opened, _no_tracker)
        first = (RunStarted(params, data.info, "0"),)
        asyncio.run(interpret(EMPTY, world, first=first, observe=watch)).unwrap()
        opened.close()
    after = provider.counters()
    requests, tokens = (after[name] - before[name] for name in ("requests", "prompt_tokens"))
    return Played(watch.wall, watch.cpu, requests, tokens, watch.depth, watch.tail)


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


def _latency(provider: Provider) -> Figures:
    for forest, latency in (
        (Forest(64, 2, 5, 0.75), LATENCY),
        (Forest(2, 3, 9, 0.75), LATENCY),
        (Forest(8, 2, 5), LATENCY),
        (Forest(2, 3, 9, 0.75), REAL_LATENCY),
    ):
        provider.configure(latency=latency)
        played = play(provider, forest)
        path = played.depth * latency
        each = played.cpu / played.requests
        yield (
            f"{forest}, {latency * 1e3:.0f} ms a reply: {played.requests:,} requests",
            f"{played.wall / path:.2f} x the critical path of {played.depth} replies; no less than "
            f"{max(path, played.cpu) / path:.2f} x with this process's own {each * 1e3:.2f} ms a "
            f"request; one at a time {played.requests * latency / path:.0f} x",
        )
    provider.configure(latency=LATENCY)
    small = Forest(1, 2, 5)
    alone = play(provider, small, ONE_AT_A_TIME)
    yield (
        f"{small}, really asked one request at a time: {alone.requests:,} requests",
        f"{alone.wall:.1f} s, so {alone.wall * 64:.0f} s for 64 trees",
    )


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


def _tokens(provider: Provider) -> Figures:
    provider.configure(latency=0.0)
    for k in (2, 4):
        forest = Forest(8, k, 3)
        together, apart = (play(provider, forest, how=how) for how in ("auto", "one"))
        yield (
            f"prompt tokens of {forest}, with n = {k} and without",
            f"{together.prompt_tokens:,} and {apart.prompt_tokens:,}: "
            f"{together.prompt_tokens / apart.prompt_tokens:.3f} x",
        )


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
    shares = _profile(provider.url)
    split = ", ".join(f"{name} {share:.0%}" for name, share in shares)
    yield "client's time, by whose code runs", split


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


def _profile(url: str) -> list[tuple[str, float]]:
    """The share of processor time by the innermost package on the stack, a sample each ms."""
    counts: Counter[str] = Counter()

    def note(number: int, frame: FrameType | None) -> None:
        counts[_owner(frame)] += 1

    earlier = signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    asyncio.run(_sample(url, 8_000))
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    signal.signal(signal.SIGPROF, earlier)
    return [(name, count / counts.total()) for name, count in counts.most_common()]


def _owner(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        package = path.partition("site-packages/")[2].partition("/")[0]
        if "/nip_fn" in path:
            return "nip-fn"
        if package:
            return PACKAGES.get(package, "aiohttp" if "aio" in package else "other packages")
        frame = frame.f_back
    return "asyncio"


if __name__ == "__main__":
    for name, figure in run():
        print(f"{name}\n    {figure}")
