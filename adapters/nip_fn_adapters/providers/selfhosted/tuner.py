"""Training at a language-model server: each job is put there once, however often it is asked for.

A job's id holds the identity of the run, so a run that is resumed finds its own jobs.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, collect
from nip_fn.run.ports import FailedTraining, Follow, Tuned, Tuner
from nip_fn.training.tuning import Job
from nip_fn_adapters import clock
from nip_fn_adapters.providers.selfhosted.host import Host, safe_name
from nip_fn_adapters.results import bind_async
from nip_fn_adapters.serving.wire import ENDED, JobInfo, Refusal


def hosted_tuner(
    groups: Mapping[str, Host], *, follow: Follow = lambda job, progress: None
) -> Tuner:
    """A tuner for groups (by name) whose models are at language-model servers.

    A job that diverges or is cancelled is an answer.  One that fails is a `FailedTraining`, and the
    next call puts it there again; one that is gone or does not end in time is a failure, as is a
    server out of reach.  If the caller is cancelled, the server trains on.
    """

    async def tune(job: Job) -> Result[Tuned, Problem]:
        remote = _RemoteJob(groups[job.group], job, follow)
        return await bind_async(await remote.ensure(), remote.wait)

    return tune


async def cancel_jobs(
    groups: Mapping[str, Host], jobs: Iterable[Job]
) -> Result[list[str], Problem]:
    """Cancel jobs; the ids of those that were under way at their servers.

    The run can be resumed without what they would have trained.
    """
    answers = [await _RemoteJob(groups[job.group], job).cancel() for job in jobs]
    return collect(answers).map(lambda ids: [job_id for job_id in ids if job_id])


class _RemoteJob(NamedTuple):
    """A job, and the server that trains it."""

    host: Host
    job: Job
    follow: Follow = lambda job, progress: None

    @property
    def id(self) -> str:
        """The job's name at the server."""
        return self.host.name(self.job.name)

    @property
    def name(self) -> str:
        """The job's name in messages."""
        return f"training {self.job.name} at {self.host.client.server.url}, job {self.id}"

    async def ensure(self) -> Result[JobInfo, Problem]:
        """The job, put there unless it is there already, after the adapters that it needs."""
        adapters = {name for name in (self.job.start, self.job.reference) if name is not None}

        async def send(_: None) -> Result[None, Problem]:
            return await self.host.send(tuple(sorted(adapters))) if adapters else Success(None)

        async def put(_: None) -> Result[JobInfo, Problem]:
            return await self._call("put", replace(self.job, name=safe_name(self.job.name)))

        return await bind_async(await bind_async(await self.host.reached(), send), put)

    async def wait(self, info: JobInfo) -> Result[Tuned, Problem]:
        """The job's result, once it has ended."""
        queue = f", {info.place} before it" if info.place else ""
        self.host.client.tell(f"{self.name}: {info.status}{queue}")
        try:
            return await bind_async(await self._poll(info), self._bring_home)
        except asyncio.CancelledError:
            self.host.client.tell(f"{self.name} is still trained there; resuming the run finds it")
            raise

    async def _bring_home(self, tuned: Tuned) -> Result[Tuned, Problem]:
        """The result, once its adapter is in the run's folder."""
        if tuned.adapter is None:
            return Success(tuned)
        return (await self.host.fetch(tuned.adapter)).map(lambda nothing: tuned)

    async def _poll(self, info: JobInfo) -> Result[Tuned, Problem]:
        timeouts, began = self.host.client.timeouts, clock.monotonic()
        # Not by recursion through `bind_async`: a training of a day is looked at 17,000 times.
        while self._is_under_way(info):
            waited = clock.monotonic() - began
            seconds_left = timeouts.limit - waited
            if seconds_left <= 0:
                message = f"{self.name}, is still {info.status} after {waited:.0f} s"
                cancel = f"nip_fn_adapters.cancel({str(self.host.run)!r})"
                remedy = f"resume the run to wait again, or end it in Python: {cancel}"
                return Failure(Problem(message, remedy=remedy))
            await asyncio.sleep(min(0.5 + waited / 20, timeouts.poll, seconds_left))
            looked = await self._call("get")
            if not is_successful(looked):
                return looked.bind(self._tuned)
            info = looked.unwrap()
        return self._tuned(info)

    def _is_under_way(self, info: JobInfo) -> bool:
        """True if the job has not ended; its progress is passed on."""
        if info.progress is not None:
            self.follow(self.job.name, info.progress)
        return info.status not in ENDED

    def _tuned(self, info: JobInfo) -> Result[Tuned, Problem]:
        """The result of a job that has ended."""
        if info.status == "succeeded":
            return Success(Tuned(info.adapter, info.report, info.scores, info.problem))
        message = f"the job {info.id} {info.status}: {info.reason or 'the server gives no reason'}"
        if info.status == "cancelled":  # by a user, who would not want it again
            return Success(Tuned(None, info.report, problem=message))
        log = f"{self.host.client.server.url}/training/jobs/{info.id}/log"
        return Failure(FailedTraining(message, f"training {self.job.name}", f"see {log}"))

    async def cancel(self) -> Result[str, Problem]:
        """Cancel the job; its id, or "" if it was not under way."""

        async def delete(_: None) -> Result[str, Problem]:
            call, path = self.host.client.call, f"/training/jobs/{self.id}"
            answer = await call(f"cancelling {self.job.name}", "delete", path, object)
            return answer.map(lambda body: self.id).lash(_not_under_way)

        return await bind_async(await self.host.reached(), delete)

    async def _call(self, method: str, body: Job | None = None) -> Result[JobInfo, Problem]:
        path, purpose = f"/training/jobs/{self.id}", f"training {self.job.name}"
        return await self.host.client.call(purpose, method, path, JobInfo, body=body)


def _not_under_way(problem: Problem) -> Result[str, Problem]:
    """Nothing to cancel, if it is the server that says so: the job has ended, or never was."""
    return Success("") if isinstance(problem, Refusal) else Failure(problem)
