"""Training in child processes, one for each job, which die with their parent."""

import asyncio
from functools import partial
from pathlib import Path

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.run.ports import FailedTraining, Follow, Tuned, Tuner
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.children import RunChild, cores, train_in_child
from nip_fn_adapters.providers.local.hub import hub_model
from nip_fn_adapters.providers.local.jobs import JobFiles, failure_reason, finished, write_job
from nip_fn_adapters.providers.local.models import is_on_hub
from nip_fn_adapters.providers.local.progress import read_progress
from nip_fn_adapters.providers.local.warm import warm_children
from nip_fn_adapters.results import bind_async

CHILD = "nip_fn_adapters.providers.local.train"
# What a training imports before it begins: five seconds of a processor.
PRELOADED = (
    "peft",
    "transformers.models.llama.modeling_llama",
    "nip_fn_adapters.providers.local.loading",
    "nip_fn_adapters.providers.local.packed",
    "nip_fn_adapters.providers.local.plain",
)


def local_tuner(
    run: Path, *, parallel: int = 2, follow: Follow = lambda job, progress: None
) -> Tuner:
    """A tuner that trains on this machine.

    Args:
        run: The folder that jobs and adapters are written to.
        parallel: The most jobs that train at once; the others wait.
        follow: Called about once a second with each job's progress.
    """
    slots = min(parallel, cores())
    threads = max(1, cores() // slots)
    free = asyncio.Semaphore(slots)
    run_child = warm_children(*PRELOADED)

    async def tune(job: Job) -> Result[Tuned, Problem]:
        files = JobFiles(run.absolute(), job.name)
        tuned = finished(files, job)
        if tuned is not None:
            return Success(tuned)
        return await bind_async(await _download(job.model), partial(train, files, job))

    async def train(files: JobFiles, job: Job, _: object) -> Result[Tuned, Problem]:
        async with free:
            write_job(files, job)
            code = await _train(files, threads, follow, run_child)
        tuned = finished(files, job)
        if tuned is not None:
            return Success(tuned)
        message = f"training {job.name} failed ({failure_reason(files, code)})"
        return Failure(FailedTraining(message, remedy=f"see {files.log}"))

    return tune


async def _download(model: str) -> Result[object, Problem]:
    """Success once a model of the hub is in the hub's cache: the child does not go online."""
    return await asyncio.to_thread(hub_model, model) if is_on_hub(model) else Success(None)


async def _train(files: JobFiles, threads: int, follow: Follow, run_child: RunChild) -> int:
    """The exit code of the child that trains."""

    def look() -> None:
        progress = read_progress(files)
        if progress is not None:
            follow(files.name, progress)

    arguments = ("-m", CHILD, str(files.run), files.name, str(threads))
    return await train_in_child(arguments, files, threads, look, run_child)
