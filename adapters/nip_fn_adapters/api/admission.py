"""Admits requests to servers, each at the pace that it bears, in the order in which they came."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from math import inf
from typing import NamedTuple

from nip_fn_adapters.api.endpoints import Endpoint
from nip_fn_adapters.api.pace import Bounds, Pace, Spent, make_pace, sent, wait

Servers = tuple[Endpoint, ...]

SOON = 0.001  # seconds; no timer is set for less


class Turn(NamedTuple):
    """The right to send one request to a server."""

    server: Endpoint
    spent: Spent  # in all, with this request


class _Waiting(NamedTuple):
    order: int
    turn: "asyncio.Future[Turn]"
    tokens: float


class _Door:
    def __init__(self, bounds: Bounds) -> None:
        self.pace, self.in_flight = make_pace(bounds), 0


class AdmissionQueue:
    """One for all requests of a run, so that agents at one server share its limit."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float], speed: float = 1.0) -> None:
        """Nothing is known of any server yet.  The clock runs at `speed` seconds in a second."""
        self._bounds, self._clock, self._speed = bounds, clock, speed
        self._doors: dict[Endpoint, _Door] = {}
        self._lines: dict[Servers, list[_Waiting]] = {}
        self._orders = count()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def order(self) -> int:
        """A place in the line, behind all that were given; a request keeps it when it retries."""
        return next(self._orders)

    async def enter(self, servers: Servers, order: int, tokens: float) -> Turn:
        """A turn at the least busy of the servers; `tokens` is what the request may cost."""
        future: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(servers, [])
        heapq.heappush(line, _Waiting(order, future, tokens))
        if self._closed:
            future.cancel()
        self._admit()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(future.result())
            raise

    def note(self, turn: Turn, change: Callable[[Pace, int], Pace]) -> None:
        """Change the pace of the turn's server; `change` is told what is in flight without it."""
        door = self._doors[turn.server]
        door.pace = change(door.pace, door.in_flight - 1)

    def leave(self, turn: Turn) -> None:
        """End a turn."""
        self._doors[turn.server].in_flight -= 1
        self._admit()

    @property
    def num_waiting(self) -> int:
        """Requests that have no turn yet."""
        return sum(not waiting.turn.done() for line in self._lines.values() for waiting in line)

    def close(self) -> None:
        """Give no more turns: cancel all that wait for one, now or later."""
        self._closed = True
        for line in self._lines.values():
            for waiting in line:
                waiting.turn.cancel()
            line.clear()

    def _admit(self) -> None:
        """Give turns, first come first served, as long as servers have room."""
        now = self._clock()
        while True:
            soonest, heads = inf, []
            for servers, line in self._lines.items():
                while line and line[0].turn.done():  # whoever waited is gone
                    heapq.heappop(line)
                if line:
                    seconds, server = self._least_busy(servers, line[0].tokens, now)
                    soonest = min(soonest, seconds)
                    if seconds <= 0:
                        heads.append((line[0].order, servers, server))
            if not heads:
                break
            _, servers, server = min(heads, key=lambda head: head[0])
            self._give(heapq.heappop(self._lines[servers]), server)
        self._look_again(soonest)

    def _give(self, waiting: _Waiting, server: Endpoint) -> None:
        door = self._doors[server]
        door.in_flight += 1
        door.pace = sent(door.pace, door.in_flight, waiting.tokens)
        waiting.turn.set_result(Turn(server, door.pace.spent))

    def _least_busy(self, servers: Servers, tokens: float, now: float) -> tuple[float, Endpoint]:
        """The server with the least in flight of those with room, else the one that has it soonest,
        and the seconds until then.
        """
        best = (inf, inf, inf, servers[0])
        for server in servers:
            door = self._doors.get(server) or self._doors.setdefault(server, _Door(self._bounds))
            seconds = wait(door.pace, door.in_flight, tokens, now)
            found = (seconds, door.in_flight, door.pace.spent.requests, server)
            best = min(best, found, key=lambda one: one[:3])
        return best[0], best[3]

    def _look_again(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds < inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(seconds / self._speed, SOON), self._admit)
