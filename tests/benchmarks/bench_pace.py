"""How closely the number of requests in flight follows the capacity of a server, in real time.

The fake provider, a process of its own, answers 429 to whatever comes while it has `capacity` chats
in hand.  The capacity falls to a tenth and returns.

With --full 90 s at each capacity, with and without Retry-After; otherwise 20 s without.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.sampler import ApiModel, api_sampler
from tests.benchmarks.bench_api import make_request
from tests.provider import Provider

CAPACITIES = (50, 5, 50)
SECONDS, FULL_SECONDS = 20.0, 90.0  # at each
LATENCY = 0.2  # s
WORKERS = 128  # that always have a request to make
WARM_UP = 2 / 3  # of the time at the first capacity, after which refusals are counted


class Part(NamedTuple):
    """What came of the time at one capacity."""

    capacity: int
    seconds: float
    answers: int
    refusals: int
    latency: float  # s, that the server took for an answer, on average

    @property
    def share(self) -> float:
        """Of the answers that the capacity allowed for the latency that was set."""
        return self.answers / (self.capacity * self.seconds / LATENCY)

    @property
    def share_of_real(self) -> float:
        """The same for the latency that the server really had."""
        return self.answers / (self.capacity * self.seconds / self.latency)


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; longer, and twice, if `full`."""
    yield from _at_each_capacity(None, FULL_SECONDS if full else SECONDS)
    if full:
        yield from _at_each_capacity(1.0, FULL_SECONDS)


def _at_each_capacity(retry_after: float | None, seconds: float) -> Iterator[tuple[str, str]]:
    with Provider(log_bodies=False, latency=LATENCY, retry_after=retry_after) as provider:
        load = os.getloadavg()[0]
        parts, late = asyncio.run(_measure(provider, CAPACITIES, seconds))
    answers, refusals = late
    named = f"Retry-After: {retry_after:g}" if retry_after else "no Retry-After"
    for part in parts:
        yield (
            f"capacity {part.capacity} for {part.seconds:.0f} s, {named}",
            f"{part.share:.2f} of ideal ({part.share_of_real:.2f} at the server's real latency "
            f"of {part.latency:.3f} s), {part.refusals} refused of {part.answers}",
        )
    yield (
        f"refused after the first {WARM_UP * seconds:.0f} s, for each answer, {named}",
        f"{refusals / answers:.2%} ({refusals} of {answers}; load {load:.1f})",
    )


async def _measure(
    provider: Provider, capacities: Sequence[int], seconds: float
) -> tuple[list[Part], tuple[int, int]]:
    sampler = api_sampler({"verifier": ApiModel((Endpoint(provider.url, "none"),))})
    places, over = count(), asyncio.Event()

    async def work() -> None:
        while not over.is_set():
            (await sampler(make_request(next(places)))).unwrap()

    began, marks = time.time(), []
    tasks: list[asyncio.Task[None]] = []
    for capacity in capacities:
        await asyncio.to_thread(provider.configure, in_flight_limit=capacity)
        marks.append(time.time())
        tasks = tasks or [asyncio.create_task(work()) for _ in range(WORKERS)]
        await asyncio.sleep(seconds)
    marks.append(time.time())
    over.set()
    await asyncio.gather(*tasks)
    log = [(entry["at"] + entry["seconds"], entry) for entry in provider.log()]
    parts = [
        _part(capacity, end - start, [entry for at, entry in log if start <= at < end])
        for capacity, start, end in zip(capacities, marks[:-1], marks[1:], strict=True)
    ]
    late = [entry["status"] for at, entry in log if began + WARM_UP * seconds <= at < marks[-1]]
    return parts, (late.count(200), late.count(429))


def _part(capacity: int, seconds: float, entries: list[dict[str, Any]]) -> Part:
    answered = [entry["seconds"] for entry in entries if entry["status"] == 200]
    refusals = sum(entry["status"] == 429 for entry in entries)
    latency = sum(answered) / max(1, len(answered))
    return Part(capacity, seconds, len(answered), refusals, latency)
