"""Running the server: alone in its folder, at its port, until SIGTERM or SIGINT."""

import asyncio
import fcntl
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from returns.result import Failure, Result, Success
from uvicorn.protocols.http.h11_impl import H11Protocol

from nip_fn.errors import Problem
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.serving.app import make_app
from nip_fn_adapters.serving.in_vllm.nip_fn_access import Access
from nip_fn_adapters.serving.service import Service

HEAD_SECONDS = 20.0  # in which the head of a request must come
LAST_ANSWERS = 3  # seconds for the requests that are under way when the server ends


def lock(state: Path) -> Result[int, Problem]:
    """The descriptor of the folder's lock, held until it is closed or this process dies."""
    state.mkdir(parents=True, exist_ok=True)
    # It holds other people's prompts, and the key of vLLM.
    state.chmod(state.stat().st_mode & ~0o007)
    # Two servers in one folder would each train every job of its queue.
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        problem = f"{state} is in use by another server"
        return Failure(Problem(problem, remedy="stop that one, or choose --state", kind="run"))
    return Success(descriptor)


def kept_key(state: Path) -> str:
    """The key of this server's vLLM where no token is set; clients keep it over a restart."""
    file = state / "vllm.key"
    if not file.exists():
        replace_file(file, secrets.token_urlsafe(32).encode())
    file.chmod(0o600)
    return file.read_text("ascii")


def bind(
    host: str, port: int, remedy: str = "choose another --host or --port"
) -> Result[socket.socket, Problem]:
    """A socket at this address; port 0 is any that is free."""
    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, socket_type, protocol)
        # A server that is restarted need not wait until its last connections are forgotten.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        return Failure(Problem(str(error.strerror), f"{host}:{port}", remedy, kind="system"))
    return Success(bound)


def run_service(
    make_service: Callable[[], Service], bound: socket.socket, ready: Callable[[int], None]
) -> None:
    """Serve until SIGTERM or SIGINT; then end all that was started.

    `ready` is called with the port once requests are answered.
    """
    form = "nip-fn serve: %(asctime)s %(message)s"
    os.umask(0o077)  # what clients send is for nobody else on this machine
    logging.basicConfig(format=form, datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("nip_fn_adapters").setLevel(logging.INFO)
    asyncio.run(_run(make_service, bound, ready))


async def _run(
    make_service: Callable[[], Service], bound: socket.socket, ready: Callable[[int], None]
) -> None:
    service = make_service()
    token = service.settings.token
    await serve(Access(make_app(service), token, local_only=token is None), bound, ready)


async def serve(app: Any, bound: socket.socket, ready: Callable[[int], None]) -> None:
    """Serve an ASGI application until SIGTERM or SIGINT; `ready` is called with the port."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        # By default uvicorn takes an error at the start for an application without a lifespan.
        lifespan="on",
        http=_Connection,
        timeout_graceful_shutdown=LAST_ANSWERS,
    )
    port = bound.getsockname()[1]
    await _Server(config, lambda: ready(port)).serve([bound])


class _Connection(H11Protocol):
    """A connection that is closed if the head of a request does not come in time.

    uvicorn waits for ever: a thousand half-sent requests would take all files that it may open.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request, or no more."""
        super().data_received(data)
        if self._waiting is not None and self._is_busy():
            self._waiting.cancel()
            self._waiting = None
        elif self._waiting is None and not self._is_busy():
            self._wait()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._close)

    def _close(self) -> None:
        self._waiting = None
        if not self._is_busy():
            self.transport.close()

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


class _Server(uvicorn.Server):
    """uvicorn's server, after whose end by a signal this process goes on."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        """A server that calls `ready` once it answers."""
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at a signal; uvicorn would raise it again, and end this process by it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, setattr, self, "should_exit", True)
        yield
