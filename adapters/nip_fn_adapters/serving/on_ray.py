"""vLLMs and trainings on the nodes of a Ray cluster, which places them, and places them again.

Each vLLM is an actor with as many GPUs as it needs (without any, one core), each training a task
that Ray repeats where its node is lost.  Files travel through Ray: nodes need no common disk, but
nip-fn in Ray's Python, and vLLM where the server has it.  A replica keeps its address at the server
wherever its node is: connections are passed on.
"""

import asyncio
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import NodeDiedError, RayActorError, RayError, WorkerCrashedError
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn_adapters.api.replies import one_line
from nip_fn_adapters.local.jobs import JobFiles, read_job
from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.serving.gpus import gpu_memory
from nip_fn_adapters.serving.machines import Gpus, Process, start_vllm
from nip_fn_adapters.serving.processes import Ended
from nip_fn_adapters.serving.settings import FleetSettings
from nip_fn_adapters.serving.training import TrainingSettings, run_training
from nip_fn_adapters.serving.wire import Launch, Refusal
from nip_fn_adapters.store import replace_file, sync_path

END_SECONDS = 30.0  # for a vLLM to end when it is asked
NOTICE_SECONDS = 120.0  # in which Ray notices that a node is gone
LOOK_SECONDS = 1.0  # between two looks at a training
TRIES = 4  # of a training, if its nodes are lost
LOST = "its node was lost"

Files = Mapping[str, bytes]  # of one folder, by name


def connect(address: str) -> None:
    """Join the cluster at that address ("auto": one that was started on this machine).

    Raises:
        OSError: There is none.
    """
    if address != "auto":
        # Ray itself asks an address at which nobody answers for minutes.
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=10.0).close()
    ray.init(address=address, namespace="nip-fn", log_to_driver=False, logging_level="warning")


def _read(folder: Path) -> Files:
    """The files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _write(folder: Path, files: Files) -> Path:
    """The folder, with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)
    return folder


def num_gpus() -> int:
    """The GPUs of all nodes together."""
    return int(ray.cluster_resources().get("GPU", 0))


def _resources(gpus: int) -> dict[str, Any]:
    """The resources of an actor or a task that needs so many GPUs."""
    return {"num_gpus": gpus, "num_cpus": 0 if gpus else 1, "scheduling_strategy": "SPREAD"}


# ------------------------------------------------------------------------------------- vLLM


class _Address(NamedTuple):
    """The address of a vLLM in the cluster, and its log."""

    host: str
    port: int
    log: str


class _Node:
    """One vLLM on the node where Ray has placed this actor."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._folder = Path(tempfile.gettempdir(), f"nip-fn-vllm-{secrets.token_hex(8)}")
        self._process: Process | None = None

    async def start(
        self, settings: FleetSettings, launch: Launch, adapters: Mapping[str, Files]
    ) -> Result[_Address, str]:
        """The address of a vLLM that has begun to start; or why it could not."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        model = await asyncio.to_thread(model_directory, launch.served_name)
        if not is_successful(model):
            return Failure(str(model.failure()))
        launch = launch._replace(model=str(model.unwrap()), host=host, port=port)
        loras = {name: await self.place(name, files) for name, files in adapters.items()}
        gpus = tuple(map(str, ray.get_gpu_ids()))
        begun = start_vllm(settings, launch, gpus, loras, self._folder / "vllm.log")
        if not is_successful(begun):
            return Failure(begun.failure())
        self._process = begun.unwrap()
        return Success(_Address(host, port, f"{host}:{self._process.log}"))

    async def place(self, name: str, files: Files) -> Path:
        """Write an adapter down; the folder that it is in then."""
        return await asyncio.to_thread(_write, self._folder / "adapters" / name, files)

    async def wait(self) -> Ended:
        """The end of vLLM."""
        assert self._process is not None
        return await self._process.wait()

    async def end(self) -> None:
        """End vLLM, and leave nothing."""
        if self._process is not None:
            await self._process.end()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


class _RemoteProcess:
    """A vLLM on a node, and the server's port that leads to it."""

    def __init__(
        self, actor: Any, log: str, gate: asyncio.Server, links: set[asyncio.Future[Any]]
    ) -> None:
        """Take over the actor, the port, and the connections that it passes on."""
        self._actor, self.log, self._gate, self._links = actor, log, gate, links

    async def wait(self) -> Ended:
        """Its end, once nothing of it is left."""
        try:
            ended: Ended = await self._actor.wait.remote()
        except RayActorError:
            return Ended(LOST, LOST)
        return ended

    async def end(self) -> None:
        """End it, and give its resources back."""
        self._gate.close()
        # A node that is lost closes none of its connections.
        for link in tuple(self._links):
            link.cancel()
        with suppress(RayError, TimeoutError):
            await asyncio.wait_for(_value(self._actor.end.remote()), END_SECONDS)
        ray.kill(self._actor)

    async def place(self, name: str, folder: Path) -> Path:
        """The folder in which it finds an adapter that is in `folder` here."""
        files = await asyncio.to_thread(_read, folder)
        with suppress(RayActorError):  # its end is noticed otherwise
            folder = await self._actor.place.remote(name, files)
        return folder


