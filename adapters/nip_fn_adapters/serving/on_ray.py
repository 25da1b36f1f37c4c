"""vLLMs on the nodes of a Ray cluster, which places them, and places them again.

Each vLLM is an actor with as many GPUs as it needs (without any, one core).  Files travel through
Ray: nodes need no common disk, but nip-fn in Ray's Python, and vLLM where the server has it.  A
replica keeps its address at the server wherever its node is: connections are passed on.
"""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, one_line
from nip_fn_adapters import clock
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.serving.gpus import gpu_memory
from nip_fn_adapters.serving.machines import Adapters, Gpus, Process, Tell, start_vllm
from nip_fn_adapters.serving.processes import rotate
from nip_fn_adapters.serving.settings import FleetSettings
from nip_fn_adapters.serving.wire import Launch, Refusal

END_SECONDS = 30.0  # for a vLLM to end when it is asked
NOTICE_SECONDS = 120.0  # in which Ray notices that a node is gone
LOOK_SECONDS = 2.0  # between two looks at vLLM's log
LOST = "its node was lost"

Files = Mapping[str, bytes]  # of one folder, by name


def read_files(folder: Path) -> Files:
    """The files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def write_files(folder: Path, files: Files) -> Path:
    """The folder, with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)
    return folder


def free_address() -> tuple[str, int]:
    """The address of this node in the cluster, and a port that is free now."""
    host = ray.util.get_node_ip_address()
    with socket.socket() as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]


def num_gpus() -> int:
    """The GPUs of all nodes together."""
    return int(ray.cluster_resources().get("GPU", 0))


def keeps_serving(chosen: bool | None, machines: int, gpus: int) -> Result[bool, Problem]:
    """True if vLLM keeps its resources while trainings run.

    Args:
        chosen: By the user; None: if the cluster has room for both.
        machines: Those that all trainings take at one time.
        gpus: The GPUs that each of these takes; without any in the cluster, it takes a core.
    """
    unit, for_training = ("GPU", machines * gpus) if num_gpus() else ("CPU", machines)
    number = int(ray.cluster_resources().get(unit, 0))
    # Of a cluster that is still empty nothing is known.
    has_room = not 0 < number <= for_training
    if chosen and not has_room:
        return Failure(
            Problem(
                f"the Ray cluster has {number} {unit}, and trainings take {for_training}: with "
                "vLLM beside them they would wait for ever",
                "--keep-serving",
                "leave it out, so that they take turns, or add a node",
            )
        )
    return Success(has_room if chosen is None else chosen)


def needs(gpus: int) -> dict[str, int]:
    """The resources of an actor with so many GPUs; without any, it needs a core."""
    return {"num_gpus": gpus, "num_cpus": 0 if gpus else 1}


async def copy_log(actor: Any, log: Path) -> None:
    """Add to a log what the log of an actor holds beyond it."""
    printed = await actor.printed.remote(log.stat().st_size)
    with log.open("ab") as file:
        file.write(printed)


