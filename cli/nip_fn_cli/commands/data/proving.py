"""The running of tests that prove or disprove a solution: its options, its sandbox, its limits."""

from os import cpu_count
from typing import Annotated, NamedTuple

import typer

from nip_fn.code.ports import Sandbox
from nip_fn.code.programs import Limits
from nip_fn_cli.shown.exits import or_exit, say

JobsOption = Annotated[
    int | None,
    typer.Option(
        help="The number of programs to run at a time; one per processor by default.",
        min=1,
        max=1024,
    ),
]
UnsafeOption = Annotated[
    bool, typer.Option("--unsafe", help="Run code even if nothing isolates it.")
]
SecondsOption = Annotated[
    float,
    typer.Option(help="The processor time that each test may take.", min=0.1, metavar="SECONDS"),
]


class Proving(NamedTuple):
    """Options of running tests."""

    jobs: int | None  # at a time; None: one a processor
    unsafe: bool
    seconds: float  # that each test may take

    @property
    def at_a_time(self) -> int:
        """The number of programs that run at a time."""
        return self.jobs or cpu_count() or 1

    @property
    def limits(self) -> Limits:
        """The limits of each program."""
        return Limits(seconds=self.seconds)


def sandbox_or_die(proving: Proving) -> Sandbox:
    """A sandbox; print its name."""
    from nip_fn_adapters.sandbox import open_sandbox

    opened = open_sandbox(unsafe=proving.unsafe)
    sandbox = or_exit(opened)
    say(f"sandbox: {sandbox.name}")
    return sandbox
