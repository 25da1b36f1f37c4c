"""The two clocks of adapters that wait: a simulated world sets both, and nothing else reads time.

Pauses and limits are the event loop's, so durations are measured by its clock, too.
"""

import asyncio
import time


def monotonic() -> float:
    """Seconds on the clock of the event loop that runs; raises `RuntimeError` if none does."""
    return asyncio.get_running_loop().time()


def wall() -> float:
    """Seconds since 1970, on a clock that may be set at any time."""
    return time.time()
