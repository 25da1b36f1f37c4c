"""What the local sampler does in a second, and how much of its time is not the model's."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from nip_fn.config.codec import from_dict
from nip_fn.config.presets import with_preset
from nip_fn.game.episode import reset
from nip_fn.keys import fold_in, key, split
from nip_fn.params.agent import max_tokens
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.request import Request
from nip_fn.worlds.tea import make_dataset
from nip_fn_adapters.providers.local.sampler import LocalSampler, local_sampler

NUM_REQUESTS, NUM_REPLIES = 256, 4


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; there are no larger sizes."""
    with TemporaryDirectory() as folder:
        sampler = local_sampler(Path(folder))
        asyncio.run(_sample_all(sampler, _requests(8)))  # load the model, warm up
        seconds, share, tokens = _measure(sampler, _requests(NUM_REQUESTS))
    size = f"{NUM_REQUESTS} chats, {NUM_REPLIES} replies each"
    yield f"local sampler, {size}", f"{NUM_REQUESTS * NUM_REPLIES / seconds:.0f} replies/s"
    yield "local sampler, tokens drawn", f"{tokens / seconds:.0f} tokens/s"
    yield "local sampler, time outside the model's forward passes", f"{share:.1%}"


def _requests(num: int) -> list[Request]:
    """The verifier's first turn on so many problems."""
    params = from_dict(with_preset({"dataset": "builtin:tea"})).unwrap()
    dataset = make_dataset(key(0), num_train=num, num_validation=0, num_test=0)
    agent = [parameters.name for parameters in params.agents].index("verifier")
    return [
        Request(
            model=params.agents[agent].model_name,
            adapter=None,
            chat=build_chat(params, protocol_of(params), datapoint, reset(datapoint, place), agent),
            keys=split(fold_in(place, "replies"), NUM_REPLIES),
            temperature=1.0,
            top_p=None,
            repetition_penalty=None,
            max_tokens=max_tokens(params.agents[agent]),
            agent="verifier",
            is_verifier=True,
            headers=(),
            decisions=(),
        )
        for i, datapoint in enumerate(dataset.train)
        for place in (fold_in(key(0), i),)
    ]


async def _sample_all(sampler: LocalSampler, requests: Sequence[Request]) -> None:
    for answer in await asyncio.gather(*map(sampler, requests)):
        answer.unwrap()


def _measure(sampler: LocalSampler, requests: Sequence[Request]) -> tuple[float, float, int]:
    """Seconds by the clock, the share of the time outside the model, and the tokens drawn."""
    before, began = replace(sampler.timings), time.perf_counter()
    asyncio.run(_sample_all(sampler, requests))
    seconds, after = time.perf_counter() - began, sampler.timings
    model = after.model - before.model
    return seconds, 1 - model / seconds, after.completion_tokens - before.completion_tokens
