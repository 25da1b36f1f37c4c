"""The HTTP server: what came, what goes wrong with it, who answers."""

import asyncio
import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from . import batches, jobs
from .chat import ChatRequest, Prefixes, Usage, complete, refusal_of
from .faults import BAD, BEFORE, ERRORS, GATEWAYS, IN_CHAT, UNANSWERED, Asked, Error, Faults
from .record import Came, Left, Log, Objects
from .settings import Fault, Settings, updated
from .shapes import Shape

PORTS = range(20_000, 32_000)  # below those that clients are given, so that none can be taken
JSON = "application/json"


class Answer(NamedTuple):
    """An answer to be sent."""

    status: int
    body: bytes
    usage: Usage = Usage()
    retry_after: int | float | str | None = None
    type: str = JSON


def failed(
    error: Error, retry_after: int | float | str | None = None, shape: Shape = "openai"
) -> Answer:
    """An error as an answer."""
    body = error.body(shape)
    kind = "text/html" if body.startswith(b"<") else JSON
    return Answer(error.status, body, retry_after=retry_after, type=kind)


class Pace:
    """A token bucket that limits the rate of chats."""

    def __init__(self, settings: Settings) -> None:
        self.rate = settings.requests_per_second
        self.size = settings.burst or max(1.0, self.rate or 0.0)
        self._left, self._at = self.size, time.monotonic()

    def left(self) -> float:
        now = time.monotonic()
        self._left = min(self.size, self._left + (now - self._at) * (self.rate or 0.0))
        self._at = now
        return self._left

    def take(self) -> bool:
        if self.rate is None:
            return True
        allowed = self.left() >= 1
        self._left -= allowed
        return allowed


