"""Admission of requests to servers, at the pace that each bears, in the order of their arrival.

Of several servers, a request goes to the one that its prefix is assigned to, by a hash: only there
is the prefix in the cache.  One that is much busier than another loses it to the least busy.
"""

import asyncio
import heapq
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from math import inf
from typing import NamedTuple

from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.pace import Bounds, Consumed, Pace, make_pace, sent, wait

Servers = tuple[Endpoint, ...]

# By so many requests in flight, the server of a prefix may be busier than the others: a prefix that
# is computed again costs less than waiting behind more.
LEAD = 16
SHORTEST_TIMER = 0.001  # seconds; the event loop's own resolution


class Permit(NamedTuple):
    """The right to send one request to a server."""

    server: Endpoint
    consumed: Consumed  # at the server, with this request


class _Waiting(NamedTuple):
    ticket: int
    permit: "asyncio.Future[Permit]"
    tokens: float
    home: Endpoint  # the server that has its prefix


class _Load:
    """The pace of a server and the number of requests that it is working on."""

    def __init__(self, bounds: Bounds) -> None:
        self.pace, self.in_flight = make_pace(bounds), 0


class AdmissionQueue:
    """The queue of all requests of a run, so that agents at one server share its limit."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float], speed: float = 1.0) -> None:
        """Start with no server known; `clock` runs at `speed` seconds per second."""
        self._bounds, self._clock, self._speed = bounds, clock, speed
        self._loads: dict[Endpoint, _Load] = {}
        # A queue for each set of servers: a request that only a busy server can answer must not
        # hold up the requests to others.
        self._queues: dict[Servers, list[_Waiting]] = {}
        self._tickets = count()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def ticket(self) -> int:
        """The next place in the queue; a request keeps its own when it is retried.

        So an early request that fails is not overtaken by the thousands behind it.
        """
        return next(self._tickets)

    async def acquire(
        self, servers: Servers, ticket: int, tokens: float, prefix: str = ""
    ) -> Permit:
        """A permit for one of the servers; `release` must follow.

        Args:
            servers: Those that can answer.
            ticket: The request's place in the queue.
            tokens: A bound of what the request may cost.
            prefix: The name of what its prompt begins with, and that of others does, too.
        """
        future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(servers, [])
        heapq.heappush(queue, _Waiting(ticket, future, tokens, home_of(servers, prefix)))
        if self._closed:
            future.cancel()
        self._admit()
        try:
            return await future
        except asyncio.CancelledError:
            # The permit came in the moment in which its request was cancelled: nobody else knows of
            # it, and the server would have one place less for the rest of the run.
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise

    def paces(self, servers: Servers) -> tuple[Pace, ...]:
        """The pace of each of the servers."""
        return tuple(self._load(server).pace for server in servers)

    def update_pace(self, permit: Permit, change: Callable[[Pace, int], Pace]) -> None:
        """Change the pace of the permit's server; `change` is given it and the other requests."""
        load = self._loads[permit.server]
        load.pace = change(load.pace, load.in_flight - 1)

    def release(self, permit: Permit) -> None:
        """Give a permit back."""
        self._loads[permit.server].in_flight -= 1
        self._admit()

    @property
    def num_waiting(self) -> int:
        """The number of requests without a permit."""
        return sum(
            not waiting.permit.done() for queue in self._queues.values() for waiting in queue
        )

    def close(self) -> None:
        """Give no more permits: cancel all requests that wait for one, now or later."""
        self._closed = True
        for queue in self._queues.values():
            for waiting in queue:
                waiting.permit.cancel()
            queue.clear()

    def _admit(self) -> None:
        """Give permits, first come first served, as long as servers have room."""
        now = self._clock()
        # Begun anew after each permit, since several queues may share a server whose load has
        # changed.  Only the head of a queue is looked at: a large request that waits for its quota
        # must not be overtaken by small ones for ever.
        while True:
            soonest, heads = inf, []
            for servers, queue in self._queues.items():
                while queue and queue[0].permit.done():  # its request was cancelled
                    heapq.heappop(queue)
                if queue:
                    seconds, server = self._choice(servers, queue[0], now)
                    soonest = min(soonest, seconds)
                    if seconds <= 0:
                        heads.append((queue[0].ticket, servers, server))
            if not heads:
                break
            _, servers, server = min(heads, key=lambda head: head[0])
            self._give(heapq.heappop(self._queues[servers]), server)
        self._admit_again(soonest)

    def _give(self, waiting: _Waiting, server: Endpoint) -> None:
        load = self._loads[server]
        load.in_flight += 1
        load.pace = sent(load.pace, waiting.tokens)
        waiting.permit.set_result(Permit(server, load.pace.consumed))

    def _choice(self, servers: Servers, waiting: _Waiting, now: float) -> tuple[float, Endpoint]:
        """The server of the prefix, or the least busy of those that have room, and 0 seconds.

        If none has room: the server that has it first, and the seconds until then.
        """
        best = (inf, inf, inf, servers[0])
        for server in servers:
            load = self._load(server)
            seconds = wait(load.pace, load.in_flight, waiting.tokens, now)
            busy = load.in_flight - (LEAD if server == waiting.home else 0)
            # Of equally busy servers the one that was sent the least: otherwise the first would get
            # every request of a run that is never busy.
            rank = (seconds, busy, load.pace.consumed.requests, server)
            best = min(best, rank, key=lambda ranked: ranked[:3])
        return best[0], best[3]

    def _load(self, server: Endpoint) -> _Load:
        if server not in self._loads:
            self._loads[server] = _Load(self._bounds)
        return self._loads[server]

    def _admit_again(self, seconds: float) -> None:
        # A quota refills without any event, so only a timer can notice that there is room again.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds < inf:
            loop = asyncio.get_running_loop()
            delay = max(seconds / self._speed, SHORTEST_TIMER)
            self._timer = loop.call_later(delay, self._admit)


def home_of(servers: Servers, prefix: str) -> Endpoint:
    """The server that a prefix is assigned to; each has as many prefixes as any other."""
    digest = blake2b(prefix.encode(), digest_size=8).digest()
    return servers[int.from_bytes(digest) % len(servers)]
