"""Games at a provider of fixed latency: the time of a run over that of its critical path.

The fake provider is a process of its own on this machine, and replies to each request after just so
long.  In a forest every reply waits for those above it, so no run is faster than its critical path:
depth times latency.  What a run takes longer is processor time, of the run or of the provider.
Beside each run stand the same requests by aiohttp alone: no run can come nearer on this machine.

With --full, of three repetitions of each the one that took the least time.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import aiohttp
import msgspec

import nip_fn as nip
from nip_fn.run.request import Request
from nip_fn_adapters.processes.garbage import rare_collections
from nip_fn_adapters.providers.api.capabilities import Capabilities
from nip_fn_adapters.providers.api.replies import body_of
from tests.benchmarks.bench_api import Forest, Played, dataset, parameters, play
from tests.provider import Provider


class Case(NamedTuple):
    """Games, a latency, and the ratio that is aimed at."""

    forest: Forest
    latency: float  # s
    aim: float


TREES, DIALOGUES = Forest(64, 2, 5), Forest(1000, 1, 3)
CASES = (
    Case(TREES, 0.2, 1.3),
    Case(TREES, 1.0, 1.08),
    Case(TREES, 2.0, 1.05),
    Case(DIALOGUES, 2.0, 1.15),
)


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; each three times if `full`."""
    with rare_collections(), Provider(log_bodies=False) as provider:
        play(provider, Forest(4, 2, 3))  # import what is needed, warm up
        for case in CASES:
            yield _measure(provider, case, 3 if full else 1)


def _measure(provider: Provider, case: Case, repeats: int) -> tuple[str, str]:
    provider.configure(latency=case.latency)
    # The least disturbed: other programs can only make a run slower.
    best = min((play(provider, case.forest) for _ in range(repeats)), key=lambda one: one.wall)
    bodies = bodies_of(case.forest)
    bare = min(request_all(provider, case.forest.trees, bodies) for _ in range(repeats))
    return (
        f"{case.forest}, {case.latency * 1e3:,.0f} ms a reply: {best.requests:,} requests",
        f"{_ratio(best, case):.2f} x the critical path of {best.depth} replies (aim {case.aim:g}), "
        f"aiohttp alone {_ratio(bare, case):.2f} x; {_each(best)} and {_each(bare)} µs of this "
        f"process a request, {best.tail / best.cpu:.1%} of it after the last reply",
    )


def _ratio(played: Played, case: Case) -> float:
    return played.wall / (played.depth * case.latency)


def _each(played: Played) -> str:
    return f"{played.cpu / played.requests * 1e6:.0f}"


def bodies_of(forest: Forest) -> list[bytes]:
    """The body of a request in each round of such a game."""
    bodies: dict[int, bytes] = {}

    def sampler(asked: Request) -> tuple[nip.Completion, ...]:
        place = len(asked.episode.rounds) if asked.episode else 0
        bodies.setdefault(place, body_of(asked, asked.keys, Capabilities(), is_openai=False))
        text = "Question for Expert: what becomes of the last element of the list?"
        return tuple(nip.Completion(text, "stop", "m") for _ in asked.keys)

    data = dataset(1)
    first = nip.run.started(parameters(forest._replace(trees=1)), data)
    for _ in nip.simulate(first, nip.run.pure_world(data, sampler)):
        pass
    return [bodies[place] for place in sorted(bodies)]


def request_all(provider: Provider, trees: int, bodies: Sequence[bytes]) -> Played:
    """The same requests without a run: each reply leads to a request of the next round."""
    return asyncio.run(_request_all(f"{provider.url}/chat/completions", trees, bodies))


async def _request_all(url: str, trees: int, bodies: Sequence[bytes]) -> Played:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    requests = 0

    async def grow(depth: int) -> None:
        nonlocal requests
        requests += 1
        async with session.post(url, data=bodies[depth]) as response:
            answer = msgspec.json.decode(await response.read())
        if depth + 1 < len(bodies):
            await asyncio.gather(*(grow(depth + 1) for _ in answer["choices"]))

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers=headers
    ) as session:
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(grow(0) for _ in range(trees)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Played(wall, cpu, requests, len(bodies))
