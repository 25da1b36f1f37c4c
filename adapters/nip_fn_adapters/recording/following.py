"""A run that is followed while it goes on: its recording, derived as far as it is written."""

from pathlib import Path
from threading import Lock
from time import monotonic
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.run import checkpoint
from nip_fn.run.checkpoint import Recording
from nip_fn.run.replay import NOTHING, replay
from nip_fn_adapters.costs.prices import Prices
from nip_fn_adapters.recording.reports import ReportedRun, report_page, subject
from nip_fn_adapters.recording.runs import derive, start_of

# A page is made anew after as many times the time that it takes: the run needs the processor, too.
LEISURE = 10


class Followed(NamedTuple):
    """A recording up to the last event that was read.

    subject: the run, derived so far.
    size: the bytes of whole events.
    """

    subject: ReportedRun
    size: int


def follow(path: Path, followed: Followed | None = None) -> Result[Followed, Problem]:
    """The run at `path` as it is now; only events after those of `followed` are derived."""
    try:
        with path.open("rb") as file:
            begun = followed is not None and followed.subject.replayed.num_events
            if followed is None or not begun or path.stat().st_size < followed.size:
                followed = Followed(subject(path.parent, NOTHING, None), 0)
            file.seek(followed.size)
            data = file.read()
    except OSError as error:
        return Failure(Problem(error.strerror or str(error), str(path), kind="system"))
    # Events that follow others lack the file's header, which says how all of them are written.
    head = checkpoint.header() if followed.size else b""
    before = followed.subject
    recording: Result[Recording, Problem] = checkpoint.read(head + data).alt(
        lambda problem: problem.at(str(path))
    )

    def derived(read: Recording) -> Result[Followed, Problem]:
        if followed.size:
            now = replay(read.events, before.replayed).map(
                lambda now: before._replace(replayed=now)
            )
        else:
            now = derive(read).map(lambda now: subject(path.parent, now, start_of(read)))
        return now.map(lambda now: Followed(now, followed.size + read.size - len(head)))

    return recording.bind(derived)


class Live:
    """The report of a run under way, as pages that are made when somebody asks for them."""

    def __init__(self, path: Path, prices: Prices, followed: Followed) -> None:
        """Follow the recording at `path` from where `followed` ends."""
        self._path, self._prices, self._followed = path, prices, followed
        self._lock, self._rest = Lock(), 0.0  # the time before which nothing is made anew
        self._make()

    def events(self) -> str:
        """A version of the page, which changes as soon as there is a newer page."""
        with self._lock:
            self._renew()
            return self._word

    def page(self) -> str:
        """The page."""
        with self._lock:
            self._renew()
            return self._page

    def _renew(self) -> None:
        if monotonic() < self._rest:
            return
        match follow(self._path, self._followed):
            case Success(now) if now.size != self._followed.size:
                self._followed = now
                self._make()
            case Failure(_):
                # The recording is damaged or gone: what was seen of it stays, and so does this
                # server, since the run may be resumed.
                self._rest = monotonic() + LEISURE

    def _make(self) -> None:
        began = monotonic()
        self._word = str(self._followed.subject.replayed.num_events)
        self._page = report_page([self._followed.subject], self._prices, live=self._word)
        self._rest = monotonic() + LEISURE * (monotonic() - began)
