"""Training in a child process, one for each job, which dies with its parent."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

from returns.result import Failure, Result, Success

from nip_fn.finetune import Job
from nip_fn.ports import Tuned, Tuner
from nip_fn_adapters.local.jobs import JobFiles, finished, write_job

CHILD = "nip_fn_adapters.local.train"


def local_tuner(run: Path, *, parallel: int = 2) -> Tuner:
    """A tuner whose jobs and adapters lie in the folder `run`; at most `parallel` train at once."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    places = min(parallel, cores)
    threads = max(1, cores // places)
    free = asyncio.Semaphore(places)

    async def tune(job: Job) -> Result[Tuned, str]:
        files = JobFiles(run.absolute(), job.name)
        done = finished(files, job)
        if done is not None:
            return Success(done)
        async with free:
            shutil.rmtree(files.unfinished, ignore_errors=True)
            write_job(files, job)
            code = await _train(files, threads)
        done = finished(files, job)
        if done is not None:
            return Success(done)
        return Failure(f"training {job.name} failed ({_last_words(files, code)}); see {files.log}")

    return tune


async def _train(files: JobFiles, threads: int) -> int:
    """The exit code of the child that trains; it is killed when the caller is cancelled.

    The child reads from a pipe that nobody writes to: when this process dies, however it dies, the
    pipe ends and so does the child.
    """
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
    }
    with files.log.open("wb") as log:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-m", CHILD, str(files.run), files.name, str(threads)),
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which then decides
        )
    try:
        return await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def _last_words(files: JobFiles, code: int) -> str:
    """The last line that the child printed, or its exit code."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = files.log.read_text("utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {code}"