class RayCluster:
    """Starts vLLMs on the nodes of the cluster that this process has joined."""

    can_sleep = False  # Ray would still hold the GPUs for the one that sleeps

    def __init__(self, settings: FleetSettings, for_training: int) -> None:
        """Start nothing yet; `for_training`: GPUs that are left to trainings."""
        self._settings, self._for_training = settings, for_training

    async def look(self) -> Result[Gpus, Refusal]:
        """The GPUs of all nodes, without those for trainings."""
        number = num_gpus()
        if not number:
            return Success(Gpus((), 0.0))
        memory = await _value(ray.remote(num_gpus=1)(gpu_memory).remote())
        names = tuple(map(str, range(max(1, number - self._for_training))))
        return Success(Gpus(names, min((gpu.total for gpu in memory), default=0.0)))

    async def start(
        self,
        launch: Launch,
        gpus: Sequence[str],
        loras: Callable[[], Mapping[str, Path]],
        tell: Callable[[str], None],
    ) -> Result[Process, str]:
        """A vLLM that has begun to start on a node; or why it could not."""
        end = time.monotonic() + NOTICE_SECONDS
        while (begun := await self._start_once(launch, len(gpus), loras, tell)) == Failure(LOST):
            # No crash of vLLM: until Ray notices that a node is gone, it may choose it again.
            if time.monotonic() >= end:
                break
            await asyncio.sleep(1.0)
        return begun

    async def _start_once(
        self,
        launch: Launch,
        gpus: int,
        loras: Callable[[], Mapping[str, Path]],
        tell: Callable[[str], None],
    ) -> Result[Process, str]:
        actor = ray.remote(_Node).options(**_resources(gpus)).remote()
        try:
            tell("it waits for room on a node of the Ray cluster")
            await actor.__ray_ready__.remote()
            files = {name: _read(folder) for name, folder in loras().items()}
            begun: Result[_Address, str] = await actor.start.remote(self._settings, launch, files)
            if not is_successful(begun):
                ray.kill(actor)
                return Failure(begun.failure())
            at = begun.unwrap()
            links = set[asyncio.Future[Any]]()
            gate = await asyncio.start_server(_to(at, links), self._settings.host, launch.port)
            tell("")
            return Success(_RemoteProcess(actor, at.log, gate, links))
        except (RayError, OSError) as error:
            ray.kill(actor)
            return Failure(LOST if isinstance(error, RayActorError) else one_line(error))
        except BaseException:
            ray.kill(actor)
            raise


def _to(
    at: _Address, links: set[asyncio.Future[Any]]
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """A handler that passes a connection on, and is one of `links` for as long as it does."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(at.host, at.port)
        except OSError:
            writer.close()
            return
        link = asyncio.gather(copy(reader, back), copy(there, writer))
        links.add(link)
        link.add_done_callback(links.discard)
        with suppress(asyncio.CancelledError):
            await link

    return handle


async def _value(reference: Any) -> Any:
    """The value of a reference, as a coroutine."""
    return await reference


# ------------------------------------------------------------------------------------- training


class _Look(NamedTuple):
    """A training as it is now."""

    progress: bytes
    log: bytes  # printed since the last look


class _Left(NamedTuple):
    """A training's end."""

    code: int
    job: Files  # the files of the job's folder
    adapters: Mapping[str, Files]  # that it made


async def train_on_ray(
    folder: Path, name: str, started: Callable[[], None], settings: TrainingSettings
) -> int:
    """The exit code of a training on a node, with its files here, as `training.run_training`.

    If its node is lost, another trains it.
    """
    files = JobFiles(folder.absolute(), name)
    job = read_job(files)
    needed = {one for one in (job.start, job.reference) if one is not None}
    adapters = {one: _read(files.adapters / one) for one in sorted(needed)}
    train = ray.remote(_train).options(max_retries=0, **_resources(min(1, num_gpus())))
    for _ in range(TRIES):
        looks = train.remote(name, _read(files.folder), adapters, settings)
        try:
            left = await _follow(looks, files, started)
        except (NodeDiedError, WorkerCrashedError) as error:
            replace_file(files.failure, f"{LOST}: {one_line(error)}".encode())
            continue
        finally:
            ray.cancel(looks, force=True)
        for adapter in left.adapters.keys() - {path.name for path in files.adapters.iterdir()}:
            _write(files.unfinished, left.adapters[adapter]).rename(files.adapters / adapter)
            sync_path(files.adapters)
        _write(files.folder, left.job)
        return left.code
    return 1


async def _follow(looks: Any, files: JobFiles, started: Callable[[], None]) -> _Left:
    """The end of a training; until then, its progress and its log are written down."""
    files.log.write_bytes(b"")
    async for reference in looks:
        look: _Look | _Left = await reference
        if isinstance(look, _Left):
            return look
        if look.progress:
            replace_file(files.progress, look.progress)
            started()
        with files.log.open("ab") as log:
            log.write(look.log)
    raise WorkerCrashedError


def _train(
    name: str, job: Files, adapters: Mapping[str, Files], settings: TrainingSettings
) -> Iterator[_Look | _Left]:
    """Train a job on this node, and look at it about once a second."""
    with tempfile.TemporaryDirectory(prefix="nip-fn-training-") as folder:
        files = JobFiles(Path(folder), name)
        _write(files.folder, job)
        for adapter, content in adapters.items():
            _write(files.adapters / adapter, content)
        files.adapters.mkdir(exist_ok=True)
        ended: list[int] = []

        def train() -> None:
            ended.append(asyncio.run(run_training(files.run, name, lambda: None, settings)))

        thread = threading.Thread(target=train)
        thread.start()
        read = 0
        while thread.is_alive():
            time.sleep(LOOK_SECONDS)
            look = _look(files, read)
            read += len(look.log)
            yield look
        left = {path.name: _read(path) for path in files.adapters.iterdir()}
        new = {adapter: files for adapter, files in left.items() if adapter not in adapters}
        yield _Left(ended[0], _read(files.folder), new)


def _look(files: JobFiles, read: int) -> _Look:
    progress = files.progress.read_bytes() if files.progress.exists() else b""
    log = files.log.read_bytes()[read:] if files.log.exists() else b""
    return _Look(progress, log)
