"""A machine with a language-model server, the real one but for vLLM and the trainings.

It may die, lose power, or be replaced by an empty one; its vLLMs crash, hang and forget adapters.
"""

import asyncio
import shutil
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from returns.result import Result, Success

from nip_fn.training.canary import Score
from nip_fn_adapters.providers.local.jobs import (
    JobFiles,
    JobResult,
    job_hash,
    read_job,
    write_result,
)
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.serving.app import make_app
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.in_vllm.nip_fn_access import LIVENESS
from nip_fn_adapters.serving.machines import Adapters, Gpus, Process, Tell
from nip_fn_adapters.serving.running import Access
from nip_fn_adapters.serving.service import Service
from nip_fn_adapters.serving.settings import FleetSettings, ServerSettings
from nip_fn_adapters.serving.wire import Launch, Refusal

from ..adapters.serving import config, lora, write_adapter
from .disk import Disk, Image
from .faults import Faults
from .laws import Auditor
from .loop import Process as SimulatedProcess
from .loop import VirtualLoop
from .network import Answer, Asked, Network, context_of
from .provider import Provider

HOST, PORT, VLLM_PORT = "gpu.test", 5000, 8000
BASE = "builtin:tea"
BEFORE, AFTER = -1.0, -2.0  # nats of any token, under the base model and under any adapter


@cache
def _adapter_files() -> dict[str, bytes]:
    """The files of an adapter that passes all checks."""
    with TemporaryDirectory() as folder:
        written = write_adapter(Path(folder) / "adapter", lora(rank=1), config(rank=1))
        return {path.name: path.read_bytes() for path in written.iterdir()}


class Vllm:
    """A vLLM: a process of the server's, and who answers on its port."""

    def __init__(self, machine: "Machine", port: int, loras: Mapping[str, Path]) -> None:
        self.key, self.process = machine.key, machine.process
        self._machine, self._faults, self._loop = machine, machine.faults, machine.loop
        self._loaded = set(loras)
        self._over = asyncio.get_running_loop().create_future()
        random = self._faults.random
        self._online_at = self._loop.now + 10 ** random.uniform(-1, 2)
        self._hangs_at = float("inf")
        self._is_asleep = False
        later = self._online_at + 10 ** random.uniform(-1, 3)
        if self._faults.hits("vLLM crash"):
            self._loop.call_at(later, self._crash)
        if self._faults.hits("vLLM hang"):
            self._hangs_at = later
            machine.auditor.reach("a vLLM that hangs")

    def _crash(self) -> None:
        if not self._over.done():
            self._machine.auditor.reach("a vLLM that crashes")
            self._over.set_result("it was killed by SIGKILL")

    def note_life(self) -> None:
        """It prints nothing."""

    async def wait(self) -> str:
        return str(await asyncio.shield(self._over))

    async def end(self) -> None:
        if not self._over.done():
            self._over.set_result("it was ended")

    async def place(self, name: str, folder: Path) -> Path:
        return folder

    def is_away(self) -> bool:
        return self._over.done() or self.process.is_dead or self._loop.now < self._online_at

    async def answer(self, asked: Asked) -> Answer:
        if self._loop.now >= self._hangs_at and asked.url.path != "/health":
            await self._over
        body: Any = msgspec.json.decode(asked.body) if asked.body else {}
        match asked.url.path:
            case "/health":
                return Answer(200, b"")
            case path if path == LIVENESS:
                return _json({"dtype": "float32"})
            case "/v1/load_lora_adapter":
                self._loaded.add(body["lora_name"])
            case "/v1/unload_lora_adapter":
                self._loaded.discard(body["lora_name"])
            case "/v1/models":
                return _json({"data": [{"id": name} for name in (BASE, *sorted(self._loaded))]})
            case "/sleep":
                self._is_asleep = True
                self._machine.auditor.reach("a vLLM that sleeps")
            case "/wake_up":
                self._is_asleep = False
            case "/tokenize":
                return _json({"tokens": [7], "max_model_len": 100})
            case "/v1/completions" if self._has(body["model"]):
                score = BEFORE if body["model"] == BASE else AFTER
                return _json({"choices": [{"logprobs": {"token_logprobs": [score]}}]})
            case "/v1/chat/completions" if self._has(body["model"]):
                if self._is_asleep:
                    return _json({"error": {"message": "asleep"}}, 503)
                return await self._machine.provider.answer(asked)
            case _:
                return _json({"error": {"message": "The model does not exist."}}, 404)
        return Answer(200, b"")

    def _has(self, model: str) -> bool:
        if self._loaded and self._faults.hits("adapter lost"):
            self._loaded.discard(sorted(self._loaded)[0])
            self._machine.auditor.reach("an adapter that vLLM has lost")
        return model == BASE or model in self._loaded


