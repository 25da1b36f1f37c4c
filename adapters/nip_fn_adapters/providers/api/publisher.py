"""Publishing of models that a provider has trained: it serves them itself, some time later.

Providers do not score replies, so there are no log-probabilities to compare.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from returns.result import Failure, Result

from nip_fn.errors import Problem
from nip_fn.run.events import Publish
from nip_fn.run.ports import Publisher, Served
from nip_fn_adapters import clock
from nip_fn_adapters.providers.api.clients import make_client
from nip_fn_adapters.providers.api.tuner import Timeouts, TrainingServer
from nip_fn_adapters.providers.api.uploads import each

DEFAULT_TIMEOUTS = Timeouts(poll=5.0, limit=600.0)  # from the end of a job until its model answers


def api_publisher(
    groups: Mapping[str, TrainingServer],
    *,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    tell: Callable[[str], None] = lambda line: None,
) -> Publisher:
    """A publisher that waits until the provider lists a model, or the model answers."""

    async def publish(effect: Publish) -> Result[Served, Problem]:
        training = groups[effect.group]
        server, deadline = training.endpoint, clock.monotonic() + timeouts.limit
        task = training.retry_task(f"publishing {effect.adapter}", timeouts.retries, tell)
        async with make_client(server, timeout=timeouts.answer, connections=1) as client:
            while True:
                is_served = await task.persist(partial(_is_served, client, effect.adapter))
                if is_served.value_or(True):
                    return is_served.map(lambda yes: Served())
                if clock.monotonic() >= deadline:
                    return Failure(
                        Problem(
                            f"the server does not serve {effect.adapter} after "
                            f"{timeouts.limit:g} s",
                            address=server.url,
                            remedy="resume the run to wait again",
                        )
                    )
                await asyncio.sleep(timeouts.poll)

    return publish


async def _is_served(client: Any, model: str) -> bool:
    """True if the model is listed, or answers without being listed."""
    import openai

    with suppress(openai.NotFoundError):  # not every server has a list
        async for listed in each(client.models.list()):
            if listed.id == model:
                return True
    with suppress(openai.NotFoundError):
        # By a single token, which is nearly free: a model may answer before any list shows it.
        hello: Any = [{"role": "user", "content": "Hello"}]
        await client.chat.completions.create(model=model, messages=hello, max_tokens=1)
        return True
    return False
