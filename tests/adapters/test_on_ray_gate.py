"""The port of a server that leads to a vLLM on another node."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("ray")

from nip_fn_adapters.serving import on_ray


class _Ended:
    """An actor whose end is at once."""

    class end:
        @staticmethod
        def remote() -> asyncio.Future[None]:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done


def test_connections_to_a_lost_node_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes none itself, and a request would wait for its answer until its time is over."""
    monkeypatch.setattr(on_ray.ray, "kill", lambda actor: None)

    async def doing() -> bytes:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            asked.set()

        vllm = await asyncio.start_server(silent, "127.0.0.1", 0)
        host, port = vllm.sockets[0].getsockname()[:2]
        at = on_ray._Address(host, port, "")
        links = set[asyncio.Future[Any]]()
        gate = await asyncio.start_server(on_ray._to(at, links), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*gate.sockets[0].getsockname()[:2])
        writer.write(b"?")
        await asyncio.wait_for(asked.wait(), 60)
        await on_ray._RemoteProcess(_Ended(), "", gate, links).end()
        answer = await asyncio.wait_for(reader.read(), 60)
        vllm.close()
        return answer

    assert asyncio.run(doing()) == b""
