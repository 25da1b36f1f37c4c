"""Fine-tuning jobs at a provider: requested, found again, and read.

Creating a job costs money, and a crash does not undo it, so nothing is created before it has been
looked for.  A job is known by its tag, which it carries as suffix and in its metadata; a file by
its name, which holds a hash of its content.
"""

import re
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from nip_fn.training.losses import DPO
from nip_fn.training.rows import Row
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.api.rows import training_file
from nip_fn_adapters.providers.api.uploads import each, ensure_upload, text_of

JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled", "not_found"]
WITHOUT_MODEL = ("failed", "cancelled")  # statuses in which a job has ended
LEAST_ROWS = 10  # that OpenAI takes; a job with fewer fails there after the upload

# The provider's words.  Any other counts as a job under way: new words appear without notice, and a
# job that is taken for failed would be paid for and thrown away.
STATUSES: dict[str, JobStatus] = {
    "validating_files": "pending",
    "queued": "pending",
    "paused": "pending",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "expired": "failed",
    "cancelled": "cancelled",
}

PAGE = 100  # jobs per page of the list

# The metadata fields of a job or a batch that hold its tag and the identity of its run.
TAG, RUN = "nip_fn", "nip_fn_run"


class Intent(NamedTuple):
    """A job that is to exist at the provider exactly once."""

    job: Job
    run: str  # the run's identity
    multiplier: float | None  # of the provider's learning rate; None: the provider's choice
    wandb_project: str | None = None  # to which the provider logs; None: none

    @property
    def tag(self) -> str:
        """Its unique name at the provider: at most 40 characters of `a-z0-9-`, as in suffixes."""
        seed = f"{self.run} {self.job.name} {self.job.data_hash}"
        words = re.sub(r"[^a-z0-9]+", "-", self.job.name.lower()).strip("-")
        return f"{words[:27]}-{blake2b(seed.encode(), digest_size=6).hexdigest()}".lstrip("-")


class Remote(NamedTuple):
    """A job as the provider describes it."""

    id: str
    status: JobStatus
    word: str  # the provider's own word for the status
    model: str | None  # the trained model; None until it has succeeded
    problem: str  # why it failed, in one line; "" if the provider gives no reason
    report: tuple[tuple[str, float], ...]  # train_tokens, seconds: those that are reported
    file: str | None = None  # the id of its rows


def remote_of(listed: Any) -> Remote:
    """The record of a job that the client has read; raises `ValueError` if it is not one."""
    status = text_of(listed, "status")
    began, ended = getattr(listed, "created_at", None), getattr(listed, "finished_at", None)
    seconds = ended - began if began and ended else None
    numbers = (("train_tokens", getattr(listed, "trained_tokens", None)), ("seconds", seconds))
    return Remote(
        id=text_of(listed, "id"),
        status=STATUSES.get(status, "running"),
        word=status,
        model=getattr(listed, "fine_tuned_model", None) or None,
        problem=error_line(getattr(listed, "error", None)),
        report=tuple((name, float(value)) for name, value in numbers if value is not None),
        file=getattr(listed, "training_file", None) or None,
    )


def error_line(error: Any) -> str:
    """The provider's description of a failure, "CODE: MESSAGE (PARAMETER)"; "" if it has none.

    >>> from types import SimpleNamespace as Error
    >>> error_line(Error(code="invalid_file", message="Line 3\\nis cut", param="training_file"))
    'invalid_file: Line 3 is cut (training_file)'
    """
    code, message, param = (getattr(error, name, None) for name in ("code", "message", "param"))
    line = ": ".join(" ".join(str(part).split()) for part in (code, message) if part)
    return f"{line} ({param})" if line and param else line


def creation(intent: Intent, file: str) -> dict[str, Any]:
    """The fields of the request that creates the job, to be trained on an uploaded file.

    The job's own learning rate is not among them: the API takes only a multiple of its own rate.
    """
    job = intent.job
    numbers: dict[str, Any] = {"n_epochs": job.num_epochs, "batch_size": job.batch_size}
    if intent.multiplier is not None:
        numbers["learning_rate_multiplier"] = intent.multiplier
    method = "supervised"
    if isinstance(job.loss, DPO):
        method, numbers["beta"] = "dpo", job.loss.beta
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
    """A new job; a server that knows idempotency keys makes only one for each `once`."""
    # A second safeguard only: servers may ignore it, and the look-up by tag must do without.
    headers = {"Idempotency-Key": once}
    fields = creation(intent, file)
    return remote_of(await client.fine_tuning.jobs.create(**fields, extra_headers=headers))


async def cancel(client: Any, job: str) -> Remote:
    """The job with that id, cancelled."""
    return remote_of(await client.fine_tuning.jobs.cancel(job))


async def retrieve(client: Any, job: str) -> Remote | None:
    """The job with that id; None if the provider does not know it."""
    import openai

    try:
        return remote_of(await client.fine_tuning.jobs.retrieve(job))
    except openai.NotFoundError:
        return None


async def find_job(client: Any, tag: str, *, ended: bool = False) -> Remote | None:
    """The newest job with that tag, also without a model if `ended`; None if none is listed."""
    # Not every server filters by metadata, so each job is checked here, too.
    async for listed in each(client.fine_tuning.jobs.list(limit=PAGE, metadata={TAG: tag})):
        if tag in _marks(listed):
            job = remote_of(listed)
            if ended or job.status not in WITHOUT_MODEL:
                return job
    return None


async def find_jobs(client: Any, run: str) -> tuple[Remote, ...]:
    """All jobs of a run that have not ended."""
    pages = each(client.fine_tuning.jobs.list(limit=PAGE, metadata={RUN: run}))
    jobs = [remote_of(listed) async for listed in pages if run in _marks(listed)]
    return tuple(job for job in jobs if job.status in ("pending", "running"))


async def ensure_file(client: Any, run: str, rows: tuple[Row, ...]) -> str:
    """The id of the run's file with these rows, uploaded only if the provider does not have it."""
    data = training_file(rows)
    # Named by its content, so that groups with equal rows share one upload; and by the run, which
    # deletes it, and must not delete another's.
    name = f"nip-fn-{run}-{blake2b(data, digest_size=16).hexdigest()}.jsonl"
    return await ensure_upload(client, name, data, "fine-tune")


def _marks(listed: Any) -> set[str]:
    """The marks of a job: its metadata, or its suffix if the server keeps no metadata."""
    metadata = getattr(listed, "metadata", None) or {}
    suffixes = (getattr(listed, name, None) for name in ("user_provided_suffix", "suffix"))
    return {str(mark) for mark in (*metadata.values(), *suffixes) if mark}
