"""A run within a budget: never more than that, and everything that was paid for is kept."""

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.keys import fold_in, key
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import Message
from nip_fn.run.digest import digest
from nip_fn.run.events import FORMAT, RunStarted
from nip_fn.run.ports import Sampler, Tuned, World
from nip_fn.run.replay import replay
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, Row, RunState
from nip_fn.training.groups import make_groups
from nip_fn.training.jobs import Job, SupervisedRow, make_job
from nip_fn_adapters import dummy, store
from nip_fn_adapters.api.endpoints import Endpoint
from nip_fn_adapters.api.sampler import ApiModel, api_sampler
from nip_fn_adapters.costs.budget import (
    Budget,
    tokens_of,
    training_within_budget,
    upper_bound_request,
    within_budget,
)
from nip_fn_adapters.costs.prices import Price, Prices, PriceTable, Tokens, cost
from nip_fn_adapters.costs.spending import dollars, stage_expenses
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.tracker import METRICS, JsonLines

from ..provider import Provider
from .conftest import CountingSampler, small_dataset, small_params

DEAR = Price(prompt=100.0, completion=1000.0, training=50.0)


def ask(seed: int = 0, siblings: int = 2, max_tokens: int = 20) -> Request:
    return Request(
        model="m",
        adapter=None,
        chat=(Message("user", "how much is it?"),),
        keys=tuple(fold_in(key(seed), index) for index in range(siblings)),
        temperature=None,
        top_p=None,
        repetition_penalty=None,
        max_tokens=max_tokens,
        agent="verifier",
        is_verifier=True,
        headers=(),
        decisions=(),
    )


class Vendor:
    """Answers after a while, with as many tokens as it likes up to the limit."""

    def __init__(self, budget: Budget, seed: int) -> None:
        self.budget, self.random = budget, Random(seed)
        self.paid = 0.0
        self.asked = 0

    async def __call__(self, request: Request) -> Result[tuple[Completion, ...], Problem]:
        self.asked += 1
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        replies = tuple(
            Completion(
                "x",
                "stop",
                "m",
                prompt_tokens=0 if index else self.random.randint(1, 15),
                completion_tokens=self.random.randint(0, request.max_tokens),
            )
            for index in range(len(request.keys))
        )
        self.paid += cost(tokens_of(replies), DEAR) or 0.0
        return Success(replies)


def wrapped(sampler: Sampler, budget: Budget, price: Price | None = DEAR) -> Sampler:
    return within_budget(sampler, budget, lambda request: price)


@given(st.integers(0, 10**6), st.floats(0.0, 2.0), st.integers(1, 60))
def test_whatever_is_asked_at_once_the_budget_holds(seed: int, limit: float, number: int) -> None:
    budget = Budget(limit)
    provider = Vendor(budget, seed)

    async def everything() -> list[Result[tuple[Completion, ...], Problem]]:
        sampler = wrapped(provider, budget)
        return await asyncio.gather(
            *(sampler(ask(i, 1 + i % 3, 5 + 10 * (i % 4))) for i in range(number))
        )

    answers = asyncio.run(everything())
    assert provider.paid == pytest.approx(budget.spent)
    assert budget.spent <= limit + 1e-6
    refused = [answer for answer in answers if isinstance(answer, Failure)]
    assert provider.asked == number - len(refused)
    assert bool(refused) == (budget.refusal is not None)
    assert {answer.failure() for answer in refused} <= {budget.refusal}


def test_only_what_does_not_fit_with_nothing_under_way_is_refused() -> None:
    """Ten that could cost the whole budget each, but cost a tenth: one after the other, all fit."""
    request = ask()
    most = cost(upper_bound_request(request), DEAR) or 0.0
    real = cost(tokens_of([Completion("x", "stop", "m", 1, 1)]), DEAR) or 0.0
    budget = Budget(most + 9 * real)
    under_way = []

    async def sample(request: Request) -> Result[tuple[Completion, ...], Problem]:
        under_way.append(1)
        assert len(under_way) == 1
        await asyncio.sleep(0)
        under_way.pop()
        return Success((Completion("x", "stop", "m", 1, 1),))

    async def everything(number: int) -> int:
        answers = await asyncio.gather(*(wrapped(sample, budget)(request) for _ in range(number)))
        return sum(isinstance(answer, Success) for answer in answers)

    assert asyncio.run(everything(10)) == 10
    assert budget.refusal is None
    assert asyncio.run(everything(2)) == 0
    assert "budget" in str(budget.refusal)


