"""Training on the server's machine, through accelerate.

`python -m nip_fn_adapters.serving.training RUN JOB THREADS [OPTION ...]` is `accelerate launch` of
`nip_fn_adapters.providers.local.train` with these options: one training, on all devices of
accelerate's configuration.
"""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.providers.local.children import (
    cores,
    die_with_parent,
    run_child,
    train_in_child,
)
from nip_fn_adapters.providers.local.jobs import JobFiles, finished, read_job
from nip_fn_adapters.providers.local.models import exit_on_failure, first_line, require
from nip_fn_adapters.providers.local.progress import read_progress
from nip_fn_adapters.providers.local.tuner import CHILD


class TrainingSettings(NamedTuple):
    """The settings of all trainings."""

    accelerate_config: Path | None = None  # None: one process for each GPU, or one on the CPU
    hub_namespace: str | None = None  # a user or organisation to push finished adapters to
    threads: int = cores()
    options: tuple[str, ...] = ()  # of `accelerate launch`, which override the configuration
    machines: int = 1  # of a cluster, that share a training
    gpus: int = 1  # of each of these machines, where they have any


class _Configuration(msgspec.Struct):
    """The fields of accelerate's configuration that say on what it trains."""

    num_machines: Annotated[int, Meta(ge=1)] = 1
    num_processes: Annotated[int, Meta(ge=1)] = 1  # of all machines together
    use_cpu: bool = False


def over_machines(settings: TrainingSettings) -> Result[TrainingSettings, Problem]:
    """The settings, for the machines and the GPUs of accelerate's configuration."""
    path = settings.accelerate_config
    if path is None:
        return Success(settings)
    try:
        config = msgspec.yaml.decode(path.read_bytes(), type=_Configuration)
    except (OSError, msgspec.DecodeError) as error:
        return Failure(Problem(first_line(error), str(path)))
    machines, processes = config.num_machines, config.num_processes
    if processes % machines:
        problem = f"num_processes = {processes} is no multiple of num_machines = {machines}"
        return Failure(
            Problem(problem, str(path), "give each machine as many processes as any other")
        )
    gpus = 0 if config.use_cpu else processes // machines
    return Success(settings._replace(machines=machines, gpus=gpus))


async def run_training(
    folder: Path, name: str, started: Callable[[], None], settings: TrainingSettings
) -> int:
    """The exit code of a training, once all of its processes have ended.

    They are killed when the caller is cancelled, and die with this process.

    Args:
        folder: The server's folder; the job is in jobs/NAME.
        name: The job's id.
        started: Called when the training begins.
        settings: Those of all trainings.  An adapter that cannot be pushed to the hub stays here,
            with a warning in the log.
    """
    files = JobFiles(folder.absolute(), name)
    has_started = False

    def look() -> None:
        nonlocal has_started
        if not has_started and read_progress(files) is not None:
            has_started = True
            started()

    arguments = ["-m", __name__, str(files.run), name, str(settings.threads)]
    if settings.accelerate_config is not None:
        config = str(settings.accelerate_config.absolute())
        arguments += ["--config_file", config, *settings.options]
    code = await train_in_child(arguments, files, settings.threads, look)
    if settings.hub_namespace is not None:
        await _push(files, settings.hub_namespace)
    return code


async def _push(files: JobFiles, namespace: str) -> None:
    """Push the job's adapter to the hub, if it left one."""
    tuned = finished(files, read_job(files))
    if tuned is None or tuned.adapter is None:
        return
    arguments = (
        "-m",
        "nip_fn_adapters.providers.local.hub",
        str(files.adapters / tuned.adapter),
        namespace,
    )
    # Its end is not looked at: the run needs the adapter here, and a warning in the log is enough.
    with files.log.open("ab", buffering=0) as log:
        await run_child(arguments, log, {}, lambda: None)


def main() -> None:
    """Run `accelerate launch` in this process, for the job that the arguments name."""
    run, name, threads, *options = sys.argv[1:]
    die_with_parent()
    exit_on_failure(require("accelerate", "torch"))
    if not options:
        options = ["--config_file", str(_one_process_a_device(JobFiles(Path(run), name)))]
    sys.argv[1:] = [*options, "--module", CHILD, run, name, threads]
    # In this process, so that what is set above, to end with the parent, holds for the launcher.
    runpy.run_module("accelerate.commands.launch", run_name="__main__")


def _one_process_a_device(files: JobFiles) -> Path:
    """A configuration of accelerate for this machine."""
    import torch

    gpus = torch.cuda.device_count()
    # Without a configuration accelerate reads one in the user's home folder, which may want
    # anything.
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if gpus > 1 else "NO",
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": max(gpus, 1),
        "main_process_port": 0,  # any that is free
        "mixed_precision": "no",  # the training decides
        "use_cpu": not gpus,
        "debug": False,
    }
    path = files.folder / "accelerate.json"
    replace_file(path, msgspec.json.encode(config))
    return path


if __name__ == "__main__":
    main()
