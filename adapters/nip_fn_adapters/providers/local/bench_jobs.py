"""The trainings of a run once more, whole: by trl in new interpreters, and packed in forks.

Start-up is counted, too: a new interpreter imports all that a training needs, a fork has it.
"""

import asyncio
import resource
import subprocess
import sys
from math import inf
from pathlib import Path
from shutil import copyfile, copytree
from tempfile import TemporaryDirectory
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.training.packing import pack
from nip_fn_adapters.processes.endings import exit_reason
from nip_fn_adapters.providers.local.children import train_in_child
from nip_fn_adapters.providers.local.jobs import JobFiles, failure_reason, finished, read_job
from nip_fn_adapters.providers.local.models import (
    context_of,
    load_base,
    load_tokenizer,
    model_directory,
)
from nip_fn_adapters.providers.local.rows import encode_rows
from nip_fn_adapters.providers.local.steps import batches
from nip_fn_adapters.providers.local.tuner import CHILD, PRELOADED
from nip_fn_adapters.providers.local.warm import warm_children

WAYS = ("plain", "packed")


class Cost(NamedTuple):
    """The cost of all trainings of a run."""

    trainings: int
    seconds: float  # of the processor, with all that starts and ends
    read: int  # tokens that the model has read in the trainings' steps
    distinct: int  # tokens of the steps, each once in a step


def measure_run(run: Path, repeats: int, threads: int) -> Result[dict[str, Cost], Problem]:
    """The cost of each way, the least of so many turns."""
    names = sorted(path.parent.name for path in run.glob("jobs/*/job.msgpack"))
    if not names:
        told = f"{run} has no trainings on this machine"
        return Failure(Problem(told, remedy='name the folder of a run by the provider "local"'))
    costs, distinct = dict[str, Cost](), _distinct(run, names)
    for _ in range(repeats):
        for way in WAYS:
            with TemporaryDirectory() as folder:
                _copy(run, Path(folder), names)
                before = _processor_seconds()
                command = (sys.executable, "-m", __name__, way, folder, str(threads))
                done = subprocess.run(command, capture_output=True, text=True)
                seconds = _processor_seconds() - before
                if done.returncode:
                    return Failure(Problem(f"{way}: {exit_reason(done.returncode, done.stderr)}"))
                cost = Cost(len(names), seconds, _read(Path(folder), names), distinct)
            costs[way] = min(costs.get(way, cost), cost, key=lambda cost: cost.seconds)
    return Success(costs)


def _copy(run: Path, folder: Path, names: list[str]) -> None:
    """The trainings as they were before they began."""
    copytree(run / "adapters", folder / "adapters")
    for name in names:
        (folder / "jobs" / name).mkdir(parents=True)
        copyfile(run / "jobs" / name / "job.msgpack", folder / "jobs" / name / "job.msgpack")


def _processor_seconds() -> float:
    """Those of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(folder: Path, names: list[str]) -> int:
    """The tokens that the models have read."""
    trainings = [JobFiles(folder, name) for name in names]
    done = [finished(files, read_job(files)) for files in trainings]
    return sum(int(dict(tuned.report)["forwarded_tokens"]) for tuned in done if tuned is not None)


def _distinct(run: Path, names: list[str]) -> int:
    """The distinct tokens of each step, in all."""
    count = 0
    for name in names:
        job = read_job(JobFiles(run, name))
        folder = model_directory(job.model).unwrap()
        encoded = encode_rows(load_tokenizer(folder), job.rows, context_of(load_base(folder)))
        for _, members in batches(job, encoded, job.batch_size):
            (packed,) = pack([encoded.rows[row] for row in members], inf)
            count += len(packed.tokens)
    return count


async def _train_all(way: str, folder: Path, threads: int) -> None:
    """Train all jobs, one after the other; end this process with a line if one fails."""
    run = warm_children(*PRELOADED) if way == "packed" else None
    for path in sorted(folder.glob("jobs/*")):
        files = JobFiles(folder, path.name)
        arguments = ["-m", CHILD, str(folder), path.name, str(threads)]
        arguments += [] if way == "packed" else [way]
        code = await train_in_child(arguments, files, threads, lambda: None, run)
        if code:
            sys.exit(f"{path.name}: {failure_reason(files, code)}")


if __name__ == "__main__":
    way, folder, threads = sys.argv[1:]
    asyncio.run(_train_all(way, Path(folder), int(threads)))
