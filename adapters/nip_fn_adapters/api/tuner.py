"""Training through a fine-tuning API: each job created once, however often it is asked for."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.params.agent import agent_group, lr_factor
from nip_fn.params.run import HyperParameters
from nip_fn.run.ports import Tuned, Tuner
from nip_fn.training.jobs import Job
from nip_fn_adapters.api import jobs
from nip_fn_adapters.api.endpoints import KEY_VARIABLES, Endpoint, endpoints_of, make_client
from nip_fn_adapters.api.jobs import Intent, Remote
from nip_fn_adapters.api.ledger import Note, drop_note, identity, read_note, write_note
from nip_fn_adapters.api.persist import RetryTask
from nip_fn_adapters.api.retries import RetryPolicy
from nip_fn_adapters.api.uploads import look_for


class Training(NamedTuple):
    """Where a group is trained, and what its jobs do not say."""

    endpoint: Endpoint
    multiplier: float | None = None  # of the provider's learning rate; None: as it chooses
    key_variable: str | None = None  # the environment variable that holds the key

    def errand(self, purpose: str, policy: RetryPolicy, tell: Callable[[str], None]) -> RetryTask:
        """Something that is wanted of its server."""
        return RetryTask(self.endpoint, self.key_variable, purpose, policy, tell)


class Timeouts(NamedTuple):
    """How long to wait for what, in seconds."""

    poll: float = 30.0  # between two looks at a job, at most: the first come sooner
    limit: float = 24 * 3600.0  # for a job to end, from when this process began to look
    settle: float = 20.0  # until a job that was asked for is listed, if it was created
    answer: float = 120.0  # for a request
    retries: RetryPolicy = RetryPolicy(max_seconds=24 * 3600.0)  # a day's limit passes in a day


PATIENT = Timeouts()


def trainings(
    params: HyperParameters, environment: Mapping[str, str]
) -> Result[dict[str, Training], str]:
    """How each group that is trained through an API is; or which key is missing.

    `rl.lr` means nothing to an API that takes a multiple of its own rate: the multiple is
    `agent_lr_factor.actor` where that is set.  Of several servers the first trains.
    """
    found = {}
    for agent in params.agents:
        if agent.model_provider == "local" or agent.use_dummy_api:
            continue
        endpoints = endpoints_of(agent, environment)
        if isinstance(endpoints, Failure):
            return Failure(endpoints.failure())
        multiplier = None if agent.agent_lr_factor is None else lr_factor(agent)
        variable = agent.api_key_variable or KEY_VARIABLES.get(agent.model_provider)
        found[agent_group(agent)] = Training(endpoints.unwrap()[0], multiplier, variable)
    return Success(found)


def api_tuner(
    run: Path,
    groups: Mapping[str, Training],
    *,
    patience: Timeouts = PATIENT,
    wandb_project: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Tuner:
    """A tuner whose jobs run at a provider, and are noted in the folder `run`.

    An adapter is the id of a fine-tuned model.  A job that the provider ends without one is an
    answer; one that is gone, or does not end in time, is a failure, as is a provider out of reach.
    A job that is under way when the caller is cancelled goes on, and `tell` is told so.
    """
    uploading = asyncio.Lock()

    async def tune(job: Job) -> Result[Tuned, str]:
        training = groups[job.group]
        intent = Intent(job, identity(run), training.multiplier, wandb_project)
        errand = training.errand(f"training {job.name}", patience.retries, tell)
        async with make_client(training.endpoint, timeout=patience.answer, connections=2) as client:
            desk = _Desk(client, errand, run, intent, patience, uploading)
            asked = await errand.persist(desk.ensure)
            if isinstance(asked, Failure):
                return Failure(asked.failure())
            name = desk.name(asked.unwrap())
            try:
                tell(f"{name}: {asked.unwrap().word}")
                return await desk.follow(asked.unwrap())
            except asyncio.CancelledError:
                tell(f"{name} goes on there; resuming the run finds it")
                raise

    return tune


async def cancel_jobs(run: Path, groups: Mapping[str, Training]) -> Result[tuple[str, ...], str]:
    """The ids of the run's jobs that were under way at its providers, and are cancelled now.

    Resuming the run goes on without what they would have trained.
    """
    cancelled: list[str] = []
    places = {training.endpoint: training for training in groups.values()}
    for endpoint, training in places.items():
        errand = training.errand("cancelling jobs", PATIENT.retries, lambda line: None)
        async with make_client(endpoint, timeout=PATIENT.answer, connections=1) as client:
            ids = await errand.persist(partial(_cancel_all, client, identity(run)))
        if isinstance(ids, Failure):
            return Failure(ids.failure())
        cancelled += ids.unwrap()
    return Success(tuple(cancelled))


async def _cancel_all(client: Any, run: str) -> list[str]:
    import openai

    cancelled = []
    for remote in await jobs.find_jobs(client, run):
        with suppress(openai.BadRequestError):  # it has just ended
            cancelled.append((await jobs.cancel(client, remote.id)).id)
    return cancelled


class _Desk(NamedTuple):
    """One job's dealings with its provider."""

    client: Any
    errand: RetryTask
    run: Path
    intent: Intent
    patience: Timeouts
    uploading: asyncio.Lock  # so that equal files are uploaded once

    def name(self, remote: Remote) -> str:
        """The job, for people to read."""
        return (
            f"the fine-tuning job {remote.id} of {self.intent.job.name} at {self.errand.server.url}"
        )

    async def ensure(self) -> Remote:
        """The job, created only where it is neither known by its id nor found by its tag.

        To be called again after any failure, even of the request that creates, and by another
        process: its answer may be all that was lost.
        """
        note = read_note(self.run, self.intent)
        known = note.id if note else None
        found = (known and await jobs.retrieve(self.client, known)) or await self._find(note)
        if not found:
            async with self.uploading:
                file = await jobs.ensure_file(self.client, self.intent.job.rows)
            found = await self._create(file, f"{self.intent.tag}/{known or 0}")
        if found.id != known:
            write_note(self.run, self.intent, Note(self.intent.tag, time.time(), found.id))
        return found

    async def _find(self, note: Note | None) -> Remote | None:
        """The job as listed; where an answer was lost, the list is given time to show it."""
        lost = note.asked if note and not note.id else None
        find = partial(jobs.find_job, self.client, self.intent.tag)
        return await look_for(find, lost, self.patience.settle)

    async def _create(self, file: str, once: str) -> Remote:
        import openai

        write_note(self.run, self.intent, Note(self.intent.tag, time.time()))
        try:
            return await jobs.create(self.client, self.intent, file, once)
        except openai.APIStatusError as refusal:
            if refusal.status_code < 500 and refusal.status_code not in (408, 409):
                drop_note(self.run, self.intent)
            raise

    async def follow(self, remote: Remote) -> Result[Tuned, str]:
        """What the job came to."""
        began = time.monotonic()
        while True:
            ended = self._ended(remote)
            if ended is not None:
                return ended
            waited = time.monotonic() - began
            left = self.patience.limit - waited
            if left <= 0:
                return Failure(self._too_long(remote))
            await asyncio.sleep(min(1.0 + waited / 10, self.patience.poll, left))
            looked = await self.errand.persist(partial(self._look, remote))
            if isinstance(looked, Failure):
                return Failure(looked.failure())
            remote = looked.unwrap()

    def _ended(self, remote: Remote) -> Result[Tuned, str] | None:
        """What a job left that has ended; None for one that is under way."""
        if remote.status == "not_found":
            return Failure(f"{self.name(remote)} is gone; resuming the run creates another")
        if jobs.has_failed(remote.status):
            return Success(Tuned(None, remote.report, problem=_problem(remote)))
        if remote.status == "succeeded" and remote.model:
            rows = ("rows", float(len(self.intent.job.rows)))
            return Success(Tuned(remote.model, (rows, *remote.report)))
        return None

    async def _look(self, remote: Remote) -> Remote:
        """The job as it is now; "not_found" where it is neither known nor listed any more."""
        found = await jobs.retrieve(self.client, remote.id)
        found = found or await jobs.find_job(self.client, self.intent.tag)
        return found or remote._replace(status="not_found", word="not found")

    def _too_long(self, remote: Remote) -> str:
        return (
            f"{self.name(remote)} is still {remote.word!r} after {self.patience.limit:g} s; it "
            "goes on there: resume the run to wait again, or cancel the job to go on without it"
        )


def _problem(remote: Remote) -> str:
    said = {"failed": "failed", "cancelled": "was cancelled"}[remote.status]
    why = remote.problem or "the provider gives no reason"
    return f"the fine-tuning job {remote.id} {said}: {why}"
