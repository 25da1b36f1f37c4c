"""The training jobs of a server, trained in the order in which they came, each once.

STATE/jobs/ID/ticket.json    a job's place and its end; written when the job is accepted
STATE/jobs/ID/...            the files of `local.jobs`; adapters are written to STATE/adapters

A job that was under way when the server died is pending again when the server is restarted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.run.ports import Tuned
from nip_fn.training.tuning import Job
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.providers.local.jobs import (
    JobFiles,
    failure_reason,
    finished,
    job_hash,
    read_job,
    write_job,
)
from nip_fn_adapters.providers.local.models import first_line, model_directory
from nip_fn_adapters.providers.local.progress import read_progress
from nip_fn_adapters.serving.wire import ENDED, HostedJobStatus, JobInfo, Refusal

TICKET = "ticket.json"
LAST_LINES = 20  # of a log, that are sent with a job
LOG_TAIL = 1 << 20  # bytes of a log that are sent

# Trains the job whose files are in a folder under an id; calls its last argument when the training
# begins, and returns the exit code.
TrainFunction = Callable[[Path, str, Callable[[], None]], Awaitable[int]]
logger = logging.getLogger(__name__)


class Ticket(msgspec.Struct, frozen=True):
    """A job in the queue."""

    id: str
    number: int  # jobs are trained in this order
    job_hash: str
    needs: tuple[str, ...]  # the adapters that it starts from or has as its reference
    status: HostedJobStatus = "pending"  # on disk, it is pending or has ended
    reason: str = ""  # why it failed or was cancelled
    tuned: Tuned | None = None  # its result, if it succeeded


class Queue:
    """The jobs; they are trained while `work` runs."""

    def __init__(
        self,
        state: Path,
        train: TrainFunction,
        around: Callable[[], AbstractAsyncContextManager[None]],
        parallel: int = 1,
    ) -> None:
        """Read the jobs.

        Args:
            state: The server's folder.
            train: Trains one job.
            around: The context of trainings; it is entered once for all jobs that wait.
            parallel: The most jobs that are trained at once.
        """
        self._state, self._train, self._around, self._parallel = state, train, around, parallel
        self._changed = asyncio.Event()  # a job came or ended
        self._tasks: dict[str, asyncio.Task[None]] = {}
        paths = state.glob(f"jobs/*/{TICKET}")
        tickets = [msgspec.json.decode(path.read_bytes(), type=Ticket) for path in paths]
        tickets.sort(key=lambda ticket: ticket.number)
        self._tickets = {ticket.id: ticket for ticket in tickets}

    def put(self, job_id: str, job: Job) -> Result[JobInfo, Refusal]:
        """Queue a job, unless this very job has been put before and has not failed.

        409 if the id is another job's, 422 if the job cannot be written down.
        """
        try:
            digest = job_hash(job)
        # msgpack holds no integer of more than 64 bits, while JSON does.
        except OverflowError:
            return Failure(Refusal(f"{job_id} has a number that no training can use"))
        queued = self._tickets.get(job_id)
        if queued is not None and queued.job_hash != digest:
            problem = f"there is another job {job_id}"
            return Failure(Refusal(problem, remedy="use a new id for this one", status=409))
        # A job fails where it is killed, say; whoever puts it again wants another try.
        if queued is None or queued.status == "failed":
            number = max((ticket.number for ticket in self._tickets.values()), default=0) + 1
            needs = tuple(name for name in (job.start, job.reference) if name is not None)
            # The ticket comes last: it is what a restarted server looks for, and must not name a
            # job that is not there.
            write_job(self._files(job_id), job)
            self._record(Ticket(job_id, number, digest, needs))
            logger.info("the training %s is queued, %d before it", job_id, self.info(job_id).place)
            self._changed.set()
        return Success(self.info(job_id))

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._tickets

    def needed(self) -> set[str]:
        """The adapters that jobs which have not ended start from or have as their reference."""
        return {name for ticket in self._open() for name in ticket.needs}

    def trained(self) -> set[str]:
        """The adapters that jobs have left."""
        tuned = (ticket.tuned for ticket in self._tickets.values())
        return {result.adapter for result in tuned if result and result.adapter}

    def infos(self) -> tuple[JobInfo, ...]:
        """All jobs, in their order, without their logs."""
        return tuple(self.info(job_id, lines=0) for job_id in self._tickets)

    def info(self, job_id: str, lines: int = LAST_LINES) -> JobInfo:
        """A job and the last lines of its log."""
        ticket = self._tickets[job_id]
        info = JobInfo(
            job_id,
            ticket.status,
            ticket.reason,
            log=tuple(self.log(job_id).splitlines()[-lines:]) if lines else (),
        )
        if ticket.status == "pending":
            return replace(
                info, place=sum(earlier.number < ticket.number for earlier in self._open())
            )
        info = replace(info, progress=read_progress(self._files(job_id)))
        return info if ticket.tuned is None else replace(info, **ticket.tuned._asdict())

    def log(self, job_id: str) -> str:
        """The end of the training's log; "" before it begins."""
        try:
            with self._files(job_id).log.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - LOG_TAIL))
                return file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    async def cancel(self, job_id: str) -> Result[None, Refusal]:
        """Cancel a job; once this returns, nothing of its training runs.  409 if it has ended."""
        ticket = self._tickets[job_id]
        if ticket.status in ENDED:
            problem = f"there is nothing to cancel: {job_id} is {ticket.status}"
            return Failure(Refusal(problem, status=409))
        # Recorded first: a training that ends at this very moment must find that it was cancelled.
        self._record(replace(ticket, status="cancelled", reason="a client cancelled it"))
        logger.info("the training %s is cancelled", job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._changed.set()
        return Success(None)

    async def work(self) -> None:
        """Train the jobs that wait, for ever; when cancelled, end all trainings."""
        try:
            while True:
                if any(self._waiting()):
                    async with self._around():
                        await self._train_all()
                self._changed.clear()
                await self._changed.wait()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _train_all(self) -> None:
        """Train until no job waits, those that come in the meantime included."""
        while True:
            self._changed.clear()
            for ticket in list(self._waiting())[: self._parallel - len(self._tasks)]:
                self._start(ticket)
            if not self._tasks:
                return
            await self._changed.wait()

    def _start(self, ticket: Ticket) -> None:
        def gone(task: asyncio.Task[None]) -> None:
            del self._tasks[ticket.id]
            self._changed.set()

        # Not written down: a job that is under way when the server dies is to be pending again.
        self._tickets[ticket.id] = replace(ticket, status="starting")
        logger.info("the training %s begins; its log is %s", ticket.id, self._files(ticket.id).log)
        task = self._tasks[ticket.id] = asyncio.create_task(self._do(ticket))
        task.add_done_callback(gone)

    async def _do(self, ticket: Ticket) -> None:
        """Train a job, and write down its end."""
        try:
            ended = await self._ended(ticket)
            if self._tickets[ticket.id].status not in ENDED:  # it was not cancelled at its end
                self._record(ended)
                outcome = ended.tuned and (ended.tuned.adapter or ended.tuned.problem)
                logger.info(
                    "the training %s %s: %s", ticket.id, ended.status, outcome or ended.reason
                )
        except Exception as error:  # one job must not end the queue
            logger.exception("the training %s", ticket.id)
            reason = first_line(error)
            # In memory only: the bug may have been in the writing, and a restarted server tries
            # again.
            self._tickets[ticket.id] = replace(ticket, status="failed", reason=reason)

    async def _ended(self, ticket: Ticket) -> Ticket:
        """The ticket of a job that was trained now, or by a server that died right afterwards."""
        files = self._files(ticket.id)
        job = read_job(files)
        tuned = finished(files, job)
        if tuned is None:
            # The child that trains stays offline, so a model of the hub is downloaded here.
            base = await asyncio.to_thread(model_directory, job.model)
            if isinstance(base, Failure):
                return replace(ticket, status="failed", reason=str(base.failure()))
            code = await self._train(self._state, ticket.id, lambda: self._started(ticket))
            tuned = finished(files, job)
            if tuned is None:
                return replace(ticket, status="failed", reason=failure_reason(files, code))
        return replace(ticket, status="succeeded", tuned=tuned)

    def _started(self, ticket: Ticket) -> None:
        if self._tickets[ticket.id].status == "starting":
            self._tickets[ticket.id] = replace(ticket, status="running")

    def _open(self) -> Iterable[Ticket]:
        return (ticket for ticket in self._tickets.values() if ticket.status not in ENDED)

    def _waiting(self) -> Iterable[Ticket]:
        return (ticket for ticket in self._tickets.values() if ticket.status == "pending")

    def _record(self, ticket: Ticket) -> None:
        """Write down a ticket that is pending or has ended."""
        replace_file(self._files(ticket.id).folder / TICKET, msgspec.json.encode(ticket))
        self._tickets[ticket.id] = ticket

    def _files(self, job_id: str) -> JobFiles:
        return JobFiles(self._state, job_id)
