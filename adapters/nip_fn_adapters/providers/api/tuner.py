"""Training through a fine-tuning API: each job is created once, however often it is requested."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.params.agent import agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.run.ports import FailedTraining, Tuned, Tuner
from nip_fn.training.tuning import Job
from nip_fn_adapters import clock
from nip_fn_adapters.providers.api import jobs
from nip_fn_adapters.providers.api.clients import make_client
from nip_fn_adapters.providers.api.endpoints import KEY_VARIABLES, Endpoint, endpoints_of
from nip_fn_adapters.providers.api.jobs import LEAST_ROWS, WITHOUT_MODEL, Intent, Remote
from nip_fn_adapters.providers.api.ledger import (
    LedgerNote,
    drop_note,
    identity,
    read_note,
    read_notes,
    write_note,
)
from nip_fn_adapters.providers.api.persist import RetryTask
from nip_fn_adapters.providers.api.retries import ONCE, RetryPolicy
from nip_fn_adapters.providers.api.rows import training_problem
from nip_fn_adapters.providers.api.uploads import delete_file, look_for
from nip_fn_adapters.results import bind_async


class TrainingServer(NamedTuple):
    """The server that trains a group, and the settings that are not part of its jobs."""

    endpoint: Endpoint
    multiplier: float | None = None  # of the provider's learning rate; None: the provider's choice
    key_variable: str | None = None  # the environment variable that holds the key

    def retry_task(
        self, purpose: str, policy: RetryPolicy, tell: Callable[[str], None]
    ) -> RetryTask:
        """A task at that server."""
        return RetryTask(self.endpoint, self.key_variable, purpose, policy, tell)


class Timeouts(NamedTuple):
    """Limits of waiting, in seconds."""

    poll: float = 30.0  # between two looks at a job, at most: the first come sooner
    limit: float = 24 * 3600.0  # for a job to end, from when this process began to look
    settle: float = 20.0  # until a job that was created must be listed
    answer: float = 120.0  # for a request
    retries: RetryPolicy = RetryPolicy(max_seconds=24 * 3600.0)  # a daily limit passes in a day


DEFAULT_TIMEOUTS = Timeouts()
DELETE_SECONDS = 10.0  # for a request; no run is held up by a file that is left


def training_servers(
    params: HyperParameters, environment: Mapping[str, str]
) -> Result[dict[str, TrainingServer], Problem]:
    """The training settings of each group that an API trains; a failure if a key is missing.

    `rl.lr` has no meaning for an API that takes a multiple of its own rate: the multiple is
    `agent_lr_factor` if that is set.  Of several servers the first trains.
    """
    by_group = {}
    for agent in params.agents:
        if agent.model_provider in ("local", "scripted") or agent.use_dummy_api:
            continue
        variable = agent.api_key_variable or KEY_VARIABLES.get(agent.model_provider)
        match endpoints_of(agent, environment):
            case Success((first, *_)):
                by_group[agent_group(agent)] = TrainingServer(
                    first, agent.agent_lr_factor, variable
                )
            case Failure(problem):
                return Failure(problem)
    return Success(by_group)


def api_tuner(
    run: Path,
    groups: Mapping[str, TrainingServer],
    *,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    wandb_project: str | None = None,
    again: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> Tuner:
    """A tuner whose jobs run at a provider.

    An adapter is the id of a fine-tuned model.  A job that the provider refuses, fails or shows as
    cancelled is a `FailedTraining`, in whose place the next call creates another; one that has
    vanished, or does not end in time, is a failure, as is a provider out of reach.  A job that is
    under way when the caller is cancelled keeps running.  Its file stays until `delete_files`.

    Args:
        run: the run's folder, in which jobs are noted.
        groups: by name, the servers that train them.
        timeouts: limits of waiting.
        wandb_project: project of Weights & Biases to which the provider logs; None: none.
        again: False: no job is created in place of one that has ended without a model.
        tell: called with lines about jobs that start, and that are left running.
    """
    uploading = asyncio.Lock()

    async def tune(job: Job) -> Result[Tuned, Problem]:
        if len(job.rows) < LEAST_ROWS:
            few = f"it has {len(job.rows)} rows, and the provider takes no fewer than {LEAST_ROWS}"
            return Failure(FailedTraining(few, address=f"training {job.name}"))
        if why := training_problem(job.loss, job.rows):
            remedy = "train by dpo or imitation, or elsewhere"
            return Failure(Problem(f"the provider {why}", f"training {job.name}", remedy))
        training = groups[job.group]
        intent = Intent(job, identity(run), training.multiplier, wandb_project)
        task = training.retry_task(f"training {job.name}", timeouts.retries, tell)
        async with make_client(training.endpoint, timeout=timeouts.answer, connections=2) as client:
            remote_job = _RemoteJob(client, task, run, intent, timeouts, uploading, again)
            ensured = (await task.persist(remote_job.ensure)).alt(_failed_if_refused)
            return await bind_async(ensured, remote_job.follow)

    return tune


def _failed_if_refused(problem: Problem) -> Problem:
    """A failed training, if the provider would refuse it again."""
    if not problem.lasting:
        return problem
    return FailedTraining(problem.problem, problem.address, problem.remedy)


async def cancel_jobs(
    run: Path, groups: Mapping[str, TrainingServer]
) -> Result[tuple[str, ...], Problem]:
    """The ids of the run's jobs at its providers that were under way and are cancelled now.

    A resumed run creates others or goes on without, as `text_rl.failed_trainings` says.
    """
    cancelled: list[str] = []
    answer = DEFAULT_TIMEOUTS.answer
    for endpoint, training in {training.endpoint: training for training in groups.values()}.items():
        task = training.retry_task("cancelling jobs", DEFAULT_TIMEOUTS.retries, lambda line: None)
        async with make_client(endpoint, timeout=answer, connections=1) as client:
            match await task.persist(partial(_cancel_all, client, identity(run))):
                case Success(ids):
                    cancelled += ids
                case Failure(problem):
                    return Failure(problem)
    for name, note in read_notes(run).items():
        if note.id in cancelled:
            write_note(run, name, replace(note, ended=True))
    return Success(tuple(cancelled))


async def delete_files(
    run: Path,
    groups: Mapping[str, TrainingServer],
    awaited: Collection[str],
    tell: Callable[[str], None],
) -> None:
    """Delete the files of jobs that have ended; tell which cannot be deleted.

    Args:
        run: the run's folder.
        groups: as for `api_tuner`.
        awaited: the names of jobs whose results are not recorded yet: their files are kept, unless
            they have ended without a model.
        tell: called with a line for each provider that does not delete.
    """
    notes = read_notes(run)
    kept = {note.file for name, note in notes.items() if name in awaited and not note.ended}
    for group, training in groups.items():
        over = {
            name: note.file
            for name, note in notes.items()
            if note.group == group and note.file and note.file not in kept
        }
        if not over:
            continue
        task = training.retry_task("deleting files", ONCE, tell)
        async with make_client(training.endpoint, timeout=DELETE_SECONDS, connections=1) as client:
            for name, file in over.items():
                deleted = await task.persist(partial(delete_file, client, file))
                if not is_successful(deleted):
                    tell(f"{deleted.failure()}; files of trainings stay there")
                    break
                write_note(run, name, replace(notes[name], file=None))


async def _cancel_all(client: Any, run: str) -> list[str]:
    import openai

    cancelled = []
    for remote in await jobs.find_jobs(client, run):
        with suppress(openai.BadRequestError):  # it has just ended
            cancelled.append((await jobs.cancel(client, remote.id)).id)
    return cancelled


class _RemoteJob(NamedTuple):
    """One job, and the means to create it and to follow it."""

    client: Any
    task: RetryTask
    run: Path
    intent: Intent
    timeouts: Timeouts
    uploading: asyncio.Lock  # so that equal files are uploaded once
    again: bool  # see `api_tuner`

    async def ensure(self) -> Remote:
        """The job, created only if none that may have a model is known by its id or its tag.

        To be called again after any failure, even of the request that creates it, and by another
        process: perhaps only the answer was lost.
        """
        note = read_note(self.run, self.intent)
        noted_id = note.id if note else None
        job = await jobs.retrieve(self.client, noted_id) if noted_id else None
        if job is None or (self.again and job.status in WITHOUT_MODEL):
            job = await self._find(note)
        if not job:
            async with self.uploading:
                file = await jobs.ensure_file(self.client, self.intent.run, self.intent.job.rows)
            # The id of a vanished or failed job is a part of the idempotency key: with the same key
            # as before, a server would answer with that job.
            job = await self._create(file, f"{self.intent.tag}/{noted_id or 0}")
        if job.id != noted_id:
            self._note(job.file, job.id)
        return job

    def _note(self, file: str | None, id: str | None = None, *, ended: bool = False) -> None:
        job = self.intent.job
        note = LedgerNote(self.intent.tag, clock.wall(), id, job.group, file, ended)
        write_note(self.run, job.name, note)

    async def _find(self, note: LedgerNote | None) -> Remote | None:
        """The job as listed; if an answer was lost, the list is given time to show it."""
        lost = note.asked if note and not note.id else None
        find = partial(jobs.find_job, self.client, self.intent.tag, ended=not self.again)
        return await look_for(find, lost, self.timeouts.settle)

    async def _create(self, file: str, once: str) -> Remote:
        import openai

        self._note(file)
        try:
            return await jobs.create(self.client, self.intent, file, once)
        except openai.APIStatusError as refusal:
            # A clear refusal created nothing.  After any other error the job may exist, and the
            # note stays, so that it is looked for.
            if refusal.status_code < 500 and refusal.status_code not in (408, 409):
                drop_note(self.run, self.intent)
            raise

    async def follow(self, remote: Remote) -> Result[Tuned, Problem]:
        """The outcome of the job, once it has ended."""
        self.task.tell(f"{self._name(remote)}: {remote.word}")
        try:
            return await self._follow(remote)
        except asyncio.CancelledError:
            self.task.tell(f"{self._name(remote)} keeps running; resuming the run finds it again")
            raise

    async def _follow(self, remote: Remote) -> Result[Tuned, Problem]:
        began = clock.monotonic()
        while True:
            ended = self._ended(remote)
            if ended is not None:
                if remote.status in WITHOUT_MODEL:
                    self._note(remote.file, remote.id, ended=True)
                return ended
            waited = clock.monotonic() - began
            seconds_left = self.timeouts.limit - waited
            if seconds_left <= 0:
                return Failure(self._too_long(remote))
            # Soon at first: a job whose file is refused ends long before one that trains.
            await asyncio.sleep(min(1.0 + waited / 10, self.timeouts.poll, seconds_left))
            match await self.task.persist(partial(self._look, remote)):
                case Success(current):
                    remote = current
                case Failure(problem):
                    return Failure(problem)

    def _ended(self, remote: Remote) -> Result[Tuned, Problem] | None:
        """The outcome of a job that has ended; None for one that is under way."""
        if remote.status == "not_found":
            vanished = Problem("it has vanished", remedy="resume the run to create another")
            return Failure(vanished.at(self._name(remote)))
        if remote.status in WITHOUT_MODEL:
            return Failure(FailedTraining(_reason(remote)))
        # A job may have succeeded before it names its model; until then it is looked at again.
        if remote.status == "succeeded" and remote.model:
            rows = ("rows", float(len(self.intent.job.rows)))
            return Success(Tuned(remote.model, (rows, *remote.report)))
        return None

    async def _look(self, remote: Remote) -> Remote:
        """The job as it is now; "not_found" if it is neither known nor listed any more.

        One 404 alone does not mean that it is gone: behind a load balancer, replicas lag.
        """
        job = await jobs.retrieve(self.client, remote.id)
        job = job or await jobs.find_job(self.client, self.intent.tag)
        return job or remote._replace(status="not_found", word="not found")

    def _name(self, remote: Remote) -> str:
        url, name = self.task.server.url, self.intent.job.name
        return f"the fine-tuning job {remote.id} of {name} at {url}"

    def _too_long(self, remote: Remote) -> Problem:
        cancel = f"nip_fn_adapters.cancel({str(self.run)!r})"
        return Problem(
            f"it is still {remote.word!r} after {self.timeouts.limit:g} s, and keeps running there",
            address=self._name(remote),
            remedy=f"resume the run to wait again, or end it in Python: {cancel}",
        )


def _reason(remote: Remote) -> str:
    verb = "was cancelled" if remote.status == "cancelled" else remote.word
    why = remote.problem or "the provider gives no reason"
    return f"the fine-tuning job {remote.id} {verb}: {why}"
