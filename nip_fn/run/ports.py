"""Ports: the interfaces through which the pure core reaches the world."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
from returns.result import Failure, Result

from nip_fn.errors import Eventual, Problem
from nip_fn.game.datapoint import Datapoint, Split
from nip_fn.game.reply import Completion
from nip_fn.run.events import Publish
from nip_fn.run.request import Request
from nip_fn.run.state import StageMetrics
from nip_fn.training.canary import FLOAT32, Score
from nip_fn.training.tuning import Job


class Progress(msgspec.Struct, frozen=True):
    """The progress of a training."""

    step: int
    steps: int
    loss: float | None = None  # of the last step; None before the first, or if it is not finite
    seconds_left: float | None = None  # None before there is anything to go by


# Some providers are asked for siblings one by one.  If the whole request failed with the last of
# them, those that arrived would be lost, and paid for again.
class Unanswered(NamedTuple):
    """A missing completion among others that arrived.

    problem: the reason; "" if the request was never sent.
    """

    problem: str = ""


class Sampler(Protocol):
    """Samples replies."""

    def __call__(self, request: Request) -> Eventual[tuple[Completion | Unanswered, ...]]:
        """One completion for each of the request's keys, in their order, or the problem.

        If only some arrived they are returned beside `Unanswered`: they may have been paid for.
        `Completion.model` names the model that really answered: the adapter, or the base model.
        """
        ...


# A training that diverges is a result, to be recorded.  A `FailedTraining` in its place means that
# there is none, and any other `Problem` that nothing is known of it yet: it can be looked up later.
class Tuned(NamedTuple):
    """The result of a training.

    adapter: its name, GROUP-ITERATION-HASH of the weights; None if the training came to nothing.
    report: (name, value) pairs such as the loss.
    scores: of the job's probes; () if the trainer cannot score replies.
    problem: the reason why there is no adapter: the loss diverged, or the like.
    """

    adapter: str | None
    report: tuple[tuple[str, float], ...]
    scores: tuple[Score, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class FailedTraining(Problem):
    """A training that ended without a result: it was killed, or refused by its provider.

    The next call of the tuner trains it anew.
    """


Follow = Callable[[str, Progress], None]  # (name of a job, its progress)


class Tuner(Protocol):
    """Trains adapters."""

    def __call__(self, job: Job) -> Eventual[Tuned]:
        """The job's adapter; a job that an earlier call finished is looked up, not repeated."""
        ...


class Served(NamedTuple):
    """The result of publishing an adapter.

    scores: log-probabilities of the probes' tokens under the model that answers now.
    dtype: the numbers of that model: torch's name, or that of a quantization.
    problem: the reason why the adapter is refused (it is poisoned, or the like); "" if served.
    """

    scores: tuple[float, ...] = ()
    dtype: str = FLOAT32
    problem: str = ""


class CheckResult(NamedTuple):
    """The result of a check.

    label: 1 if it is right, 0 if it is wrong; None if that cannot be said, ever.
    problem: the reason why there is no label.
    """

    label: int | None
    problem: str = ""


class AnswerChecker(Protocol):
    """Checks answers."""

    def __call__(self, datapoint: Datapoint, answer: str) -> Eventual[CheckResult]:
        """The label of the answer, or the problem if it may be had at another time."""
        ...


async def no_checker(datapoint: Datapoint, answer: str) -> Result[CheckResult, Problem]:
    """An `AnswerChecker` for games in which nobody writes an answer."""
    return Failure(Problem("no checker says if the answer is right", "dataset_options.checker"))


class Publisher(Protocol):
    """Makes an adapter answer."""

    def __call__(self, effect: Publish) -> Eventual[Served]:
        """Success once the adapter answers the requests that name it, or is refused for good.

        A failure means that neither is known.  The effect's probes are scored, unless the provider
        cannot score replies.
        """
        ...


class Source(Protocol):
    """Holds the data."""

    def __call__(self, split: Split, indices: Sequence[int]) -> tuple[Datapoint, ...]:
        """The datapoints at these places of a split."""
        ...


class Store(Protocol):
    """Keeps the recording."""

    def append(self, frames: bytes) -> None:
        """Add whole frames at the end; raises `OSError` if they cannot be written."""
        ...

    # Apart from `append`, because it costs far more: the interpreter appends every event and syncs
    # before anything that is paid for.
    def sync(self) -> None:
        """Return once all that was appended would survive a power cut."""
        ...


class Tracker(Protocol):
    """Shows or keeps metrics."""

    def __call__(self, row: StageMetrics, seconds: float) -> None:
        """Take note of the metrics of a stage."""
        ...


def nothing_to_drain() -> None:
    """A `drain` that does nothing, for samplers that never queue."""


# One value for all of them, so that a command or a test replaces the part it is about and leaves
# the others.
class World(NamedTuple):
    """All adapters of a run."""

    sampler: Sampler
    tuner: Tuner
    publisher: Publisher
    source: Source
    store: Store
    tracker: Tracker
    # Called when a run is stopped: requests under way may end, queued ones are cancelled.  Money
    # that is already being spent should still buy a recorded reply.
    drain: Callable[[], None] = nothing_to_drain
    checker: AnswerChecker = no_checker
