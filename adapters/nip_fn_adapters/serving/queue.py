"""The training jobs of a server: one after the other, each as often as asked for, trained once.

STATE/jobs/ID/ticket.json    a job's place and its end; there from when it is accepted
STATE/jobs/ID/...            as `local.jobs` lays it out; what a job leaves is in STATE/adapters

A job that was under way when the server died is still pending when it comes back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.run.ports import Tuned
from nip_fn.training.jobs import Job
from nip_fn_adapters.local.jobs import JobFiles, finished, job_hash, last_words, read_job, write_job
from nip_fn_adapters.local.models import model_directory, one_line
from nip_fn_adapters.local.progress import read_progress
from nip_fn_adapters.serving.wire import ENDED, JobInfo, JobState, Refusal
from nip_fn_adapters.store import replace_file

TICKET = "ticket.json"
LAST_LINES = 20  # of a log, that are shown with a job
LOG_TAIL = 1 << 20  # bytes of a log that are sent

# Trains the job that is laid down in a folder under an id, tells when it begins to, and gives its
# exit code.
Train = Callable[[Path, str, Callable[[], None]], Awaitable[int]]
logger = logging.getLogger(__name__)


class Ticket(msgspec.Struct, frozen=True):
    """A job in the queue."""

    id: str
    number: int  # jobs are trained in this order
    job_hash: str
    needs: tuple[str, ...]  # the adapters that it starts from and stays close to
    status: JobState = "pending"  # on disk, it has ended or is pending
    reason: str = ""  # why it failed or was cancelled
    tuned: Tuned | None = None  # what it came to, where it succeeded


class Put(NamedTuple):
    """A job that was put into the queue, or had been."""

    info: JobInfo
    is_new: bool


class Queue:
    """The jobs, and what trains them: `work` is to be running."""

    def __init__(
        self,
        state: Path,
        train: Train,
        around: Callable[[], AbstractAsyncContextManager[None]],
        parallel: int = 1,
    ) -> None:
        """Find the jobs again.  Trainings are inside `around()`, all that are waiting together;
        at most `parallel` at once.
        """
        self._state, self._train, self._around, self._parallel = state, train, around, parallel
        self._news = asyncio.Event()  # a job came or ended
        self._tasks: dict[str, asyncio.Task[None]] = {}
        paths = state.glob(f"jobs/*/{TICKET}")
        tickets = [msgspec.json.decode(path.read_bytes(), type=Ticket) for path in paths]
        tickets.sort(key=lambda ticket: ticket.number)
        self._tickets = {ticket.id: ticket for ticket in tickets}

    def put(self, id: str, job: Job) -> Result[Put, Refusal]:
        """Queue a job; the same job under the same id is queued once."""
        try:
            digest = job_hash(job)
        except OverflowError:
            return Failure(Refusal(422, f"{id} has a number that no training can use"))
        known = self._tickets.get(id)
        if known is not None and known.job_hash != digest:
            return Failure(Refusal(409, f"there is another job {id}; use a new id for this one"))
        if known is None:
            number = max((ticket.number for ticket in self._tickets.values()), default=0) + 1
            needs = tuple(name for name in (job.start, job.reference) if name is not None)
            write_job(self._files(id), job)
            self._note(Ticket(id, number, digest, needs))
            self._news.set()
        return Success(Put(self.info(id), known is None))

    def __contains__(self, id: str) -> bool:
        return id in self._tickets

    def needed(self) -> set[str]:
        """The adapters that jobs which have not ended start from or stay close to."""
        return {name for ticket in self._open() for name in ticket.needs}

    def infos(self) -> tuple[JobInfo, ...]:
        """All jobs, in their order, without their logs."""
        return tuple(self.info(id, lines=0) for id in self._tickets)

    def info(self, id: str, lines: int = LAST_LINES) -> JobInfo:
        """A job and the last lines of its log."""
        ticket = self._tickets[id]
        info = JobInfo(
            id,
            ticket.status,
            ticket.reason,
            log=tuple(self.log(id).splitlines()[-lines:]) if lines else (),
        )
        if ticket.status == "pending":
            return replace(info, place=sum(one.number < ticket.number for one in self._open()))
        info = replace(info, progress=read_progress(self._files(id)))
        return info if ticket.tuned is None else replace(info, **ticket.tuned._asdict())

    def log(self, id: str) -> str:
        """The end of what the training printed."""
        try:
            with self._files(id).log.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - LOG_TAIL))
                return file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    async def cancel(self, id: str) -> Result[None, Refusal]:
        """Cancel a job; once this returns, nothing of its training runs."""
        ticket = self._tickets[id]
        if ticket.status in ENDED:
            return Failure(Refusal(409, f"{id} has {_ended(ticket)}; there is nothing to cancel"))
        self._note(replace(ticket, status="cancelled", reason="a client cancelled it"))
        task = self._tasks.get(id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._news.set()
        return Success(None)

    async def work(self) -> None:
        """Train what is waiting, for ever; cancelled, it leaves no training behind."""
        try:
            while True:
                if any(self._waiting()):
                    async with self._around():
                        await self._train_all()
                self._news.clear()
                await self._news.wait()
        finally:
            await self._end_all()

    async def _train_all(self) -> None:
        """Train until nothing is waiting, also of what comes in the meantime."""
        while True:
            self._news.clear()
            for ticket in list(self._waiting())[: self._parallel - len(self._tasks)]:
                self._start(ticket)
            if not self._tasks:
                return
            await self._news.wait()

    async def _end_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, ticket: Ticket) -> None:
        def gone(task: asyncio.Task[None]) -> None:
            del self._tasks[ticket.id]
            self._news.set()

        self._tickets[ticket.id] = replace(ticket, status="starting")
        task = self._tasks[ticket.id] = asyncio.create_task(self._do(ticket))
        task.add_done_callback(gone)

    async def _do(self, ticket: Ticket) -> None:
        """Train a job, unless an earlier try came to its end."""
        try:
            ended = await self._ended(ticket)
            if self._tickets[ticket.id].status not in ENDED:  # it was not cancelled at its end
                self._note(ended)
        except Exception as error:  # one job must not end the queue
            logger.exception("the training %s", ticket.id)
            reason = one_line(error)
            self._tickets[ticket.id] = replace(ticket, status="failed", reason=reason)

    async def _ended(self, ticket: Ticket) -> Ticket:
        files = self._files(ticket.id)
        job = read_job(files)
        code = 0
        if finished(files, job) is None:
            base = await asyncio.to_thread(model_directory, job.model)  # the child stays offline
            if isinstance(base, Failure):
                return replace(ticket, status="failed", reason=base.failure())
            code = await self._train(self._state, ticket.id, lambda: self._started(ticket))
        tuned = finished(files, job)
        if tuned is None:
            return replace(ticket, status="failed", reason=last_words(files, code))
        return replace(ticket, status="succeeded", tuned=tuned)

    def _started(self, ticket: Ticket) -> None:
        if self._tickets[ticket.id].status == "starting":
            self._tickets[ticket.id] = replace(ticket, status="running")

    def _open(self) -> Iterable[Ticket]:
        return (ticket for ticket in self._tickets.values() if ticket.status not in ENDED)

    def _waiting(self) -> Iterable[Ticket]:
        return (ticket for ticket in self._tickets.values() if ticket.status == "pending")

    def _note(self, ticket: Ticket) -> None:
        """Write down a ticket that is pending or has ended."""
        replace_file(self._files(ticket.id).folder / TICKET, msgspec.json.encode(ticket))
        self._tickets[ticket.id] = ticket

    def _files(self, id: str) -> JobFiles:
        return JobFiles(self._state, id)


def _ended(ticket: Ticket) -> str:
    return "been cancelled" if ticket.status == "cancelled" else ticket.status
