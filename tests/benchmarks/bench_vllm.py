"""The tree sampler at a real vLLM, against a client that knows all of its requests beforehand.

Both ask the same vLLM for the same replies, in turn, each from an empty prefix cache.  The plain
client sends the bodies that the sampler would, as many at a time as vLLM takes in, and only counts
what comes back; so it bounds what any client could reach.  Skipped where there is no vLLM.
"""

import asyncio
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import aiohttp
import msgspec
from returns.pipeline import is_successful
from returns.result import Result

from nip_fn.config.codec import from_dict
from nip_fn.config.presets import with_preset
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import BatchFetched, Event, Replied, RunStarted, StageEnded
from nip_fn.run.ports import Sampler, Unanswered, World
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState, StageMetrics
from nip_fn_adapters.data.opening import open_data
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api import replies
from nip_fn_adapters.providers.api.capabilities import Capabilities
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.sampler import ApiModel, api_sampler
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.recording import store
from nip_fn_adapters.serving.fleet import Fleet
from nip_fn_adapters.serving.settings import FleetSettings, find_vllm
from nip_fn_adapters.serving.wire import Needs
from tests.adapters.fleets import free_ports

MODEL = "builtin:tea"
KEY = "secret"
SHOWN = {"Authorization": f"Bearer {KEY}"}
TREES = 64
TURNS = 3  # of each client
IN_FLIGHT = 256  # requests; vLLM runs as many at a time by default


class Rate(NamedTuple):
    """What a client got."""

    seconds: float
    requests: int
    tokens: int  # of replies


def run(*, full: bool) -> list[tuple[str, str]]:
    """(measure, figure) of each measurement; there are no larger sizes."""
    command = find_vllm()
    if not is_successful(command):
        return [("vLLM", f"not measured: {command.failure()}")]
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # the prefix cache can be emptied
    with TemporaryDirectory() as folder:
        return asyncio.run(_run(command.unwrap(), Path(folder)))


async def _run(command: tuple[str, ...], folder: Path) -> list[tuple[str, str]]:
    port = free_ports(1)
    # The prompts of so small a model are short; a block is what the prefix cache holds of them.
    settings = FleetSettings(command, folder, KEY, port=port, extra=("--block-size", "32"))
    fleet = Fleet(settings, model_directory)
    try:
        (await fleet.start(Needs(MODEL), {})).unwrap()
        while (told := await fleet.status()).status == "starting":
            await asyncio.sleep(1.0)
        if told.status != "online":
            return [("vLLM", f"not measured: {told.error}")]
        return await _compare(f"http://127.0.0.1:{port}", folder)
    finally:
        await fleet.close()


async def _compare(url: str, folder: Path) -> list[tuple[str, str]]:
    server = ApiModel((Endpoint(f"{url}/v1", KEY),))
    sampler = api_sampler({agent.name: server for agent in _params().agents})
    await _grow(sampler, folder / "warm up")
    grown, plain = list[Rate](), list[Rate]()
    hits = ""
    for turn in range(TURNS):
        await _forget(url)
        before = await _cache(url)
        rate, asked = await _grow(sampler, folder / str(turn))
        after = await _cache(url)
        hits = f"{(after[0] - before[0]) / (after[1] - before[1]):.0%}"
        grown.append(rate)
        await _forget(url)
        plain.append(await _plain(url, asked))
    what = f"vLLM, {TREES} trees of 4 replies a node: {grown[0].requests:,} requests"
    return [
        (what, _figure(grown)),
        ("the same, by a plain client that knows them all", _figure(plain)),
        (
            "tree sampler : plain client",
            f"{_ratio(grown, plain, 'requests'):.2f} x requests/s, "
            f"{_ratio(grown, plain, 'tokens'):.2f} x tokens/s",
        ),
        ("prompt tokens that the tree sampler found in the prefix cache", hits),
    ]


def _figure(rates: list[Rate]) -> str:
    seconds = sum(rate.seconds for rate in rates)
    requests, tokens = (
        sum(rate.requests for rate in rates) / seconds,
        sum(rate.tokens for rate in rates) / seconds,
    )
    return f"{requests:.0f} requests/s, {tokens:,.0f} tokens/s"


def _ratio(ours: list[Rate], theirs: list[Rate], what: str) -> float:
    def rate(rates: list[Rate]) -> float:
        return float(sum(getattr(r, what) for r in rates)) / sum(r.seconds for r in rates)

    return rate(ours) / rate(theirs)


class _Noting:
    """A sampler that remembers what it was asked for, and counts the tokens it gave."""

    def __init__(self, inner: Sampler) -> None:
        self.asked: list[Request] = []
        self._inner = inner

    def __call__(
        self, request: Request
    ) -> Awaitable[Result[tuple[Completion | Unanswered, ...], Problem]]:
        self.asked.append(request)
        return self._inner(request)


class _Watch:
    """Times the growth of the forest."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0

    def __call__(self, state: RunState, event: Event) -> None:
        if isinstance(event, BatchFetched):
            self._began = time.perf_counter()
        elif isinstance(event, Replied):
            self.tokens += sum(reply.completion_tokens for _, reply in event.completions)
        elif isinstance(event, StageEnded) and event.stage == "sample":
            self.seconds = time.perf_counter() - self._began


async def _grow(inner: Sampler, run: Path) -> tuple[Rate, list[Request]]:
    """Sample a forest as a run does, recording it."""
    params, sampler = _params(), _Noting(inner)
    opened, data, watch = store.create(run).unwrap(), open_data(params).unwrap(), _Watch()
    world = World(
        sampler, dummy.dummy_tuner(), dummy.serve_at_once, data.source, opened, _no_tracker
    )
    first = (RunStarted(params, data.info, "0"),)
    (await interpret(EMPTY, world, first=first, observe=watch)).unwrap()
    opened.close()
    return Rate(watch.seconds, len(sampler.asked), watch.tokens), sampler.asked


def _params() -> HyperParameters:
    given = {
        "rl": {"num_iterations": 1, "rollouts_per_iteration": TREES},
        "text_rl": {"test_scheme": "none"},
        "agents": {"_default": {"model_provider": "SelfHosted"}},
    }
    return from_dict(with_preset({"dataset": "builtin:tea", **given})).unwrap()


def _no_tracker(row: StageMetrics, seconds: float) -> None:
    """Keep nothing."""


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Answer(msgspec.Struct):
    usage: _Usage


async def _plain(url: str, asked: list[Request]) -> Rate:
    """Send them all, so many at a time."""
    bodies = iter([replies.body_of(one, one.keys, Capabilities(), False) for one in asked])
    tokens = 0

    async def work() -> None:
        nonlocal tokens
        for body in bodies:
            headers = {"Content-Type": "application/json"}
            async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as got:
                answer = msgspec.json.decode(await got.read(), type=_Answer)
                tokens += answer.usage.completion_tokens

    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector, headers=SHOWN) as http:
        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return Rate(time.perf_counter() - began, len(asked), tokens)


async def _forget(url: str) -> None:
    """Empty the prefix cache."""
    async with aiohttp.request("POST", f"{url}/reset_prefix_cache", headers=SHOWN) as got:
        got.raise_for_status()


async def _cache(url: str) -> tuple[float, float]:
    """How many prompt tokens have been found in the prefix cache, and looked for, so far."""
    async with aiohttp.request("GET", f"{url}/metrics", headers=SHOWN) as got:
        lines = (await got.text()).splitlines()
    found = [
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
        for name in ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    ]
    return found[0], found[1]
