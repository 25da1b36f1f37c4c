"""Training at a language-model server: each job is put there once, however often it is asked for.

A job's id holds the identity of the run, so a run that goes on finds its own.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.run.ports import Follow, Tuned, Tuner
from nip_fn.training.jobs import Job
from nip_fn_adapters.selfhosted.client import Trouble
from nip_fn_adapters.selfhosted.host import Host, safe_name
from nip_fn_adapters.serving.wire import ENDED, JobInfo


def hosted_tuner(
    groups: Mapping[str, Host], *, follow: Follow = lambda job, progress: None
) -> Tuner:
    """A tuner for groups (by name) whose models are at language-model servers.

    A job that the server ends without an adapter is an answer; one that is gone, or does not end in
    time, is a failure, as is a server out of reach.  A job that is under way when the caller is
    cancelled goes on there.
    """

    async def tune(job: Job) -> Result[Tuned, str]:
        desk = _Desk(groups[job.group], job, follow)
        asked = await desk.ensure()
        if isinstance(asked, Failure):
            return Failure(asked.failure())
        info: JobInfo = asked.unwrap()
        desk.host.client.tell(f"{desk.name}: {_said(info)}")
        try:
            return await desk.follow_up(info)
        except asyncio.CancelledError:
            desk.host.client.tell(f"{desk.name} goes on there; resuming the run finds it")
            raise

    return tune


async def cancel_jobs(groups: Mapping[str, Host], jobs: Iterable[Job]) -> Result[list[str], str]:
    """The ids of those of the jobs that were under way at their servers, and are cancelled now.

    Resuming the run goes on without what they would have trained.
    """
    cancelled = []
    for job in jobs:
        ended = await _Desk(groups[job.group], job).cancel()
        if isinstance(ended, Failure):
            return Failure(ended.failure())
        cancelled += [ended.unwrap()] if ended.unwrap() else []
    return Success(cancelled)


class _Desk(NamedTuple):
    """One job's dealings with its server."""

    host: Host
    job: Job
    follow: Follow = lambda job, progress: None

    @property
    def id(self) -> str:
        """The job's name at the server."""
        return self.host.name(self.job.name)

    @property
    def name(self) -> str:
        """The job, for people to read."""
        return f"training {self.job.name} at {self.host.client.server.url}, job {self.id}"

    async def ensure(self) -> Result[JobInfo, str]:
        """The job, put there only if it is not there already, with the adapters that it needs."""
        reached = await self.host.reached()
        if isinstance(reached, Failure):
            return Failure(reached.failure())
        adapters = {name for name in (self.job.start, self.job.reference) if name is not None}
        sent = await self.host.send(tuple(sorted(adapters))) if adapters else Success(None)
        if isinstance(sent, Failure):
            return Failure(sent.failure().line)
        body = replace(self.job, name=safe_name(self.job.name))
        return await self._call("put", body)

    async def follow_up(self, info: JobInfo) -> Result[Tuned, str]:
        """What the job comes to."""
        patience, began = self.host.client.patience, time.monotonic()
        while info.status not in ENDED:
            if info.progress is not None:
                self.follow(self.job.name, info.progress)
            waited = time.monotonic() - began
            left = patience.limit - waited
            if left <= 0:
                return Failure(
                    f"{self.name}, is still {info.status} after {waited:.0f} s; it goes on there: "
                    "resume the run to wait again, or cancel it (nip-fn cancel) to go on without it"
                )
            await asyncio.sleep(min(0.5 + waited / 20, patience.poll, left))
            looked = await self._call("get")
            if isinstance(looked, Failure):
                return Failure(looked.failure())
            info = looked.unwrap()
        if info.progress is not None:
            self.follow(self.job.name, info.progress)
        return Success(_tuned(self.job, info))

    async def cancel(self) -> Result[str, str]:
        """The job's id, if it was under way and is cancelled now, else nothing."""
        reached = await self.host.reached()
        if isinstance(reached, Failure):
            return Failure(reached.failure())
        call, path = self.host.client.call, f"/training/jobs/{self.id}"
        answer = await call(f"cancelling {self.job.name}", "delete", path, object)
        if not isinstance(answer, Failure):
            return Success(self.id)
        trouble: Trouble = answer.failure()  # refused: it has ended, or was never there
        return Success("") if trouble.refusal else Failure(trouble.line)

    async def _call(self, method: str, body: Job | None = None) -> Result[JobInfo, str]:
        path, purpose = f"/training/jobs/{self.id}", f"training {self.job.name}"
        answer = await self.host.client.call(purpose, method, path, JobInfo, body=body)
        return answer.alt(lambda trouble: trouble.line)


def _said(info: JobInfo) -> str:
    return f"{info.status}, {info.place} before it" if info.place else info.status


def _tuned(job: Job, info: JobInfo) -> Tuned:
    """What a job left that has ended."""
    if info.status != "succeeded":
        reason = info.reason or "the server gives no reason"
        return Tuned(None, info.report, problem=f"the job {info.id} {info.status}: {reason}")
    return Tuned(info.adapter, info.report, info.scores, info.problem)
