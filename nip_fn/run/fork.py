"""Forks: a run that selects and trains by other parameters from the replies of a recorded one.

A run is a scan over recorded events, and so a fork is a recording that begins like another one:

    the other run up to an iteration | Forked | its datapoints and replies | whatever comes of them

It needs the other run no more, is resumed and replayed like any run, and derives the digests of
what it took over as well as its own.  A fork that changes nothing derives those of the other run.
"""

from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import BatchFetched, Event, Forked, RunStarted, StageEnded


class ForkPoint(NamedTuple):
    """An iteration of a recording that was sampled to its end.

    iteration: counted from 0.
    params: of the run, in that iteration.
    before: the events up to it.
    sampled: its datapoints and replies.
    digest: of the state after them.
    """

    iteration: int
    params: HyperParameters
    before: tuple[Event, ...]
    sampled: tuple[Event, ...]
    digest: str

    def fork(
        self,
        params: HyperParameters,
        *,
        run: str,
        version: str,
        sources: tuple[tuple[str, str], ...] = (),
    ) -> tuple[Event, ...]:
        """The events that a fork begins with, up to the last reply.

        Args:
            params: Of the fork; `step` refuses changes that the recorded replies depend on.
            run: The name of the recorded run.
            version: Of nip-fn.
            sources: (reference, hash of its source) of the values of one's own in `params`.
        """
        forked = Forked(params, run, self.digest, version, sources)
        return (*self.before, forked, *self.sampled)


def fork_point(
    events: tuple[Event, ...], iteration: int | None = None
) -> Result[ForkPoint, Problem]:
    """The iteration of a recording, or the last one that was sampled to its end."""
    ends = {
        event.iteration: (position, event.digest)
        for position, event in enumerate(events)
        if isinstance(event, StageEnded) and event.stage == "sample"
    }
    forked = max(ends, default=None) if iteration is None else iteration
    if forked is None or forked not in ends:
        missing = "no iteration has" if forked is None else f"iteration {forked} has not"
        choices = ", ".join(map(str, sorted(ends)))
        return Failure(
            Problem(
                f"{missing} been sampled to its end",
                remedy=f"choose from: {choices}" if choices else "resume the run first",
            )
        )
    end, digest = ends[forked]
    begin = max(
        (index for index in range(end) if isinstance(events[index], BatchFetched)), default=0
    )
    before, sampled = events[:begin], events[begin:end]
    begun = (event.params for event in reversed(before) if isinstance(event, RunStarted | Forked))
    return Success(ForkPoint(forked, next(begun, HyperParameters()), before, sampled, digest))
