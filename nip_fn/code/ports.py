"""The port through which untrusted code is run."""

from typing import Protocol

from nip_fn.code.programs import Limits, Program, RunResult
from nip_fn.errors import Eventual


class Sandbox(Protocol):
    """Runs code that nobody trusts."""

    @property
    def name(self) -> str:
        """What it isolates by, for people to read."""
        ...

    def __call__(self, program: Program, limits: Limits) -> Eventual[tuple[RunResult, ...]]:
        """How each of the program's inputs ended, in their order; or why nothing could be run."""
        ...
