"""Training through a fine-tuning API: each job is created once, however often it is requested."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.params.agent import agent_group, lr_factor
from nip_fn.params.run import HyperParameters
from nip_fn.run.ports import FailedTraining, Tuned, Tuner
from nip_fn.training.jobs import Job
from nip_fn_adapters.api import jobs
from nip_fn_adapters.api.clients import make_client
from nip_fn_adapters.api.endpoints import KEY_VARIABLES, Endpoint, endpoints_of
from nip_fn_adapters.api.jobs import Intent, Remote
from nip_fn_adapters.api.ledger import LedgerNote, drop_note, identity, read_note, write_note
from nip_fn_adapters.api.persist import RetryTask
from nip_fn_adapters.api.retries import RetryPolicy
from nip_fn_adapters.api.uploads import look_for
from nip_fn_adapters.results import bind_async


class Training(NamedTuple):
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


def trainings(
    params: HyperParameters, environment: Mapping[str, str]
) -> Result[dict[str, Training], Problem]:
    """The training settings of each group that an API trains; a failure if a key is missing.

    `rl.lr` has no meaning for an API that takes a multiple of its own rate: the multiple is
    `agent_lr_factor.actor` if that is set.  Of several servers the first trains.
    """
    found = {}
    for agent in params.agents:
        if agent.model_provider in ("local", "scripted") or agent.use_dummy_api:
            continue
        multiplier = None if agent.agent_lr_factor is None else lr_factor(agent)
        variable = agent.api_key_variable or KEY_VARIABLES.get(agent.model_provider)
        match endpoints_of(agent, environment):
            case Success((first, *_)):
                found[agent_group(agent)] = Training(first, multiplier, variable)
            case Failure(problem):
                return Failure(problem)
    return Success(found)


def api_tuner(
    run: Path,
    groups: Mapping[str, Training],
    *,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    wandb_project: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Tuner:
    """A tuner whose jobs run at a provider.

    An adapter is the id of a fine-tuned model.  A job that is cancelled is an answer.  One that the
    provider ends without a model is a `FailedTraining`, in whose place the next call creates
    another; one that has vanished, or does not end in time, is a failure, as is a provider out of
    reach.  A job that is under way when the caller is cancelled keeps running.

    Args:
        run: the run's folder, in which jobs are noted.
        groups: by name, the servers that train them.
        timeouts: limits of waiting.
        wandb_project: project of Weights & Biases to which the provider logs; None: none.
        tell: called with lines about jobs that start, and that are left running.
    """
    uploading = asyncio.Lock()

    async def tune(job: Job) -> Result[Tuned, Problem]:
        training = groups[job.group]
        intent = Intent(job, identity(run), training.multiplier, wandb_project)
        task = training.retry_task(f"training {job.name}", timeouts.retries, tell)
        async with make_client(training.endpoint, timeout=timeouts.answer, connections=2) as client:
            remote_job = _RemoteJob(client, task, run, intent, timeouts, uploading)
            return await bind_async(await task.persist(remote_job.ensure), remote_job.follow)

    return tune


async def cancel_jobs(
    run: Path, groups: Mapping[str, Training]
) -> Result[tuple[str, ...], Problem]:
    """The ids of the run's jobs at its providers that were under way and are cancelled now.

    Resuming the run continues without the adapters that they would have trained.
    """
    cancelled: list[str] = []
    answer = DEFAULT_TIMEOUTS.answer
    for endpoint, training in {one.endpoint: one for one in groups.values()}.items():
        task = training.retry_task("cancelling jobs", DEFAULT_TIMEOUTS.retries, lambda line: None)
        async with make_client(endpoint, timeout=answer, connections=1) as client:
            match await task.persist(partial(_cancel_all, client, identity(run))):
                case Success(ids):
                    cancelled += ids
                case Failure(problem):
                    return Failure(problem)
    return Success(tuple(cancelled))


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

    async def ensure(self) -> Remote:
        """The job, created only if none that has not failed is known by its id or found by its tag.

        To be called again after any failure, even of the request that creates it, and by another
        process: perhaps only the answer was lost.
        """
        note = read_note(self.run, self.intent)
        known = note.id if note else None
        found = await jobs.retrieve(self.client, known) if known else None
        if found is None or found.status == "failed":
            found = await self._find(note)
        if not found:
            async with self.uploading:
                file = await jobs.ensure_file(self.client, self.intent.job.rows)
            # The id of a vanished or failed job is a part of the idempotency key: with the same key
            # as before, a server would answer with that job.
            found = await self._create(file, f"{self.intent.tag}/{known or 0}")
        if found.id != known:
            write_note(self.run, self.intent, LedgerNote(self.intent.tag, time.time(), found.id))
        return found

    async def _find(self, note: LedgerNote | None) -> Remote | None:
        """The job as listed; if an answer was lost, the list is given time to show it."""
        lost = note.asked if note and not note.id else None
        find = partial(jobs.find_job, self.client, self.intent.tag)
        return await look_for(find, lost, self.timeouts.settle)

    async def _create(self, file: str, once: str) -> Remote:
        import openai

        write_note(self.run, self.intent, LedgerNote(self.intent.tag, time.time()))
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
        began = time.monotonic()
        while True:
            ended = self._ended(remote)
            if ended is not None:
                return ended
            waited = time.monotonic() - began
            left = self.timeouts.limit - waited
            if left <= 0:
                return Failure(self._too_long(remote))
            # Soon at first: a job whose file is refused ends long before one that trains.
            await asyncio.sleep(min(1.0 + waited / 10, self.timeouts.poll, left))
            match await self.task.persist(partial(self._look, remote)):
                case Success(found):
                    remote = found
                case Failure(problem):
                    return Failure(problem)

    def _ended(self, remote: Remote) -> Result[Tuned, Problem] | None:
        """The outcome of a job that has ended; None for one that is under way."""
        if remote.status == "not_found":
            vanished = Problem("it has vanished", remedy="resume the run to create another")
            return Failure(vanished.at(self._name(remote)))
        if remote.status == "failed":
            return Failure(FailedTraining(_reason(remote)))
        if remote.status == "cancelled":  # by a user, who would not want it again
            return Success(Tuned(None, remote.report, problem=_reason(remote)))
        # A job may have succeeded before it names its model; until then it is looked at again.
        if remote.status == "succeeded" and remote.model:
            rows = ("rows", float(len(self.intent.job.rows)))
            return Success(Tuned(remote.model, (rows, *remote.report)))
        return None

    async def _look(self, remote: Remote) -> Remote:
        """The job as it is now; "not_found" if it is neither known nor listed any more.

        One 404 alone does not mean that it is gone: behind a load balancer, replicas lag.
        """
        found = await jobs.retrieve(self.client, remote.id)
        found = found or await jobs.find_job(self.client, self.intent.tag)
        return found or remote._replace(status="not_found", word="not found")

    def _name(self, remote: Remote) -> str:
        url, name = self.task.server.url, self.intent.job.name
        return f"the fine-tuning job {remote.id} of {name} at {url}"

    def _too_long(self, remote: Remote) -> Problem:
        cancel = f"nip-fn cancel {quote(str(self.run))}"
        return Problem(
            f"it is still {remote.word!r} after {self.timeouts.limit:g} s, and keeps running there",
            address=self._name(remote),
            remedy=f"resume the run to wait again, or end it with: {cancel}",
        )


def _reason(remote: Remote) -> str:
    verb = "was cancelled" if remote.status == "cancelled" else remote.word
    why = remote.problem or "the provider gives no reason"
    return f"the fine-tuning job {remote.id} {verb}: {why}"
