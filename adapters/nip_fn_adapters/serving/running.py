"""Run the server: alone in its folder, at its port, until it is asked to end."""

import asyncio
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from returns.result import Failure, Result, Success

from nip_fn_adapters.serving.access import Access
from nip_fn_adapters.serving.app import make_app
from nip_fn_adapters.serving.service import Service

LAST_ANSWERS = 3  # seconds in which requests that are under way at the end may be answered


def hold(state: Path) -> Result[int, str]:
    """The folder's lock, held until it is closed or this process dies."""
    state.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return Failure(f"{state} is in use by another server; stop that one, or choose --state")
    return Success(descriptor)


def listen(host: str, port: int) -> Result[socket.socket, str]:
    """The address, bound; port 0 is any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        return Failure(f"{host}:{port}: {error.strerror}; choose another --host or --port")
    return Success(bound)


def run(
    make_service: Callable[[], Service], bound: socket.socket, ready: Callable[[int], None]
) -> None:
    """Serve until SIGTERM or SIGINT; then all that was started is ended.

    `ready` is called with the port once requests are answered.
    """
    logging.basicConfig(format="nip-fn serve: %(levelname)s: %(message)s", level=logging.WARNING)
    asyncio.run(_run(make_service, bound, ready))


async def _run(
    make_service: Callable[[], Service], bound: socket.socket, ready: Callable[[int], None]
) -> None:
    service = make_service()
    config = uvicorn.Config(
        Access(make_app(service), service.settings.token),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=LAST_ANSWERS,
    )
    port = bound.getsockname()[1]
    server = _Server(config, lambda: ready(port))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)
    await server.serve([bound])


class _Server(uvicorn.Server):
    """uvicorn's server, ended by `end` rather than by signals of its own."""

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
        """Leave signals to this module."""
        yield

    def end(self) -> None:
        """Answer what is under way for a moment, then end."""
        self.should_exit = True
