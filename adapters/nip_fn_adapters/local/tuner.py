"""Training in a child process, one for each job, which dies with its parent."""

import asyncio
from pathlib import Path

from returns.result import Failure, Result, Success

from nip_fn.run.ports import Follow, Tuned, Tuner
from nip_fn.training.jobs import Job
from nip_fn_adapters.local.children import cores, train_in_child
from nip_fn_adapters.local.hub import hub_model
from nip_fn_adapters.local.jobs import JobFiles, finished, last_words, write_job
from nip_fn_adapters.local.models import is_on_hub
from nip_fn_adapters.local.progress import read_progress

CHILD = "nip_fn_adapters.local.train"


def local_tuner(
    run: Path, *, parallel: int = 2, follow: Follow = lambda job, progress: None
) -> Tuner:
    """A tuner whose jobs and adapters lie in the folder `run`; at most `parallel` train at once.

    `follow` is told about once a second how far each job is.
    """
    places = min(parallel, cores())
    threads = max(1, cores() // places)
    free = asyncio.Semaphore(places)

    async def tune(job: Job) -> Result[Tuned, str]:
        files = JobFiles(run.absolute(), job.name)
        done = finished(files, job)
        if done is not None:
            return Success(done)
        if is_on_hub(job.model):  # the child does not go online
            found = await asyncio.to_thread(hub_model, job.model)
            if isinstance(found, Failure):
                return Failure(found.failure())
        async with free:
            write_job(files, job)
            code = await _train(files, threads, follow)
        done = finished(files, job)
        if done is not None:
            return Success(done)
        return Failure(f"training {job.name} failed ({last_words(files, code)}); see {files.log}")

    return tune


async def _train(files: JobFiles, threads: int, follow: Follow) -> int:
    """The exit code of the child that trains."""

    def look() -> None:
        progress = read_progress(files)
        if progress is not None:
            follow(files.name, progress)

    arguments = ("-m", CHILD, str(files.run), files.name, str(threads))
    return await train_in_child(arguments, files, threads, look)
