"""The watching of an experiment while it goes on: lines, displays, and a way to stop it."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

from nip_fn.run.events import Event
from nip_fn.run.ports import Progress
from nip_fn.run.state import RunState

Tell = Callable[[str], None]  # takes a line for people
# Those of the cells that were begun, by name; None of one that runs or is queued.
ExitCodes = Mapping[str, int | None]


class RunDisplay(Protocol):
    """The display of one run."""

    def __call__(self, state: RunState, event: Event) -> None:
        """Show an event; `state` is the one after it."""

    def follow(self, job: str, progress: Progress) -> None:
        """Show the progress of a training."""


class _NoDisplay:
    """A display that shows nothing."""

    def __call__(self, state: RunState, event: Event) -> None:
        """Show nothing."""

    def follow(self, job: str, progress: Progress) -> None:
        """Show nothing."""


def tell_nobody(line: str) -> None:
    """Drop a line."""


def no_display(
    state: RunState, spent: Callable[[], str], folder: Path
) -> AbstractContextManager[RunDisplay]:
    """A display that shows nothing."""
    return nullcontext(_NoDisplay())


def no_board(
    folders: Sequence[Path], finished: Collection[str]
) -> AbstractContextManager[Callable[[ExitCodes], object]]:
    """A display of a study that shows nothing."""
    return nullcontext(lambda codes: None)


@contextmanager
def never_stopped(grace: float) -> Iterator[asyncio.Event]:
    """An event that nobody sets."""
    yield asyncio.Event()


class Watch(NamedTuple):
    """Whoever watches an experiment: nobody, unless they say so.

    tell: takes lines for people: warnings, what was left out of the data, why a run waits.
    under_way: (what is done) -> a context in which it is shown to be under way.
    display: (state, the cost so far in words, folder) -> the display of a run while it goes on.
    board: (the folders of the cells of a study, the names of those that were done before) -> the
      display of the study while it goes on, which is called twice a second.
    stopping: (seconds) -> a context, entered in the run's event loop, with an event that stops the
        run once it is set; replies under way are waited for at most that many seconds.
    """

    tell: Tell = tell_nobody
    under_way: Callable[[str], AbstractContextManager[object]] = nullcontext
    display: Callable[[RunState, Callable[[], str], Path], AbstractContextManager[RunDisplay]] = (
        no_display
    )
    board: Callable[
        [Sequence[Path], Collection[str]], AbstractContextManager[Callable[[ExitCodes], object]]
    ] = no_board
    stopping: Callable[[float], AbstractContextManager[asyncio.Event]] = never_stopped

    def telling(self, tell: Tell | None) -> "Watch":
        """The same, with lines given to `tell` if it is not None."""
        return self if tell is None else self._replace(tell=tell)

    def warn(self, problem: object) -> None:
        """Tell a warning."""
        self.tell(f"nip-fn: warning: {problem}")

    def once(self) -> "Watch":
        """The same, but each line is told only once, as where a hundred runs are planned."""
        lines: set[str] = set()

        def tell(line: str) -> None:
            if line not in lines:
                lines.add(line)
                self.tell(line)

        return self._replace(tell=tell)


NOBODY = Watch()
