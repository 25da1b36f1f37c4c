"""Laws of admission to several servers: a prefix has one; nobody waits while another has room."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn_adapters.providers.api.admission import LEAD, AdmissionQueue, Permit, home_of
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.pace import Bounds

SERVERS = tuple(Endpoint(f"http://replica-{i}/v1", "") for i in range(4))


def run(doing: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(doing, 60.0))


async def acquired(queue: AdmissionQueue, prefix: str) -> Permit:
    return await queue.acquire(SERVERS, queue.ticket(), 1.0, prefix)


def test_chats_with_one_prefix_go_to_one_server_and_prefixes_are_shared_out() -> None:
    async def doing() -> None:
        queue = AdmissionQueue(Bounds(), lambda: 0.0)
        used = Counter[str]()
        for tree in range(400):
            permits = [await acquired(queue, f"tree {tree}") for _ in range(LEAD)]
            [server] = {permit.server for permit in permits}
            assert server == home_of(SERVERS, f"tree {tree}")
            used[server.url] += 1
            for permit in permits:
                queue.release(permit)
        # 100 each on the average, with a standard deviation of 8.7.
        assert all(65 < number < 135 for number in used.values())

    run(doing())


def test_a_server_that_is_much_busier_loses_its_prefix_to_the_least_busy() -> None:
    async def doing() -> None:
        queue = AdmissionQueue(Bounds(), lambda: 0.0)
        permits = [await acquired(queue, "one tree") for _ in range(200)]
        used = Counter(permit.server for permit in permits)
        home = used.pop(home_of(SERVERS, "one tree"))
        assert max(used.values()) - min(used.values()) <= 1
        assert 0 <= home - max(used.values()) <= LEAD

    run(doing())


@pytest.mark.parametrize("limit", [1, 3])
@given(prefixes=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40))
def test_none_waits_while_a_server_has_room(limit: int, prefixes: list[str]) -> None:
    async def doing() -> None:
        queue = AdmissionQueue(Bounds(first=limit, highest=limit), lambda: 0.0)
        tasks = [asyncio.create_task(acquired(queue, prefix)) for prefix in prefixes]
        await asyncio.sleep(0)
        room = limit * len(SERVERS)
        assert queue.num_waiting == max(0, len(prefixes) - room)
        for _ in range(len(prefixes)):
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = done.pop()
            tasks.remove(first)
            queue.release(first.result())
        assert queue.num_waiting == 0

    run(doing())