class _Node:
    """One vLLM on the node where Ray has placed this actor."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._folder = Path(tempfile.mkdtemp(prefix="nip-fn-vllm-"))
        self._log = self._folder / "vllm.log"
        self._process: Process | None = None

    async def start(
        self, settings: FleetSettings, launch: Launch, adapters: Mapping[str, Files]
    ) -> Result[tuple[str, int], str]:
        """The address of a vLLM that has begun to start; or why it could not."""
        host, port = free_address()
        model = await asyncio.to_thread(model_directory, launch.needs.model_name)
        if not is_successful(model):
            return Failure(str(model.failure()))
        launch = launch._replace(model=str(model.unwrap()), host=host, port=port)
        loras = {name: await self.place(name, files) for name, files in adapters.items()}
        gpus = tuple(map(str, ray.get_gpu_ids()))
        begun = start_vllm(settings, launch, gpus, loras, self._log)
        if not is_successful(begun):
            return Failure(begun.failure())
        self._process = begun.unwrap()
        return Success((host, port))

    async def place(self, name: str, files: Files) -> Path:
        """Write an adapter down; the folder that it is in then."""
        return await asyncio.to_thread(write_files, self._folder / "adapters" / name, files)

    def printed(self, read: int) -> bytes:
        """The bytes that vLLM has printed after the first `read`."""
        return self._log.read_bytes()[read:]

    def note_life(self) -> None:
        """Take what vLLM has printed so far for no cause of its end."""
        assert self._process is not None
        self._process.note_life()

    async def wait(self) -> str:
        """The reason of vLLM's end."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End vLLM."""
        if self._process is not None:
            await self._process.end()

    async def clear(self) -> None:
        """Leave no files."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


class Gate:
    """A port of this machine whose connections are passed on to an address in the cluster."""

    _server: asyncio.Server

    def __init__(self, host: str, port: int) -> None:
        """Pass on to that address, from `open` to `close`."""
        self._to = host, port
        self._links = set[asyncio.Task[None]]()

    async def open(self, host: str, port: int) -> int:
        """The port that is bound: `port`, or any free one if it is 0."""
        self._server = await asyncio.start_server(self._link, host, port)
        bound_port: int = self._server.sockets[0].getsockname()[1]
        return bound_port

    def close(self) -> None:
        """Listen no more, and end all connections: a node that is lost would end none."""
        self._server.close()
        for link in self._links:
            link.cancel()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            # Python 3.11 prints a traceback for the handler of a connection that is cancelled.
            with suppress(OSError, asyncio.CancelledError), closing(writer):
                there, back = await asyncio.open_connection(*self._to)
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            self._links.discard(link)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


class _RemoteProcess:
    """A vLLM on a node, and the server's port that leads to it."""

    def __init__(self, actor: Any, log: Path, gate: Gate) -> None:
        """Take over the actor and the port; all that it prints is copied to a new file `log`."""
        self._actor, self._log, self._gate = actor, log, gate
        log.parent.mkdir(parents=True, exist_ok=True)
        rotate(log)
        log.touch()
        # While it runs: a node that is lost takes its files along.
        self._following = asyncio.create_task(self._follow())

    def note_life(self) -> None:
        """Take what it has printed so far for no cause of its end: it answers."""
        self._actor.note_life.remote()

    async def wait(self) -> str:
        """The reason of its end, once nothing of it is left."""
        try:
            reason: str = await self._actor.wait.remote()
        except RayActorError:
            return LOST
        return reason

    async def end(self) -> None:
        """End it, and give its resources back."""
        self._gate.close()
        self._following.cancel()
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._actor.stop.remote()
                await copy_log(self._actor, self._log)
                await self._actor.clear.remote()
        ray.kill(self._actor)

    async def _follow(self) -> None:
        with suppress(RayError):  # its end is noticed otherwise
            while True:
                await copy_log(self._actor, self._log)
                await asyncio.sleep(LOOK_SECONDS)

    async def place(self, name: str, folder: Path) -> Path:
        """The folder in which it finds an adapter that is in `folder` here."""
        files = await asyncio.to_thread(read_files, folder)
        with suppress(RayActorError):  # its end is noticed otherwise
            folder = await self._actor.place.remote(name, files)
        return folder


class RayCluster:
    """Starts vLLMs on the nodes of the cluster that this process has joined."""

    can_sleep = False  # Ray would still hold the GPUs for the one that sleeps
    can_share = False

    def __init__(self, settings: FleetSettings, for_training: int) -> None:
        """Start nothing yet; `for_training`: GPUs that are left to trainings."""
        self._settings, self._for_training = settings, for_training

    async def look(self) -> Result[Gpus, Refusal]:
        """The GPUs of all nodes, without those for trainings."""
        number = num_gpus()
        if not number:
            return Success(Gpus((), 0.0))
        memory = await ray.remote(num_gpus=1)(gpu_memory).remote()
        names = tuple(map(str, range(max(1, number - self._for_training))))
        return Success(Gpus(names, min((gpu.total for gpu in memory), default=0.0)))

    async def start(
        self, launch: Launch, gpus: Sequence[str], loras: Adapters, tell: Tell
    ) -> Result[Process, str]:
        """A vLLM that has begun to start on a node; or why it could not."""
        end = clock.monotonic() + NOTICE_SECONDS
        while True:
            tell("it waits for room on a node of the Ray cluster")
            begun = await self._start_once(launch, len(gpus), loras)
            # No crash of vLLM: until Ray notices that a node is gone, it may choose it again.
            if begun != Failure(LOST) or clock.monotonic() >= end:
                tell("")
                return begun
            await asyncio.sleep(1.0)

    async def _start_once(self, launch: Launch, gpus: int, loras: Adapters) -> Result[Process, str]:
        actor = ray.remote(_Node).options(**needs(gpus), scheduling_strategy="SPREAD").remote()
        with ExitStack() as undo:
            undo.callback(ray.kill, actor)
            try:
                await actor.__ray_ready__.remote()
                files = {name: read_files(folder) for name, folder in loras().items()}
                begun = await actor.start.remote(self._settings, launch, files)
                if not is_successful(begun):
                    return Failure(begun.failure())
                gate = Gate(*begun.unwrap())
                await gate.open(self._settings.host, launch.port)
            except (RayError, OSError) as error:
                return Failure(LOST if isinstance(error, RayActorError) else one_line(error))
            undo.pop_all()
            return Success(_RemoteProcess(actor, self._settings.log(launch.port), gate))
