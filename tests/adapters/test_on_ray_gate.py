"""The port of a server that leads to a vLLM on another node."""

import asyncio

import pytest

from ..lazily import needs


@needs("ray")
def test_connections_to_a_lost_node_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    """It closes none itself, and a request would wait for its answer until its time is over."""
    from nip_fn_adapters.serving.on_ray import Gate

    async def doing() -> bytes:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            asked.set()

        vllm = await asyncio.start_server(silent, "127.0.0.1", 0)
        gate = Gate(*vllm.sockets[0].getsockname()[:2])
        port = await gate.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"?")
        await asyncio.wait_for(asked.wait(), 60)
        gate.close()
        answer = await asyncio.wait_for(reader.read(), 60)
        vllm.close()
        return answer

    assert asyncio.run(doing()) == b""
    assert not caplog.records
