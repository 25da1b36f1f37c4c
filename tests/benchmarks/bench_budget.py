"""How much a budget near the bill slows a run: its time over that of the same run without one.

The fake provider is a process of its own on this machine, and replies to each request after a
second.  The bill is that of the run without a budget; at its most a request would cost several
times its part of it, and the budget is to be kept even then.
"""

import asyncio
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from nip_fn.config.codec import from_dict
from nip_fn.run.events import Event, RunStarted
from nip_fn.run.ports import World
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState
from nip_fn_adapters.costs.budget import Budget, Meter
from nip_fn_adapters.costs.note import UnrecordedNote
from nip_fn_adapters.costs.prices import Price, Prices, PriceTable, Tokens, cost, upper_bound_prompt
from nip_fn_adapters.costs.spending import dollars_of
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.sampler import ApiModel, ClientSettings, api_sampler
from nip_fn_adapters.recording import store
from tests.benchmarks.bench_api import _no_tracker, dataset
from tests.provider import Provider

LATENCY = 1.0  # s
GAMES, ROUNDS = 180, 7
PRICE = Price(prompt=1.0, cached=1.0, completion=4.0)
BUDGETS = (9.0, 1.9, 1.4)  # times the bill
PARAMS = from_dict(
    {
        "agents": {"_default": {"model_name": "m", "max_tokens_per_message": 900}},
        "rl": {"num_iterations": 1, "rollouts_per_iteration": GAMES},
        "text_rl": {"test_scheme": "none"},
        "malt": {"num_responses_per_timestep": 1},
        "nip_protocol": {"max_message_rounds": ROUNDS},
    }
).unwrap()
PRICES = Prices(PriceTable({"m": PRICE}, {"m": PRICE}), PriceTable())


class Played(NamedTuple):
    """A run within a budget.

    seconds: for its sampling.
    requests: sent.
    bill: dollars.
    most: what a request could have cost, over what it did, on average.
    risk: the largest share of the budget that a kill would have counted as spent.
    """

    seconds: float
    requests: int
    bill: float
    most: float
    risk: float


def run(*, full: bool) -> Iterator[tuple[str, str]]:
    """(measure, figure) of each measurement; there are no larger sizes."""
    with Provider(log_bodies=False, latency=LATENCY, reply_words=(40, 110)) as provider:
        provider.configure(decision_rate=0.0)
        play(provider, inf)  # import what is needed, warm up
        free = play(provider, inf)
        yield (
            f"{free.requests:,} requests of {LATENCY:g} s, at most {free.most:.1f} times the bill, "
            "without a budget",
            f"{free.seconds:.1f} s",
        )
        for share in BUDGETS:
            kept = play(provider, share * free.bill)
            yield (
                f"within {share:g} times the bill",
                f"{kept.seconds:.1f} s, {kept.seconds / free.seconds:.2f} x; a kill costs at most "
                f"{kept.risk:.0%} of the budget",
            )


def play(provider: Provider, limit: float) -> Played:
    """A run within so many dollars."""
    most: list[float] = []
    risk = 0.0

    def price_of(request: Request) -> Price:
        tokens = Tokens(upper_bound_prompt(request.chat), 0, len(request.keys) * request.max_tokens)
        most.append(cost(tokens, PRICE) or 0.0)
        return PRICE

    with TemporaryDirectory() as folder:
        note = UnrecordedNote(Path(folder))

        def noted(dollars: float, *, sync: bool) -> None:
            nonlocal risk
            risk = max(risk, dollars / limit)
            note(dollars, sync=sync)

        budget, meter = Budget(limit, note=noted), Meter()
        meter.open(budget, price_of)
        served = {a.name: ApiModel((Endpoint(provider.url, "none"),)) for a in PARAMS.agents}
        sampler = api_sampler(served, ClientSettings(meter=meter))
        opened = store.create(Path(folder) / "run").unwrap()
        data = in_memory(dataset(GAMES))
        tuner, publisher = dummy.dummy_tuner(), dummy.serve_at_once
        world = World(sampler, tuner, publisher, data.source, opened, _no_tracker)
        ended: list[float] = []

        def observe(state: RunState, event: Event) -> None:
            budget.record(dollars_of(state, event, PRICES) or 0.0)
            if state.stage.name != "sample" and not ended:
                ended.append(time.perf_counter())

        first = (RunStarted(PARAMS, data.info, "0"),)
        began = time.perf_counter()
        asyncio.run(interpret(EMPTY, world, first=first, observe=observe)).unwrap()
        opened.close()
    return Played(ended[0] - began, len(most), budget.spent, sum(most) / budget.spent, risk)