def test_what_is_free_is_requested_with_an_empty_budget_and_what_has_no_price_is_not() -> None:
    budget = Budget(0.0)
    provider = Vendor(budget, 0)
    free = wrapped(provider, budget, Price(0.0, 0.0))
    assert isinstance(asyncio.run(_of(free, ask())), Success)
    unknown = asyncio.run(_of(wrapped(provider, budget, None), ask()))
    assert "price of m is unknown" in str(unknown.failure())
    assert provider.asked == 1


async def _of(sampler: Sampler, request: Request) -> Result[tuple[Completion, ...], Problem]:
    return await sampler(request)


def test_a_failed_or_abandoned_request_gives_back_what_was_set_aside() -> None:
    request = ask()
    most = cost(upper_bound_request(request), DEAR) or 0.0
    budget = Budget(most)

    async def fails(request: Request) -> Result[tuple[Completion, ...], Problem]:
        await asyncio.sleep(0)
        return Failure(Problem("no"))

    async def hangs(request: Request) -> Result[tuple[Completion, ...], Problem]:
        await asyncio.sleep(60)
        raise AssertionError

    async def story() -> None:
        assert (await wrapped(fails, budget)(request)).failure() == Problem("no")
        first = asyncio.ensure_future(_of(wrapped(hangs, budget), request))
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(_of(wrapped(hangs, budget), request)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # in line
        first.cancel()  # under way: the next of the line goes
        await asyncio.sleep(0.01)
        assert not waiting[1].done()
        for task in waiting:
            task.cancel()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert isinstance(await wrapped(Vendor(budget, 1), budget)(request), Success)

    asyncio.run(story())
    assert budget.refusal is None


def test_one_that_is_cancelled_as_its_turn_comes_does_not_keep_it() -> None:
    budget = Budget(1.0)

    async def story() -> None:
        assert await budget.reserve(1.0)
        late = asyncio.ensure_future(budget.reserve(1.0))
        await asyncio.sleep(0)
        budget.settle(1.0, 0.0)  # its turn ...
        late.cancel()  # ... but it is gone before it hears of it
        await asyncio.gather(late, return_exceptions=True)
        assert late.cancelled()
        assert await budget.reserve(1.0)

    asyncio.run(story())


def test_what_waits_in_line_is_held_back_and_what_is_under_way_is_not() -> None:
    budget = Budget(1.0)

    async def story() -> None:
        assert await budget.reserve(1.0)
        line = [asyncio.ensure_future(budget.reserve(0.5)) for _ in range(3)]
        await asyncio.sleep(0)
        budget.drain()
        await asyncio.gather(*line, return_exceptions=True)
        assert all(task.cancelled() for task in line)
        budget.settle(1.0, 0.5)
        assert await budget.reserve(0.5)

    asyncio.run(story())


def test_a_server_that_counts_no_tokens_is_asked_once() -> None:
    budget = Budget(100.0)
    asked = []

    async def silent(request: Request) -> Result[tuple[Completion, ...], Problem]:
        asked.append(request)
        return Success((Completion("words", "stop", "m"),))

    async def story() -> None:
        assert isinstance(await wrapped(silent, budget)(ask()), Success)  # it is kept
        refused = await wrapped(silent, budget)(ask())
        assert "tokens" in str(refused.failure())

    asyncio.run(story())
    assert len(asked) == 1


def job(rows: int) -> Job:
    params = small_params()
    texts = (SupervisedRow((Message("user", "x" * 400),), "y" * 400),) * rows
    return replace(make_job(params, make_groups(params)[0], 0, texts, key(1)), num_epochs=3)


def test_trainings_are_kept_within_the_budget_by_what_they_report() -> None:
    budget = Budget(0.3)
    done: list[str] = []

    async def tune(job: Job) -> Result[Tuned, Problem]:
        done.append(job.name)
        return Success(Tuned("adapter", (("train_tokens", 1000.0),)))

    async def story() -> None:
        tuner = training_within_budget(tune, budget, lambda job: DEAR)
        assert isinstance(await tuner(job(2)), Success)
        assert budget.spent == pytest.approx(0.05)
        refused = await tuner(job(10))
        assert isinstance(refused, Failure)
        assert refused.failure() == budget.refusal

    asyncio.run(story())
    assert len(done) == 1


# ------------------------------------------------------------------------------------- whole runs

PARAMS = small_params()
MODELS = {agent.model_name: DEAR for agent in PARAMS.agents}
PRICES = Prices(PriceTable(MODELS, MODELS), PriceTable())


def nothing(row: Row, seconds: float) -> None:
    pass


def play(
    folder: Path, limit: float, *, sampler: Sampler, params: HyperParameters = PARAMS
) -> tuple[Result[RunState, Problem], Budget]:
    """A session of a run that costs, as far as a budget goes."""
    data = in_memory(small_dataset())
    state, first = EMPTY, [RunStarted(params, data.info, "0", format=FORMAT)]
    if folder.exists():
        opened, recording = store.reopen(folder).unwrap()
        state, first = replay(recording.events).unwrap().state, []
    else:
        opened = store.create(folder).unwrap()
    budget = Budget(limit, dollars(state, PRICES) or 0.0)
    world = World(
        sampler=wrapped(sampler, budget),
        tuner=training_within_budget(dummy.dummy_tuner(), budget, lambda job: DEAR),
        publisher=dummy.serve_at_once,
        source=data.source,
        store=opened,
        tracker=nothing,
    )
    result = asyncio.run(interpret(state, world, first=first))
    opened.close()
    return result, budget


def recorded(folder: Path) -> RunState:
    """What a resumed run would know."""
    return replay(store.read(folder / store.CHECKPOINT).unwrap().events).unwrap().state


def test_a_run_in_many_small_budgets_ends_as_one_without(tmp_path: Path) -> None:
    """It stops at each, with nothing lost and nothing asked twice, and never costs more."""
    asked, asked_whole = CountingSampler(), CountingSampler()
    whole, free = play(tmp_path / "whole", 1e9, sampler=asked_whole)
    assert dollars(whole.unwrap(), PRICES) == pytest.approx(free.spent)
    limit, stops = free.spent / 7, 0
    result, budget = play(tmp_path / "run", limit, sampler=asked)
    while isinstance(result, Failure):
        assert result.failure() == budget.refusal
        assert budget.spent <= limit
        assert dollars(recorded(tmp_path / "run"), PRICES) == pytest.approx(budget.spent)
        stops, limit = stops + 1, limit + free.spent / 7
        assert stops < 40
        result, budget = play(tmp_path / "run", limit, sampler=asked)
    assert stops > 4
    assert digest(result.unwrap()) == digest(whole.unwrap())
    assert asked.count == asked_whole.count
    assert any(row.stage == "train" and dict(row.metrics)["jobs"] for row in result.unwrap().rows)


def test_the_bill_of_a_real_server_stays_within_the_budget(tmp_path: Path) -> None:
    """By its own count of tokens, cached ones included, with many requests in flight."""
    pytest.importorskip("openai")
    agents = tuple(replace(agent, use_dummy_api=False) for agent in PARAMS.agents)
    params = replace(PARAMS, agents=agents)
    with Provider(latency=(0.0, 0.02)) as provider:

        def bill() -> float:
            told = provider.counters()
            names = ("prompt_tokens", "cached_tokens", "completion_tokens")
            return cost(Tokens(*(told[name] for name in names)), DEAR) or 0.0

        def sit(limit: float) -> tuple[Result[RunState, Problem], Budget]:
            served = {agent.name: ApiModel((Endpoint(provider.url, "key"),)) for agent in agents}
            return play(tmp_path / "run", limit, sampler=api_sampler(served), params=params)

        result, budget = sit(4.0)
        assert result.failure() == budget.refusal
        assert 3.0 < bill() <= 4.0
        assert dollars(recorded(tmp_path / "run"), PRICES) == pytest.approx(bill())
        before = provider.counters()["requests"]
        result, budget = sit(4.0)
        assert result.failure() == budget.refusal
        result, budget = sit(1000.0)
        assert result.unwrap().stage.name == "done"
        trained = sum(
            spent.dollars or 0.0
            for row in result.unwrap().rows
            if row.stage == "train"
            for spent in stage_expenses(params, row, PRICES)
        )
        assert budget.spent == pytest.approx(bill() + trained)
        assert provider.counters()["requests"] > before


def test_metrics_say_what_a_stage_cost_or_that_nobody_knows(tmp_path: Path) -> None:
    result, budget = play(tmp_path / "run", 1e9, sampler=CountingSampler())
    state = result.unwrap()
    JsonLines(tmp_path, PARAMS, state, PRICES)
    known = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    names = [name for name in known[0] if name.endswith(".dollars")]
    assert names == ["prover.dollars", "verifier.dollars"]
    assert sum(row.get(name, 0) for row in known for name in names) == pytest.approx(budget.spent)
    paid = replace(PARAMS, agents=tuple(replace(a, use_dummy_api=False) for a in PARAMS.agents))
    JsonLines(tmp_path, paid, state, Prices(PriceTable(), PriceTable()))
    unknown = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [row[name] for row in unknown for name in names if name in row] == [
        None for row in known for name in names if name in row
    ]
