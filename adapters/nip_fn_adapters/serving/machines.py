"""Machines that vLLM's processes run on: this one here, the nodes of a Ray cluster in `on_ray`."""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import one_line
from nip_fn_adapters import clock
from nip_fn_adapters.serving.gpus import gpu_memory, visible_gpus
from nip_fn_adapters.serving.in_vllm import nip_fn_access as access
from nip_fn_adapters.serving.processes import OwnedProcess, end_orphans
from nip_fn_adapters.serving.settings import FleetSettings, check_port
from nip_fn_adapters.serving.wire import Launch, Refusal, vllm_arguments

POLL_SECONDS = 0.2  # between two looks at a port that is taken

Adapters = Callable[[], Mapping[str, Path]]  # the folders of those that are to be served now
Tell = Callable[[str], None]  # is given what a start has to wait for


class Process(Protocol):
    """A vLLM that runs."""

    def note_life(self) -> None:
        """Take what it has printed so far for no cause of its end: it answers."""

    async def wait(self) -> str:
        """The reason of its end, once nothing of it is left."""

    async def end(self) -> None:
        """End it, and all that it has started."""

    async def place(self, name: str, folder: Path) -> Path:
        """The folder in which it finds an adapter that is in `folder` here."""


class Gpus(NamedTuple):
    """The GPUs of all machines together."""

    names: tuple[str, ...]
    gib: float  # of memory, in the smallest of them; 0: unknown


class Machines(Protocol):
    """Starts vLLMs."""

    @property
    def can_sleep(self) -> bool:
        """True if a vLLM can lend its GPUs' memory without its end."""

    @property
    def can_share(self) -> bool:
        """True if several vLLMs can have the same GPU."""

    async def look(self) -> Result[Gpus, Refusal]:
        """The GPUs; a refusal if vLLM cannot be started at all."""

    async def start(
        self, launch: Launch, gpus: Sequence[str], loras: Adapters, tell: Tell
    ) -> Result[Process, str]:
        """A vLLM that has begun to start, on so many GPUs; or why it could not.

        It will answer at this machine's port `launch.port`, with these adapters.
        """


class ThisMachine:
    """Starts vLLMs here."""

    can_sleep = can_share = True

    def __init__(self, settings: FleetSettings) -> None:
        """Start nothing yet."""
        self._settings = settings

    async def look(self) -> Result[Gpus, Refusal]:
        """The GPUs of this machine; a refusal if it has no vLLM."""
        program = self._settings.command[0]
        # Looked for here: otherwise a missing program would be restarted as one that crashes.
        if shutil.which(program) is None:
            return Failure(Refusal(f"there is no {program} to start vLLM with", status=503))
        names = await asyncio.to_thread(visible_gpus)
        memory = await asyncio.to_thread(gpu_memory)
        return Success(Gpus(names, min((gpu.total for gpu in memory), default=0.0)))

    async def start(
        self, launch: Launch, gpus: Sequence[str], loras: Adapters, tell: Tell
    ) -> Result[Process, str]:
        """A vLLM that has begun to start; or why it could not."""
        log = self._settings.log(launch.port)
        end_orphans(log)
        # A vLLM whose server was killed has the port until its reaper has ended it.  To count that
        # as crashes gave up the next server's vLLM: four tries with back-off take less than that.
        end = clock.monotonic() + self._settings.port_limit
        while not is_successful(free := check_port(self._settings.host, launch.port)):
            taken = str(free.failure())
            tell(taken)
            if clock.monotonic() >= end:
                return Failure(taken)
            await asyncio.sleep(POLL_SECONDS)
        return start_vllm(self._settings, launch, gpus, loras(), log)


def start_vllm(
    settings: FleetSettings,
    launch: Launch,
    gpus: Sequence[str],
    loras: Mapping[str, Path],
    log: Path,
) -> Result[Process, str]:
    """A vLLM on this machine that has begun to start; or why it could not."""
    modules = tuple((name, str(folder.absolute())) for name, folder in loras.items())
    command = (*settings.command, *vllm_arguments(launch._replace(loras=modules)))
    environment = _environment(gpus, settings, can_sleep=launch.can_sleep)
    try:
        return Success(OwnedProcess(command, environment, log))
    except OSError as error:
        return Failure(one_line(error))


def _environment(
    gpus: Sequence[str], settings: FleetSettings, *, can_sleep: bool
) -> Mapping[str, str]:
    """The environment of a vLLM: this process's, and settings that are not options."""
    paths = (str(Path(access.__file__).parent), os.environ.get("PYTHONPATH", ""))
    chosen = {
        # Not as an option, which every user of the machine could read.
        access.KEY_VARIABLE: settings.key,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # Longer than clients keep a connection (`api.endpoints.KEEP_ALIVE_SECONDS`, 15 s for
        # aiohttp's): a request is lost if it meets one that vLLM is closing.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder
    }
    if settings.local_only:
        chosen[access.LOCAL_VARIABLE] = "1"
    if can_sleep:
        chosen["VLLM_SERVER_DEV_MODE"] = "1"
    if gpus:
        chosen["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    usual = {
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        # Threads that spin while they wait take the cores from trainings and from one another.
        "OMP_WAIT_POLICY": "PASSIVE",
        # vLLM binds its threads to cores, all replicas of a machine to the same ones.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return {**usual, **os.environ, **chosen}