class _Here:
    """The machine as the server's fleet sees it."""

    can_sleep = can_share = True

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine

    async def look(self) -> Result[Gpus, Refusal]:
        return Success(Gpus(("0", "1"), 80.0))

    async def start(
        self, launch: Launch, gpus: Any, loras: Adapters, tell: Tell
    ) -> Result[Process, str]:
        vllm = Vllm(self._machine, launch.port, loras())
        for host in ("127.0.0.1", HOST):
            self._machine.network.servers[f"{host}:{launch.port}"] = vllm
        return Success(vllm)


class Machine:
    """The server, and what happens to it."""

    def __init__(
        self,
        disk: Disk,
        faults: Faults,
        auditor: Auditor,
        network: Network,
        loop: VirtualLoop,
        provider: Provider,
    ) -> None:
        self.disk, self.faults, self.auditor = disk, faults, auditor
        self.network, self.loop, self.provider = network, loop, provider
        self.key, self.process = provider.key, SimulatedProcess("server")
        self.service: Service | None = None
        self._app: Any = None
        self._image: Image | None = None
        self._accepted: set[str] = set()  # jobs
        self._keeps_serving = faults.random.random() < 0.5
        self._replicas = faults.random.choice((1, 2))
        self._seconds = 10 ** faults.random.uniform(0, 2)  # of a training
        network.servers[f"{HOST}:{PORT}"] = self
        for port in range(VLLM_PORT, VLLM_PORT + 2):
            for host in ("127.0.0.1", HOST):
                network.servers[f"{host}:{port}"] = _Nobody(provider.key)

    # ------------------------------------------------------------------------------ its lifetime

    def start(self) -> None:
        """Start the server."""
        self.process = SimulatedProcess("server")
        context = context_of(self.process)
        self.loop.create_task(self._serve(), context=context)

    async def _serve(self) -> None:
        state = self.disk.root / "state"
        settings = FleetSettings(
            ("vllm",), self.disk.root, self.key, HOST_OF_VLLM, VLLM_PORT, self._replicas
        )
        fleet = Fleet(settings._replace(local_only=False), model_directory, _Here(self))
        options = ServerSettings(state, token=self.key, keep_serving=self._keeps_serving)
        try:
            service = Service(options, fleet, self._train)
        except OSError:  # of a disk that is full
            self.loop.call_later(5.0, self.start)
            return
        except Exception as error:
            self.auditor.bugs_are_not_met(error)
            return
        self.auditor.accepted_jobs_survive(self._accepted - set(service.queue._tickets))
        await service.open()
        self.service, self._app = service, Access(make_app(service), self.key, local_only=False)
        await service.queue.work()

    def die(self, cause: str) -> None:
        """It dies now."""
        if self.process.is_dead:
            return
        self.auditor.reach("a server that dies")
        if any(ticket.status == "running" for ticket in self._tickets()):
            self.auditor.reach("a server that dies while it trains")
        power = cause == "power cut"
        random = self.faults.random
        self._image = self.disk.image_after_power_cut(random) if power else self.disk.image()
        self.process.is_dead, self._app = True, None
        if cause == "replaced":
            self._image, self._accepted = Image({self.disk.root: None}), set()
            self.auditor.reach("a server in place of another")
        self.loop.create_task(self._bury(), context=context_of(SimulatedProcess("undertaker")))

    def _tickets(self) -> list[Any]:
        return list(self.service.queue._tickets.values()) if self.service else []

    async def _bury(self) -> None:
        while self.process.tasks:
            for task in self.process.tasks:
                task.cancel()
            await asyncio.wait(tuple(self.process.tasks))
        assert self._image is not None
        self.disk.restore(self._image)
        await asyncio.sleep(10 ** self.faults.random.uniform(-1, 2))
        self.start()

    def disturb(self) -> None:
        """Plan its death, once in a while."""
        seconds = 10 ** self.faults.random.uniform(-1, 3)
        for kind, cause in (
            ("server death", "kill"),
            ("server power cut", "power cut"),
            ("server replaced", "replaced"),
        ):
            if self.faults.hits(kind):
                self.loop.call_later(seconds, self.die, cause)
                return

    # ----------------------------------------------------------------------------------- its work

    def is_away(self) -> bool:
        return self._app is None

    async def answer(self, asked: Asked) -> Answer:
        service, app, process = self.service, self._app, self.process
        if service is None or app is None:
            raise asyncio.CancelledError
        match asked.url.path.strip("/").split("/"):
            # litestar reads files in threads, which have a time of their own
            case ["adapters", name, file] if asked.method == "GET":
                path = service.adapters.file(name, file)  # type: ignore[arg-type]
                content = path.map(lambda path: Answer(200, path.read_bytes()))
                missing = _json({"detail": "there is no such adapter"}, 404)
                return content.value_or(missing)
        answer = await _ask(app, asked)
        if process.is_dead:
            raise asyncio.CancelledError
        match asked.method, asked.url.path.strip("/").split("/"):
            case "PUT", ["training", "jobs", job_id] if answer.status == 200:
                self._accepted.add(job_id)
        return answer

    async def _train(self, state: Path, job_id: str, started: Any) -> int:
        random, files = self.faults.random, JobFiles(state, job_id)
        self.auditor.a_training_is_not_repeated(
            job_id, self.disk.durable(files.folder / "result.json")
        )
        await asyncio.sleep(random.expovariate(1.0))
        started()
        await asyncio.sleep(random.expovariate(1.0) * self._seconds)
        files.log.write_text("a line\n")
        if self.faults.hits("failed training"):
            return -9
        job = read_job(files)
        seed = msgspec.json.encode((job.seed, job.data_hash, job.start))
        adapter = f"{job.name}-{blake2b(seed, digest_size=4).hexdigest()}"
        folder = files.adapters / adapter
        if not folder.exists():
            shutil.rmtree(files.unfinished, ignore_errors=True)
            files.unfinished.mkdir()
            for name, content in _adapter_files().items():
                (files.unfinished / name).write_bytes(content)
                self.disk.sync_now(files.unfinished / name)
            self.disk.sync_now(files.unfinished)
            files.unfinished.rename(folder)
            self.disk.sync_now(files.adapters)
        scores = (Score(BEFORE, AFTER),) * 2 * len(job.probes)
        report = (("rows", float(len(job.rows))),)
        write_result(files, JobResult(job_hash(job), adapter, report, scores))
        return 0


HOST_OF_VLLM = "127.0.0.1"


class _Nobody:
    """Nobody listens there."""

    def __init__(self, key: str) -> None:
        self.key, self.process = key, SimulatedProcess("nobody")

    def is_away(self) -> bool:
        return True

    async def answer(self, asked: Asked) -> Answer:
        raise AssertionError


async def _ask(app: Any, asked: Asked) -> Answer:
    """The answer of an ASGI application."""
    headers = [(name.lower().encode(), text.encode()) for name, text in asked.headers.items()]
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"},
        **{"method": asked.method, "path": asked.url.path, "raw_path": asked.url.path.encode()},
        **{"query_string": asked.url.query_string.encode(), "headers": headers, "root_path": ""},
        **{"client": ("10.0.0.1", 1), "server": (HOST, PORT), "state": {}, "extensions": {}},
    }
    scope["headers"].append((b"content-length", str(len(asked.body)).encode()))
    parts: list[bytes] = []
    status = 0
    bodies = [asked.body]

    async def receive() -> dict[str, Any]:
        if not bodies:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, b"".join(parts))


def _json(body: Any, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(body))