class Server:
    """The provider, over the state in a folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.log, self.objects = Log(folder), Objects(folder)
        self._prefixes, self._chats = Prefixes(), 0
        self._begun: dict[int, Usage] = {}  # by request: what a chat under way will be billed
        self._decoder = msgspec.json.Decoder(ChatRequest)
        self.configure(settings)

    def configure(self, settings: Settings, changed: frozenset[str] | None = None) -> None:
        """Change settings; only what belongs to those that were `changed` begins anew."""
        self.settings = settings
        changed = frozenset(Settings.__struct_fields__) if changed is None else changed
        if "faults" in changed:
            self._faults = Faults(settings.faults)
        if "concurrency" in changed:
            self._line = asyncio.Semaphore(settings.concurrency or 1 << 30)
        if changed & {"requests_per_second", "burst"}:
            self._pace = Pace(settings)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        path = request.path
        if path.startswith("/control/"):
            return await self._control(request)
        began = time.monotonic()
        form = dict(await request.post()) if _is_form(request) else {}
        raw = b"" if form else await request.read()
        kind = _kind(path)
        body, chat = self._read(kind, raw)
        came = self._came(request, kind, raw, body, chat)
        asked = Asked(kind, request.method, path, raw, chat.model if chat else None)
        fault = self._faults.pick(asked)
        name = fault.fault if fault else None
        self.log.in_flight += 1
        answer: Answer | None = None
        try:
            answer = await self._answer(request, came, fault, form, body, chat)
        finally:
            self.log.in_flight -= 1
            cut = name in UNANSWERED
            status = None if answer is None or cut else answer.status
            # A model does not stop because nobody waits for it any more.
            begun = self._begun.pop(came.id, Usage())
            usage = answer.usage if answer else begun
            spent = round(time.monotonic() - began, 4)
            left = Left(came.id, status, name, spent, usage.prompt, usage.cached, usage.completion)
            self.log.write(left)
        return await self._send(request, answer, name, came)

    def _read(self, kind: str, raw: bytes) -> tuple[Any, ChatRequest | None]:
        """A body as JSON, for those that are small, and as a chat; None for what it is not."""
        try:
            if kind == "chat":
                return None, self._decoder.decode(raw)
            return (msgspec.json.decode(raw) if raw else {}), None
        except msgspec.DecodeError:
            return None, None

    def _came(
        self, request: web.BaseRequest, kind: str, raw: bytes, body: Any, chat: ChatRequest | None
    ) -> Came:
        keeps = self.settings.log_bodies and (chat or body)
        came = Came(
            id=self.log.next_id(),
            at=time.time(),
            kind=kind,
            method=request.method,
            path=request.path_qs,
            n=(chat.n or 1) if chat else 1,
            model=chat.model if chat else body.get("model") if isinstance(body, dict) else None,
            key_ok=self._key_of(request) is None,
            idempotency=request.headers.get("Idempotency-Key"),
            in_flight=self.log.in_flight + 1,
            bytes=len(raw),
            body=msgspec.Raw(raw) if keeps else msgspec.Raw(b"null"),
        )
        self.log.write(came)
        return came

    def _key_of(self, request: web.BaseRequest) -> str | None:
        """A key that is not the accepted one; None where the right one was shown."""
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return None if self.settings.key in (None, shown) else shown

    async def _answer(
        self,
        request: web.BaseRequest,
        came: Came,
        fault: Fault | None,
        form: dict[str, Any],
        body: Any,
        chat: ChatRequest | None,
    ) -> Answer:
        settings, name = self.settings, fault.fault if fault else ""
        if fault and (name in BEFORE or name in ERRORS):
            early = await self._fail(fault, request)
            if early is not None:
                return early
        if not came.key_ok:
            return failed(_unauthorised(request))
        if settings.max_body is not None and came.bytes > settings.max_body:
            return failed(ERRORS["413"])
        if came.kind == "chat":
            return await self._chat(request, came, name, chat)
        if came.kind == "models":
            return Answer(200, msgspec.json.encode(self._models()))
        return self._rest(request, came, form, body)

    async def _fail(self, fault: Fault, request: web.BaseRequest) -> Answer | None:
        """The answer of a fault that comes before all else; None: answer as if there were none."""
        if fault.fault == "slow":
            await asyncio.sleep(fault.seconds)
            return None
        if fault.fault == "die":
            os._exit(1)
        if fault.fault == "timeout":
            await asyncio.sleep(86_400)
        if fault.fault == "reset":
            return Answer(0, b"")
        error, retry_after = ERRORS[fault.fault], fault.retry_after
        if fault.fault == "401":
            error = _unauthorised(request)
        if fault.fault == "429-retry-after" and retry_after is None:
            retry_after = 1
        told = error._replace(message=fault.message or error.message)
        return failed(told, retry_after, self.settings.shape)

    async def _chat(
        self, request: web.BaseRequest, came: Came, fault: str, chat: ChatRequest | None
    ) -> Answer:
        settings = self.settings
        if chat is None:
            return failed(Error(400, "We could not parse the JSON body of your request.", BAD))
        body = msgspec.json.decode(came.body) if settings.refuses else {}
        error = refusal_of(chat, body, settings)
        if error is None and not self._serves(chat.model):
            message = f"The model '{chat.model}' does not exist or you do not have access to it."
            error = ERRORS["404-model"]._replace(message=message)
        if error is not None:
            return failed(error, shape=settings.shape)
        most = settings.in_flight_limit
        if not self._pace.take() or (most is not None and self._chats >= most):
            return failed(ERRORS["429"], settings.retry_after)
        self._chats += 1
        try:
            own = fault if fault in IN_CHAT else None
            sent, usage = complete(chat, settings, self._prefixes, own, f"{came.id:x}")
            self._begun[came.id] = usage
            async with self._line:
                await self._work(settings, came.body)
        finally:
            self._chats -= 1
        return Answer(200, sent, usage)

    async def _work(self, settings: Settings, body: msgspec.Raw) -> None:
        latency = settings.latency
        if isinstance(latency, tuple):
            low, high = latency
            latency = low + (high - low) * random.Random(bytes(body)).random()
        if latency:
            await asyncio.sleep(latency)

    def _serves(self, model: str) -> bool:
        if model.startswith("ft:"):
            return jobs.is_trained(self.objects, model)
        return self.settings.models is None or model in self.settings.models

    def _models(self) -> dict[str, Any]:
        trained = [job["fine_tuned_model"] for job in jobs.views(self.objects)]
        names = [*(self.settings.models or ("gpt-4.1-nano",)), *filter(None, trained)]
        data = [{"id": n, "object": "model", "created": 0, "owned_by": "system"} for n in names]
        return {"object": "list", "data": data}

    def _rest(
        self, request: web.BaseRequest, came: Came, form: dict[str, Any], body: Any
    ) -> Answer:
        """Files, jobs and batches."""
        query = dict(request.query)
        called = (request.method, tuple(request.path.strip("/").split("/")[1:]))
        found: Any
        if came.kind == "file":
            found = jobs.on_files(self.objects, *called, query, form)
        elif came.kind == "job":
            found = jobs.on_jobs(self.objects, *called, query, body, self.settings)
        elif came.kind == "batch":
            context = batches.Context(self.objects, self.settings, self.log, self._faults)
            found = batches.on_batches(context, *called, query, body, self._serves)
        else:
            found = ERRORS["404"]._replace(message=f"Unknown request URL: {request.path}")
        if isinstance(found, Error):
            return failed(found)
        if isinstance(found, bytes):
            return Answer(200, found, type="application/octet-stream")
        return Answer(200, msgspec.json.encode(found))

    async def _send(
        self, request: web.BaseRequest, answer: Answer, fault: str | None, came: Came
    ) -> web.StreamResponse:
        if fault == "die-after":
            os._exit(1)
        if fault == "timeout-after":
            await asyncio.sleep(86_400)
        if fault in ("reset", "lost"):
            _reset(request)
            return web.Response()
        if fault in GATEWAYS:
            return web.Response(status=GATEWAYS[fault], body=b"<html></html>")
        body = answer.body[: len(answer.body) // 2] if fault == "malformed" else answer.body
        headers = self._headers(answer, came)
        if fault == "reset-mid-body":
            return await _break_off(request, body, headers)
        return web.Response(status=answer.status, body=body, headers=headers)

    def _headers(self, answer: Answer, came: Came) -> dict[str, str]:
        headers = {"Content-Type": answer.type, "x-request-id": f"req_{came.id}"}
        if answer.retry_after is not None:
            headers["Retry-After"] = str(answer.retry_after)
        if self.settings.rate_limit_headers and came.kind == "chat":
            headers |= self._limits()
        return headers

    def _limits(self) -> dict[str, str]:
        """The rate-limit headers, as OpenAI sends them."""
        pace, most = self._pace, self.settings.in_flight_limit
        limit, left = (pace.size, pace.left()) if pace.rate else (10_000, 9_999)
        if most is not None:
            limit, left = min(limit, most), min(left, most - self._chats)
        reset = (pace.size - pace.left()) / pace.rate if pace.rate else 0.006
        return {
            "x-ratelimit-limit-requests": str(int(limit)),
            "x-ratelimit-remaining-requests": str(max(0, int(left))),
            "x-ratelimit-reset-requests": f"{int(1000 * reset)}ms"
            if reset < 1
            else f"{reset:.3f}s",
            "x-ratelimit-limit-tokens": "30000000",
            "x-ratelimit-remaining-tokens": "29999000",
            "x-ratelimit-reset-tokens": "2ms",
        }

    async def _control(self, request: web.BaseRequest) -> web.Response:
        """The tests' own door."""
        if request.path == "/control/reset":
            self.log.clear()
            self.objects.clear()
            self._prefixes = Prefixes()
            self.configure(msgspec.json.decode(await request.read(), type=Settings))
        if request.path == "/control/settings":
            changes = msgspec.json.decode(await request.read())
            try:
                settings = updated(self.settings, changes)
                self.configure(settings, frozenset(changes))
            except (msgspec.ValidationError, ValueError) as error:
                return web.Response(status=400, text=str(error))
        counters = self.log.counts.as_dict() | {"in_flight": self.log.in_flight}
        counters["jobs_created"] = len(self.objects.jobs)
        return web.Response(body=msgspec.json.encode(counters), content_type=JSON)


