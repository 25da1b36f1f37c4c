"""Games at a provider of fixed latency: the time of a run over that of its critical path.

The fake provider is a process of its own on this machine, and replies to each request after just so
long.  In a forest every reply waits for those above it, so no run is faster than its critical path:
depth times latency.  What a run takes longer is processor time, of the run or of the provider.

    python -m tests.benchmarks.bench_latency           what `make bench` shows, in half a minute
    python -m tests.benchmarks.bench_latency --full    three repetitions of each, and their minimum
"""

import sys
from typing import NamedTuple

from nip_fn_cli.recordings import rare_collections
from tests.benchmarks.bench_api import Forest, Played, play
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


def run(repeats: int = 1) -> list[tuple[str, str]]:
    """Name and figure of each measurement."""
    with rare_collections(), Provider(log_bodies=False) as provider:
        play(provider, Forest(4, 2, 3))  # import what is needed, warm up
        return [_measure(provider, case, repeats) for case in CASES]


def _measure(provider: Provider, case: Case, repeats: int) -> tuple[str, str]:
    provider.configure(latency=case.latency)
    # The least disturbed: other programs can only make a run slower.
    best = min((play(provider, case.forest) for _ in range(repeats)), key=lambda one: one.wall)
    each = best.cpu / best.requests
    return (
        f"{case.forest}, {case.latency * 1e3:,.0f} ms a reply: {best.requests:,} requests",
        f"{_ratio(best, case):.2f} x the critical path of {best.depth} replies (aim {case.aim:g}); "
        f"{each * 1e6:.0f} µs of this process a request",
    )


def _ratio(played: Played, case: Case) -> float:
    return played.wall / (played.depth * case.latency)


if __name__ == "__main__":
    for name, figure in run(3 if "--full" in sys.argv else 1):
        print(f"{name}\n    {figure}", flush=True)
