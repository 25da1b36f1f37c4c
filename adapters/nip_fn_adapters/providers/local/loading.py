"""Loading of a job: the folders of its models, the model to train, the rows as tokens."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import (
    adapter_directory,
    check_tokenizer,
    context_of,
    exit_on_failure,
    is_lora,
    load_tokenizer,
    model_directory,
    require,
)
from nip_fn_adapters.providers.local.rows import Encoded, encode_rows
from nip_fn_adapters.providers.local.weights import load_trainable, scale_of


class Folders(NamedTuple):
    """The folders of a job's models; None: the base model."""

    base: Path
    start: Path | None
    reference: Path | None


class LoadedJob(NamedTuple):
    """A job that is ready to be trained."""

    folders: Folders
    model: Any  # the model to train
    tokenizer: Any
    encoded: Encoded


def folders_of(job: Job, files: JobFiles) -> Folders:
    """The folders of the job's models.

    Ends the process with a line if one is missing: before the imports, which take seconds.
    """
    base = exit_on_failure(model_directory(job.model))
    start, reference = (
        exit_on_failure(adapter_directory(files.adapters, name))
        for name in (job.start, job.reference)
    )
    if not job.rows:
        sys.exit(f"{job.name} has no rows")
    if job.use_lora and job.stack and start is not None and is_lora(start):
        exit_on_failure(scale_of(start))
    return Folders(base, start, reference)


def load_job(job: Job, files: JobFiles) -> LoadedJob:
    """The job's model, tokenizer and rows; ends the process with a line if they do not fit."""
    folders = folders_of(job, files)
    if job.base_precision in ("8-bit", "4-bit"):
        exit_on_failure(require("bitsandbytes", extra="quantized"))
    tokenizer = load_tokenizer(folders.base)
    exit_on_failure(check_tokenizer(folders.base, tokenizer))
    model = load_trainable(job, folders.base, folders.start)
    encoded = encode_rows(tokenizer, job.rows, context_of(model))
    if not encoded.rows:
        sys.exit(f"{job.name} has no rows that {job.model} can hold")
    return LoadedJob(folders, model, tokenizer, encoded)
