"""The port through which untrusted code is run."""

from typing import Protocol

from nip_fn.code.programs import Limits, Program, RunResult
from nip_fn.errors import Eventual


class Sandbox(Protocol):
    """Runs code that nobody trusts."""

    @property
    def name(self) -> str:
        """The means of isolation, for people to read."""
        ...

    def __call__(self, program: Program, limits: Limits) -> Eventual[tuple[RunResult, ...]]:
        """The results of the program on each of its inputs, in order; or why nothing was run."""
        ...
