"""Publishing what a provider has trained: it is served there already, so all there is is to look.

Providers score no replies, so there are no log-probabilities to compare.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from returns.result import Failure, Result, Success

from nip_fn.run.events import Publish
from nip_fn.run.ports import Publisher, Served
from nip_fn_adapters.api.endpoints import make_client
from nip_fn_adapters.api.tuner import Timeouts, Training

SOON = Timeouts(poll=5.0, limit=600.0)  # from a job's end until its model answers


def api_publisher(
    groups: Mapping[str, Training],
    *,
    patience: Timeouts = SOON,
    tell: Callable[[str], None] = lambda line: None,
) -> Publisher:
    """A publisher that waits until the provider lists a model, or answers in its name."""

    async def publish(effect: Publish) -> Result[Served, str]:
        training = groups[effect.group]
        server, deadline = training.endpoint, time.monotonic() + patience.limit
        errand = training.errand(f"looking for {effect.adapter}", patience.retries, tell)
        async with make_client(server, timeout=patience.answer, connections=1) as client:
            while True:
                served = await errand.persist(partial(_is_served, client, effect.adapter))
                if isinstance(served, Failure):
                    return Failure(served.failure())
                if served.unwrap():
                    return Success(Served())
                if time.monotonic() >= deadline:
                    return Failure(
                        f"{server.url} does not serve {effect.adapter} after {patience.limit:g} s"
                    )
                await asyncio.sleep(patience.poll)

    return publish


async def _is_served(client: Any, model: str) -> bool:
    """Whether the model is listed; where it is not, whether it answers all the same."""
    import openai

    with suppress(openai.NotFoundError):  # not every server has a list
        async for listed in client.models.list():
            if listed.id == model:
                return True
    with suppress(openai.NotFoundError):
        hello: Any = [{"role": "user", "content": "Hello"}]
        await client.chat.completions.create(model=model, messages=hello, max_tokens=1)
        return True
    return False
