"""Trainings on the nodes of a Ray cluster: each on one node, or on more by accelerate's
configuration (`num_machines`).

On each of its nodes a training has an actor that starts `accelerate launch`, as a server does on
its own machine.  Ray gives the actors of a training their GPUs at once, and takes all of them back
together; the first one's address joins their processes.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nip_fn.errors import one_line
from nip_fn.training.tuning import Job
from nip_fn_adapters.durable import replace_file, sync_path
from nip_fn_adapters.providers.local.children import LOOK_SECONDS
from nip_fn_adapters.providers.local.jobs import JobFiles, failure_reason, read_job, write_job
from nip_fn_adapters.serving.on_ray import (
    LOST,
    NOTICE_SECONDS,
    Files,
    copy_log,
    free_address,
    needs,
    num_gpus,
    read_files,
    write_files,
)
from nip_fn_adapters.serving.training import TrainingSettings, run_training

TRIES = 4  # of a training, if its nodes are lost
ROOM_SECONDS = 10.0  # after which it is told that a training waits for others to end

logger = logging.getLogger(__name__)


class _Order(NamedTuple):
    """A training, as it is sent to its nodes."""

    id: str
    job: Job
    adapters: Mapping[str, Files]  # that it starts from and compares with
    settings: TrainingSettings
    config: bytes  # accelerate's, if the settings name one


class _Left(NamedTuple):
    """The end of a training on one of its nodes."""

    code: int
    reason: str  # why it failed; "" if it did not
    job: Files  # the files of the job's folder
    adapters: Mapping[str, Files]  # that it made


class _Trainer:
    """A training's processes on the node where Ray has placed this actor."""

    def __init__(self) -> None:
        """Train nothing yet."""
        self._progress = self._log = Path(os.devnull)

    def address(self) -> tuple[str, int]:
        """An address at which the other nodes can reach this one."""
        return free_address()

    async def train(self, order: _Order) -> _Left:
        """The end of a training."""
        settings = order.settings
        with tempfile.TemporaryDirectory(prefix="nip-fn-training-") as folder:
            files = JobFiles(Path(folder), order.id)
            self._progress, self._log = files.progress, files.log
            write_job(files, order.job)
            for name, content in order.adapters.items():
                write_files(files.adapters / name, content)
            if settings.accelerate_config is not None:
                config = files.folder / "accelerate.yaml"
                config.write_bytes(order.config)
                settings = settings._replace(accelerate_config=config)
            code = await run_training(files.run, order.id, lambda: None, settings)
            made = [path for path in files.adapters.iterdir() if path.name not in order.adapters]
            return _Left(
                code,
                failure_reason(files, code) if code else "",
                read_files(files.folder),
                {path.name: read_files(path) for path in made},
            )

    def progress(self) -> bytes:
        """The training's record of its progress; b"" before the first."""
        return _content(self._progress)

    def printed(self, read: int) -> bytes:
        """The bytes that the training has printed after the first `read`."""
        return _content(self._log)[read:]


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


async def train_on_ray(
    folder: Path, name: str, started: Callable[[], None], settings: TrainingSettings
) -> int:
    """The exit code of a training on nodes, with its files here, as `training.run_training`.

    If a node is lost, others train it.
    """
    files, config = JobFiles(folder.absolute(), name), settings.accelerate_config
    job = read_job(files)
    order = _Order(
        name,
        job,
        {
            adapter: read_files(files.adapters / adapter)
            for adapter in {job.start, job.reference}
            if adapter
        },
        settings,
        b"" if config is None else config.read_bytes(),
    )
    for _ in range(TRIES):
        files.failure.unlink(missing_ok=True)
        files.log.write_bytes(b"")
        try:
            async with trainers_on_ray(settings) as trainers:
                looking = asyncio.create_task(_follow(trainers[0], files, started))
                try:
                    result = await _train(trainers, order)
                finally:
                    looking.cancel()
        except RayActorError as error:
            replace_file(files.failure, f"{LOST}: {one_line(error)}".encode())
            logger.warning("the training %s has ended: %s", name, LOST)
            continue
        for adapter in result.adapters.keys() - {path.name for path in files.adapters.iterdir()}:
            write_files(files.unfinished, result.adapters[adapter]).rename(files.adapters / adapter)
            sync_path(files.adapters)
        write_files(files.folder, result.job)
        return result.code
    return 1


@asynccontextmanager
async def trainers_on_ray(settings: TrainingSettings) -> AsyncIterator[Sequence[Any]]:
    """An actor on each node of a training; nothing of them is left afterwards."""
    gpus = settings.gpus if num_gpus() else 0
    bundle = {"GPU": gpus} if gpus else {"CPU": 1}
    group = placement_group([bundle] * settings.machines, strategy="SPREAD")
    try:
        if not await asyncio.to_thread(group.wait, ROOM_SECONDS):
            resources = f"{gpus} GPUs" if gpus else "a core"
            message = "a training waits for room on the Ray cluster: %d times %s"
            logger.warning(message, settings.machines, resources)
        yield [
            ray.remote(_Trainer)
            .options(
                **needs(gpus), scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank)
            )
            .remote()
            for rank in range(settings.machines)
        ]
    finally:
        remove_placement_group(group)


async def _train(trainers: Sequence[Any], order: _Order) -> _Left:
    """The files that a training leaves: on its first node, or on the one for which it failed."""
    joined: tuple[str, ...] = ()
    if len(trainers) > 1:
        host, port = await trainers[0].address.remote()
        joined = ("--main_process_ip", host, "--main_process_port", str(port))
    ends = []
    for rank, trainer in enumerate(trainers):
        settings = order.settings._replace(options=(*joined, "--machine_rank", str(rank)))
        ends.append(trainer.train.remote(order._replace(settings=settings)))
    failed: list[_Left] = []
    waiting = set(map(asyncio.ensure_future, ends))
    try:
        while waiting:
            # Without the one that failed, others may wait for as long as their libraries let them.
            limit = NOTICE_SECONDS if failed else None
            finished, waiting = await asyncio.wait(
                waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if not finished:
                break
            failed += [end.result() for end in finished if end.result().code]
    finally:
        for end in waiting:
            end.cancel()
    # One that is killed breaks the others' connections, and they may notice it first.
    killed = [failure for failure in failed if failure.reason.startswith("killed")]
    first: _Left = (killed or failed or [await ends[0]])[0]
    return first


async def _follow(trainer: Any, files: JobFiles, started: Callable[[], None]) -> None:
    """Write down a training's progress and its log until this is cancelled."""
    with suppress(RayActorError):  # its end is noticed otherwise
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if progress := await trainer.progress.remote():
                replace_file(files.progress, progress)
                started()
            await copy_log(trainer, files.log)
