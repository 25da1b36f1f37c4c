"""What goes wrong: a subset of kinds for each seed, each at a rate of its own."""

from collections import Counter
from collections.abc import Callable, Collection
from random import Random

# The probability at each occasion: a write, a request, a session, a training, ...
RATES = {
    # of the disk and of processes
    "torn write": 0.003,  # the process dies within it
    "no space": 0.003,
    "input/output error": 0.02,
    "death at a write": 0.01,
    "kill": 0.5,
    "power cut": 0.5,
    "stop": 0.3,
    "second session": 0.3,
    "clock set": 0.3,
    # of the network
    "unreachable": 0.01,
    "lost request": 0.01,
    "lost answer": 0.03,
    "broken answer": 0.01,
    "late answer": 0.01,
    "doubled request": 0.03,
    "redirection": 0.002,
    # of the provider
    "outage": 0.2,
    "overload": 0.2,
    "rate limit": 0.02,
    "gateway": 0.02,
    "lasting refusal": 0.002,
    "deviant answer": 0.06,
    "failed job": 0.35,
    "cancelled job": 0.05,
    "vanished job": 0.05,
    "failed batch": 0.05,
    "expired batch": 0.1,
    "vanished batch": 0.03,
    "failed row": 0.03,
    "late list": 0.3,
    # of the language-model server
    "server death": 0.3,
    "server power cut": 0.2,
    "server replaced": 0.05,
    "vLLM crash": 0.3,
    "vLLM hang": 0.1,
    "adapter lost": 0.01,
    "failed training": 0.4,
}
SHARE = 0.4  # of the kinds are possible under one seed


class Faults:
    """The faults of one schedule."""

    def __init__(
        self, seed: int, reach: Callable[[str], None], only: Collection[str] | None = None
    ) -> None:
        """Draw them; `only` leaves all other kinds out, and changes nothing about these."""
        swarm = self._stream(seed, "swarm")
        drawn = {kind for kind in RATES if swarm.random() < SHARE}
        self.kinds = drawn if only is None else drawn & set(only)
        self.random, self.count = self._stream(seed, "world"), Counter[str]()
        self.are_on = False
        self._factor = 10 ** swarm.uniform(-0.7, 0.5)
        # A stream for each kind, so that a schedule can be shrunk kind by kind.
        self._streams = {kind: self._stream(seed, kind) for kind in self.kinds}
        self._reach = reach

    @staticmethod
    def _stream(seed: int, name: str) -> Random:
        return Random(f"{seed} {name}")

    def hits(self, kind: str, times: float = 1.0) -> bool:
        """True if a fault of that kind happens now."""
        if not (self.are_on and kind in self.kinds):
            return False
        rate = RATES[kind] * times * (self._factor if RATES[kind] < 0.1 else 1.0)
        if self._streams[kind].random() >= rate:
            return False
        self.count[kind] += 1
        return True
