"""A fake language-model server: its HTTP interface on loopback, in a thread, without any model.

Chats are answered by the fake provider, which stands for vLLM.
"""

import asyncio
import threading
from contextlib import suppress
from hashlib import blake2b
from importlib.metadata import version
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace

from nip_fn.run.ports import Progress
from nip_fn.training.canary import Score
from nip_fn.training.tuning import Job
from nip_fn_adapters.serving.wire import (
    AdapterInfo,
    JobInfo,
    Needs,
    PublishAdapter,
    ReplicaStatus,
    ServedAdapter,
    ServerVersion,
    VllmState,
    VllmStatus,
)

BEFORE, AFTER = -7.0, -3.0  # of every probe, before any training and after it


class FakeServer:
    """A server from `with` to the end of the block; `stop` breaks every connection."""

    def __init__(self, vllm_port: int, token: str | None = None) -> None:
        self.vllm_port, self.token, self.port = vllm_port, token, 0
        self.version = version("nip-fn")
        self.vllm: list[VllmState] = ["online"]  # what it is found to be, look by look
        self.needs: list[Needs] = []  # that were asked for
        self.looks = 2  # at a job until it has ended
        self.outcome: dict[str, Any] = {}  # what differs in the ends of jobs
        self.refused: dict[str, str] = {}  # adapters, and why they cannot be served
        self.unable: list[str] = []  # why vLLM cannot be had, once each; "": a gateway says it
        self.jobs: dict[str, tuple[Job, JobInfo]] = {}
        self.files: dict[str, dict[str, bytes]] = {}  # of adapters
        self.owners: dict[str, str] = {}  # what is served for whom
        self.asked: list[tuple[str, str]] = []  # method and path of every request
        self.looked = threading.Event()  # somebody has looked at a job
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Its address; the same after another start."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Listen, where it did before."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        """Listen no more."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()

    def paths(self, method: str, part: str = "") -> list[str]:
        """The paths that were asked for so, in order."""
        return [path for how, path in self.asked if how == method and part in path]

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.Response:
        method, path, body = request.method, request.path, await request.read()
        self.asked.append((method, path))
        if self.unable and path != "/version":
            reason = self.unable.pop(0)
            return _failed(503, reason) if reason else web.Response(status=503, body=b"<html>")
        shown = request.headers.get("Authorization")
        if path != "/version" and self.token and shown != f"Bearer {self.token}":
            return _failed(401, "the token is missing or wrong")
        with suppress(msgspec.DecodeError):
            answer = self._answer(method, tuple(path.strip("/").split("/")), body)
            if isinstance(answer, web.Response):
                return answer
            return web.Response(body=msgspec.json.encode(answer))
        return _failed(400, "the body is not what it should be")

    def _answer(self, method: str, parts: tuple[str, ...], body: bytes) -> Any:
        match method, *parts:
            case ["GET", "version"]:
                return ServerVersion(self.version)
            case ["POST", "vllm", "start"]:
                self.needs.append(msgspec.json.decode(body, type=Needs))
                return self._status()
            case ["GET", "vllm", "status"]:
                return self._status()
            case ["GET", "adapters"]:
                return [
                    AdapterInfo(name, sum(map(len, files.values())), ())
                    for name, files in self.files.items()
                ]
            case ["GET", "adapters", name, file] if file in self.files.get(name, {}):
                return web.Response(body=self.files[name][file])
            case ["PUT", "adapters", name, file]:
                self.files.setdefault(name, {})[file] = body
                return None
            case ["POST", "adapters", name, "publish"]:
                return self._publish(name, msgspec.json.decode(body, type=PublishAdapter))
            case ["PUT", "training", "jobs", id]:
                return self._train(id, msgspec.json.decode(body, type=Job))
            case ["GET", "training", "jobs", id] if id in self.jobs:
                return self._look(id)
            case ["DELETE", "training", "jobs", id] if id in self.jobs:
                job, info = self.jobs[id]
                self.jobs[id] = job, replace(info, status="cancelled", reason="as asked for")
                return None
        return _failed(404, f"there is no {'/'.join(parts)}")

    def _status(self) -> VllmStatus:
        status = self.vllm.pop(0) if len(self.vllm) > 1 else self.vllm[0]
        error = "out of memory" if status == "crashed" else ""
        return VllmStatus(status, error, "m", (ReplicaStatus(self.vllm_port, status),))

    def _publish(self, name: str, wanted: PublishAdapter) -> Any:
        if name not in self.files:
            return _failed(404, f"there is no adapter {name}")
        reason = next((why for part, why in self.refused.items() if part in name), None)
        if reason is not None:
            return _failed(422, reason)
        self.owners[wanted.owner] = name
        return ServedAdapter(name, (AFTER,) * len(wanted.probes))

    def _train(self, id: str, job: Job) -> Any:
        known = self.jobs.get(id)
        if known is not None and known[0] != job:
            return _failed(409, f"{id} is another job")
        if known is None or known[1].status == "failed":
            missing = {job.start, job.reference} - {None, *self.files}
            if missing:
                return _failed(422, f"there is no adapter {missing.pop()}")
            self.jobs[id] = job, JobInfo(id, "pending", place=len(self.jobs))
        return self.jobs[id][1]

    def _look(self, id: str) -> JobInfo:
        """The job one step further."""
        job, info = self.jobs[id]
        if info.status in ("pending", "running"):
            step = min((info.progress.step if info.progress else 0) + 1, self.looks)
            progress = Progress(step, self.looks, loss=0.7 / step, seconds_left=1.0)
            info = replace(info, status="running", place=0, progress=progress)
            if step == self.looks:
                info = self._ended(job, info)
            self.jobs[id] = job, info
        self.looked.set()
        return info

    def _ended(self, job: Job, info: JobInfo) -> JobInfo:
        seed = repr((job.name, job.start, job.reference, job.seed, job.data_hash))
        adapter = f"{job.name}-{blake2b(seed.encode(), digest_size=4).hexdigest()}"
        scores = (Score(BEFORE, AFTER),) * len(job.probes)
        ended = replace(info, status="succeeded", adapter=adapter, scores=scores)
        ended = replace(ended, report=(("steps", float(self.looks)),), **self.outcome)
        if ended.adapter is not None:
            self.files[ended.adapter] = {
                "adapter_config.json": b'{"r": 12}',
                "adapter_model.safetensors": b"trained here",
            }
        return ended


def _failed(status: int, reason: str) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode({"detail": reason}))