def _kind(path: str) -> str:
    parts = path.split("/")
    if parts[-2:] == ["chat", "completions"]:
        return "chat"
    second = parts[2] if len(parts) > 2 else ""
    names = {"models": "models", "files": "file", "fine_tuning": "job", "batches": "batch"}
    return names.get(second, "other")


def _is_form(request: web.BaseRequest) -> bool:
    return request.content_type == "multipart/form-data"


def _unauthorised(request: web.BaseRequest) -> Error:
    """An error that quotes the key that was shown, as some providers' do."""
    shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return ERRORS["401"]._replace(message=f"Incorrect API key provided: {shown}.")


def _reset(request: web.BaseRequest) -> None:
    """Close the connection with RST."""
    transport = request.transport
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _break_off(
    request: web.BaseRequest, body: bytes, headers: dict[str, str]
) -> web.StreamResponse:
    """Send half of the body, and reset once the other side has had time to read it."""
    response = web.StreamResponse(headers={**headers, "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    await asyncio.sleep(0.02)
    _reset(request)
    return response


def _make_request(*given: Any) -> web.BaseRequest:
    message, payload, protocol, writer, task = given
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=1 << 30)


async def serve(
    folder: Path, settings: Settings, port: int, ready: Callable[[int], Awaitable[None]]
) -> None:
    """Serve until `ready` returns, which is called with the port once all can connect."""
    server = web.Server(
        Server(folder, settings).handle,
        request_factory=_make_request,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=3600,
    )
    runner = web.ServerRunner(server)
    await runner.setup()
    await ready(await _bind(runner, port))
    # What is still unanswered is not waited for: the process ends with it.


async def _bind(runner: web.ServerRunner, port: int) -> int:
    start = random.randrange(len(PORTS))
    candidates = [port] if port else [PORTS[(start + i) % len(PORTS)] for i in range(50)]
    for candidate in candidates:
        with contextlib.suppress(OSError):
            await web.TCPSite(runner, "127.0.0.1", candidate, backlog=4096).start()
            return candidate
    raise OSError(f"no port is free among {candidates[:3]}...")
