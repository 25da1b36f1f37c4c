"""Requests for replies, and whole runs, at the fake provider."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from returns.result import Result

from nip_fn.config.codec import from_dict, merge
from nip_fn.errors import Problem
from nip_fn.game.chat import Message
from nip_fn.game.datapoint import Dataset, make_datapoint
from nip_fn.game.reply import Completion
from nip_fn.keys import fold_in, key, split
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Replied, RunStarted
from nip_fn.run.ports import World
from nip_fn.run.replay import replay
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState, StageMetrics
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.retries import RetryPolicy
from nip_fn_adapters.providers.api.sampler import (
    ApiModel,
    ApiSampler,
    ClientSettings,
    api_sampler,
    served_by,
)
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from ..core.games import one_by_one
from ..provider import Provider

KEY = "sk-test-5e0d7b13c9"  # as the fake provider's `key`: to be in no file and no message
SPEED = 400.0  # waits of minutes pass in a second
QUICK = ClientSettings(speed=SPEED, timeout=1.0)


def make_request(place: str = "here", num: int = 2, **changes: Any) -> Request:
    """A request for so many replies of the verifier."""
    chat = (
        Message("system", 'You are Verifier. Ask with "Question for Expert: ...".'),
        Message("user", f"This is {place}.", "Expert"),
    )
    given: dict[str, Any] = {
        "model": "m",
        "adapter": None,
        "chat": chat,
        "keys": split(fold_in(key(0), place), num),
        "temperature": None,
        "top_p": None,
        "repetition_penalty": None,
        "max_tokens": 64,
        "agent": "verifier",
        "is_verifier": True,
        "headers": (),
        "decisions": (),
    }
    return Request(**{**given, **changes})


def make_sampler(
    *urls: str, settings: ClientSettings = QUICK, key: str = KEY, **how: Any
) -> ApiSampler:
    """A sampler for two agents that are served at all of these addresses."""
    servers = tuple(Endpoint(url, key) for url in urls)
    served = ApiModel(servers, **{"key_variable": "OPENAI_API_KEY", **how})
    return api_sampler({"verifier": served, "prover": served}, settings)


Answers = list[Result[tuple[Completion, ...], Problem]]


def ask(sampler: ApiSampler, *requests: Request) -> Answers:
    """The answers to requests that are made all at once."""

    async def gather() -> Answers:
        return list(await asyncio.gather(*map(sampler, requests)))

    return asyncio.run(gather())


def chats(provider: Provider) -> list[dict[str, Any]]:
    """What the provider was asked, in order."""
    return [entry for entry in provider.log() if entry["kind"] == "chat"]


def is_readable(told: object) -> bool:
    """True for one line for people, without the key or Python's own words."""
    line = str(told)
    return (
        bool(line)
        and "\n" not in line
        and KEY not in line
        and len(line) < 500
        and not re.search(r"Traceback|Error\(|<class|<openai|object at 0x", line)
    )


# ------------------------------------------------------------------------------------ whole runs

WHOLE: dict[str, Any] = {
    "seed": 3,
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 6},
    "text_rl": {"test_scheme": "none"},
    "malt": {"num_responses_per_timestep": 2},
    "nip_protocol": {"max_message_rounds": 3},
    "agents": {"_default": {"model_name": "m", "num_invalid_generation_retries": 3}},
}


class Game:
    """A run of one iteration in a folder, in as many sessions as it takes."""

    def __init__(self, folder: Path, url: str, *changes: dict[str, Any]) -> None:
        where = {"agents": {"_default": {"api_base_url": url}}}
        table = WHOLE
        for change in (where, *changes):
            table = merge(table, change)
        self.folder = folder
        self.params: HyperParameters = from_dict(table).unwrap()
        self.told: list[str] = []

    def sit(self, settings: ClientSettings = QUICK) -> Result[RunState, Problem]:
        """Run until the run is done or fails."""
        if (self.folder / CHECKPOINT).exists():
            opened, recording = store.reopen(self.folder).unwrap()
            state, first = replay(recording.events).unwrap().state, ()
        else:
            opened, state = store.create(self.folder).unwrap(), EMPTY
            first = (RunStarted(self.params, in_memory(DATA).info, "0"),)
        served = {
            agent.name: served_by(agent, {"OPENAI_API_KEY": KEY}).unwrap()
            for agent in self.params.agents
        }
        sampler = api_sampler(served, settings._replace(tell=self.told.append))
        world = World(
            sampler=sampler,
            tuner=dummy.dummy_tuner(),
            publisher=dummy.serve_at_once,
            source=in_memory(DATA).source,
            store=opened,
            tracker=_no_tracker,
            drain=sampler.drain,
        )
        try:
            return asyncio.run(interpret(state, world, first=first))
        finally:
            opened.close()

    def replies(self) -> list[Replied]:
        """What is recorded."""
        events = store.read_recording(self.folder / CHECKPOINT).unwrap().events
        return one_by_one(events)

    def contents(self) -> dict[tuple[Any, ...], Completion]:
        """Every recorded reply by its place, without what differs from one run to the next."""
        return {
            (r.tree, r.path, r.agent, r.index, r.attempt): replace(
                r.completion, seconds=0.0, request_id="", cached_tokens=0
            )
            for r in self.replies()
        }


DATA = Dataset(
    "small",
    train=tuple(
        make_datapoint(f"p{i}", f"Question {i}?", f"solution {i}", i % 2) for i in range(12)
    ),
    validation=(),
    test=(),
)


def _no_tracker(row: StageMetrics, seconds: float) -> None:
    """Keep nothing."""


def answered_bodies(entries: Iterable[dict[str, Any]]) -> Counter[str]:
    """How often each request was answered with replies."""
    return Counter(
        str(entry["body"])
        for entry in entries
        if entry["status"] == 200 and entry["fault"] in (None, "reversed")
    )


def patient(**policy: Any) -> ClientSettings:
    """The settings with another policy of retries."""
    return QUICK._replace(policy=RetryPolicy(**policy))
