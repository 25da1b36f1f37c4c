"""A proxy that keeps every byte that it is sent, and a server with TLS in front of another."""

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def set_proxy(patch: pytest.MonkeyPatch, **variables: str) -> None:
    """Let the environment name these proxies, and no others."""
    for name in VARIABLES:
        patch.delenv(name, raising=False)
        patch.delenv(name.upper(), raising=False)
    for name, proxy in variables.items():
        patch.setenv(name, proxy)


class Proxy:
    """A proxy for CONNECT alone, and what its clients sent it."""

    def __init__(self) -> None:
        self.url = ""
        self.heads: list[bytes] = []
        self.received = bytearray()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        host, _, port = head.split()[1].decode().rpartition(":")
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _join(reader, writer, host, int(port), self.received)


@contextmanager
def proxy() -> Iterator[Proxy]:
    """A running proxy."""
    made = Proxy()
    with _serving(made) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


@contextmanager
def with_tls(port: int, folder: Path) -> Iterator[tuple[int, Path]]:
    """The port at which a server of this machine is reached through TLS, and the certificate."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    options = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ("openssl", "req", "-x509", *options, *names, *files)
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _join(reader, writer, "127.0.0.1", port, bytearray())

    with _serving(forward, ssl=context) as secure:
        yield secure, certificate


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    port: int,
    received: bytearray,
) -> None:
    """Pass bytes on in both directions, and keep those of the client."""
    there, back = await asyncio.open_connection(host, port)
    await asyncio.gather(_pass(reader, back, received), _pass(there, writer, bytearray()))


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    try:
        while chunk := await reader.read(1 << 16):
            kept += chunk
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@contextmanager
def _serving(converse: Converse, **options: Any) -> Iterator[int]:
    """The port of a server, in a thread of its own."""
    loop, ports = asyncio.new_event_loop(), list[int]()
    ready, ended = threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(converse, "127.0.0.1", 0, **options)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await ended.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait(30.0)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30.0)
        loop.close()
