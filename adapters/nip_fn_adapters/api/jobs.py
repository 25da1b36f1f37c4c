"""Fine-tuning jobs at a provider: how they are asked for, found again, and read.

Creating a job costs money and cannot be taken back by dying, so nothing is created before it has
been looked for.  A job is known by its tag, which it carries as suffix and in its metadata; a file
by its name, which holds a hash of its content.
"""

import re
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from nip_fn.training.jobs import Job, TrainingRow
from nip_fn_adapters.api.rows import training_file
from nip_fn_adapters.api.uploads import each, ensure_upload, text_of

JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled", "not_found"]

# The provider's words; any other is taken for a job under way.
STATUSES: dict[str, JobStatus] = {
    "validating_files": "pending",
    "queued": "pending",
    "paused": "pending",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}

PAGE = 100  # jobs to a page of the list

# What metadata calls the tag of a job or a batch, and the identity of its run.
TAG, RUN = "nip_fn", "nip_fn_run"


class Intent(NamedTuple):
    """A job that is to be at the provider once, and what belongs to it."""

    job: Job
    run: str  # the run's identity
    multiplier: float | None  # of the provider's learning rate; None: as the provider chooses
    wandb_project: str | None = None  # where the provider is to log to; None: nowhere

    @property
    def tag(self) -> str:
        """Its name at the provider: unlike any other, at most 40 of `a-z0-9-`."""
        seed = f"{self.run} {self.job.name} {self.job.data_hash}"
        words = re.sub(r"[^a-z0-9]+", "-", self.job.name.lower()).strip("-")
        return f"{words[:27]}-{blake2b(seed.encode(), digest_size=6).hexdigest()}".lstrip("-")


class Remote(NamedTuple):
    """A job as the provider tells of it."""

    id: str
    status: JobStatus
    word: str  # the provider's own for the status
    model: str | None  # what it trained; None until it has succeeded
    problem: str  # why it failed, in a line; empty where nothing is said
    report: tuple[tuple[str, float], ...]  # train_tokens, seconds: as far as they are told


def has_failed(status: JobStatus) -> bool:
    """Whether a job with that status leaves no model."""
    return status in ("failed", "cancelled", "not_found")


def remote_of(told: Any) -> Remote:
    """The record of a job that the client has read; `ValueError` where it is none."""
    id, status = text_of(told, "id"), text_of(told, "status")
    began, ended = getattr(told, "created_at", None), getattr(told, "finished_at", None)
    seconds = ended - began if began and ended else None
    numbers = (("train_tokens", getattr(told, "trained_tokens", None)), ("seconds", seconds))
    return Remote(
        id=id,
        status=STATUSES.get(status, "running"),
        word=status,
        model=getattr(told, "fine_tuned_model", None) or None,
        problem=error_line(getattr(told, "error", None)),
        report=tuple((name, float(value)) for name, value in numbers if value is not None),
    )


def error_line(error: Any) -> str:
    """The provider's words about a failure: CODE: MESSAGE (PARAMETER); empty where there are none.

    >>> from types import SimpleNamespace as Error
    >>> error_line(Error(code="invalid_file", message="Line 3\\nis cut", param="training_file"))
    'invalid_file: Line 3 is cut (training_file)'
    """
    code, message, param = (getattr(error, name, None) for name in ("code", "message", "param"))
    line = ": ".join(" ".join(str(part).split()) for part in (code, message) if part)
    return f"{line} ({param})" if line and param else line


def creation(intent: Intent, file: str) -> dict[str, Any]:
    """The fields of the request that creates the job, to be trained on an uploaded file.

    The learning rate alone is not the job's: the API takes no rate, only a multiple of its own.
    """
    job = intent.job
    numbers: dict[str, Any] = {"n_epochs": job.num_epochs, "batch_size": job.batch_size}
    if intent.multiplier is not None:
        numbers["learning_rate_multiplier"] = intent.multiplier
    if job.method == "dpo":
        numbers["beta"] = job.beta
    method = "supervised" if job.method == "sft" else "dpo"
    fields: dict[str, Any] = {
        "model": job.start or job.model,
        "training_file": file,
        "method": {"type": method, method: {"hyperparameters": numbers}},
        "seed": job.seed,
        "suffix": intent.tag,
        "metadata": {TAG: intent.tag, RUN: intent.run},
    }
    if intent.wandb_project is not None:
        wandb = {"project": intent.wandb_project, "name": intent.tag, "tags": ["nip-fn"]}
        fields["integrations"] = [{"type": "wandb", "wandb": wandb}]
    return fields


async def create(client: Any, intent: Intent, file: str, once: str) -> Remote:
    """A new job; a server that knows idempotency keys makes one only for each `once`."""
    headers = {"Idempotency-Key": once}
    fields = creation(intent, file)
    return remote_of(await client.fine_tuning.jobs.create(**fields, extra_headers=headers))


async def cancel(client: Any, id: str) -> Remote:
    """The job, told to end."""
    return remote_of(await client.fine_tuning.jobs.cancel(id))


async def retrieve(client: Any, id: str) -> Remote | None:
    """The job with that id; None where the provider knows none."""
    import openai

    try:
        return remote_of(await client.fine_tuning.jobs.retrieve(id))
    except openai.NotFoundError:
        return None


async def find_job(client: Any, tag: str) -> Remote | None:
    """The newest job with that tag; None where the provider lists none."""
    async for told in each(client.fine_tuning.jobs.list(limit=PAGE, metadata={TAG: tag})):
        if tag in _marks(told):
            return remote_of(told)
    return None


async def find_jobs(client: Any, run: str) -> tuple[Remote, ...]:
    """All jobs of a run that have not ended."""
    listed = each(client.fine_tuning.jobs.list(limit=PAGE, metadata={RUN: run}))
    jobs = [remote_of(told) async for told in listed if run in _marks(told)]
    return tuple(job for job in jobs if job.status in ("pending", "running"))


async def ensure_file(client: Any, rows: tuple[TrainingRow, ...]) -> str:
    """The id of the file with these rows, uploaded only where it is not there yet."""
    data = training_file(rows)
    name = f"nip-fn-{blake2b(data, digest_size=16).hexdigest()}.jsonl"
    return await ensure_upload(client, name, data, "fine-tune")


def _marks(told: Any) -> set[str]:
    """What a job is known by: its metadata, or its suffix where a server keeps no metadata."""
    metadata = getattr(told, "metadata", None) or {}
    suffixes = (getattr(told, name, None) for name in ("user_provided_suffix", "suffix"))
    return {str(mark) for mark in (*metadata.values(), *suffixes) if mark}
