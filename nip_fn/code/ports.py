"""The port through which untrusted code is run."""

from collections.abc import Awaitable
from typing import Protocol

from returns.result import Result

from nip_fn.code.programs import Limits, Program, RunResult


class Sandbox(Protocol):
    """Runs code that nobody trusts."""

    @property
    def name(self) -> str:
        """What it isolates by, for people to read."""
        ...

    def __call__(
        self, program: Program, limits: Limits
    ) -> Awaitable[Result[tuple[RunResult, ...], str]]:
        """How each of the program's inputs ended, in their order; or why nothing could be run."""
        ...
