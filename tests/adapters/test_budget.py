"""A run within a budget: never more than that, and everything that was paid for is kept."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.config.groups import make_groups
from nip_fn.errors import Problem
from nip_fn.game.chat import Message
from nip_fn.game.reply import Completion
from nip_fn.keys import fold_in, key
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.events import Event, RunStarted
from nip_fn.run.jobs import make_job
from nip_fn.run.ports import Sampler, Tuned, World
from nip_fn.run.replay import replay
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState, StageMetrics
from nip_fn.training.losses import SFT
from nip_fn.training.rows import imitated
from nip_fn.training.tokens import estimated_training
from nip_fn.training.tuning import Job
from nip_fn_adapters.costs.budget import (
    Budget,
    Meter,
    tokens_of,
    training_within_budget,
    within_budget,
)
from nip_fn_adapters.costs.note import UNRECORDED, UnrecordedNote, read_unrecorded
from nip_fn_adapters.costs.prices import Price, Prices, PriceTable, Tokens, cost, upper_bound_prompt
from nip_fn_adapters.costs.spending import dollars_of, run_cost, stage_expenses
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.retries import RetryPolicy
from nip_fn_adapters.providers.api.sampler import ApiModel, ClientSettings, api_sampler
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.tracker import METRICS, JsonLines

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


def upper_bound(request: Request) -> Tokens:
    """Of a request whose siblings are billed for the prompt one by one."""
    num = len(request.keys)
    return Tokens(num * upper_bound_prompt(request.chat), completion=num * request.max_tokens)


def at_price(budget: Budget, price: Price | None = DEAR) -> Meter:
    meter = Meter()
    meter.open(budget, lambda request: price)
    return meter


def wrapped(sampler: Sampler, budget: Budget, price: Price | None = DEAR) -> Sampler:
    return within_budget(sampler, at_price(budget, price))


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
    most = cost(upper_bound(request), DEAR) or 0.0
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
    most = cost(upper_bound(request), DEAR) or 0.0
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


async def test_one_that_is_cancelled_as_its_turn_comes_does_not_keep_it() -> None:
    budget = Budget(1.0)
    reservation = await budget.reserve(1.0)
    late = asyncio.ensure_future(budget.reserve(1.0))
    await asyncio.sleep(0)
    budget.settle(reservation, 0.0)  # its turn ...
    late.cancel()  # ... but it is gone before it hears of it
    await asyncio.gather(late, return_exceptions=True)
    assert late.cancelled()
    assert await budget.reserve(1.0)


async def test_what_waits_in_line_is_held_back_and_what_is_under_way_is_not() -> None:
    budget = Budget(1.0)
    reservation = await budget.reserve(1.0)
    line = [asyncio.ensure_future(budget.reserve(0.5)) for _ in range(3)]
    await asyncio.sleep(0)
    budget.drain()
    await asyncio.gather(*line, return_exceptions=True)
    assert all(task.cancelled() for task in line)
    budget.settle(reservation, 0.5)
    assert await budget.reserve(0.5)


@given(st.integers(0, 10**6), st.floats(0.1, 3.0), st.integers(1, 40), st.floats(0.0, 1.0))
def test_a_kill_at_any_moment_forgets_nothing(
    seed: int, limit: float, number: int, share_lost: float
) -> None:
    """The note and the recording together cover the bill, and with what is left the limit."""
    random, noted, billed, recorded_ = Random(seed), 0.0, 0.0, 0.0

    def note(dollars: float, *, sync: bool) -> None:
        nonlocal noted
        noted = dollars

    def check() -> None:
        assert billed <= recorded_ + noted + 1e-9
        assert billed <= limit + 1e-6

    budget = Budget(limit, note=note)
    meter = at_price(budget)

    async def exchange(seed: int) -> None:
        nonlocal billed, recorded_
        request = ask(seed)
        reserved = await meter.reserve(request, 2)
        if isinstance(reserved, Failure):
            return
        used = Tokens(random.randint(1, 15), 0, random.randint(0, 40))
        with reserved.unwrap() as charge:
            billed += cost(used, DEAR) or 0.0
            check()
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            if random.random() < share_lost:
                charge.bill(None)
                return
            charge.bill(used)
        check()
        await asyncio.sleep(0)
        recorded_ += cost(used, DEAR) or 0.0
        budget.record(cost(used, DEAR) or 0.0)
        check()

    async def everything() -> None:
        await asyncio.gather(*(exchange(one) for one in range(number)))

    asyncio.run(everything())
    check()
    budget.close()
    assert noted == pytest.approx(budget.unrecorded)
    if not share_lost:
        assert noted == pytest.approx(0.0, abs=1e-9)


async def test_what_a_kill_may_lose_is_a_share_of_what_is_left() -> None:
    """One request may always be under way, and work that is found again as much as fits."""
    budget = Budget(10.0)
    turns = [asyncio.ensure_future(budget.reserve(1.0)) for _ in range(5)]
    await asyncio.sleep(0.01)
    assert [turn.done() for turn in turns] == [True, True, True, False, False]
    budget.settle(turns[0].result(), 0.0)
    await asyncio.sleep(0.01)
    assert [turn.done() for turn in turns] == [True, True, True, True, False]
    budget.drain()
    for turn in turns[1:4]:
        budget.settle(turn.result(), 0.0)
    budget.settle(await budget.reserve(9.0), 0.0)
    found_again = [budget.reserve(2.0, durable=True) for _ in range(5)]
    assert all(await asyncio.gather(*found_again))


@pytest.mark.parametrize("answers", [0, 31, 32])
async def test_as_much_is_under_way_as_the_dearest_answers_would_come_to(answers: int) -> None:
    """A third of what is left, and seven tenths if each were to cost its most; that is noted."""
    noted, request = 0.0, ask()

    def note(dollars: float, *, sync: bool) -> None:
        nonlocal noted
        noted = dollars

    most, dearest = 20.0, 4.0  # dollars of a request
    budget = Budget(30 * most, note=note)
    meter = at_price(budget, Price(prompt=0.0, completion=1e6))
    for number in range(answers):
        paid = dearest - number % 3
        with (await meter.reserve(request, 1)).unwrap() as charge:
            charge.bill(Tokens(prompt=1, completion=paid))
        budget.record(paid)
    left = budget.limit - budget.spent
    turns = [asyncio.ensure_future(meter.reserve(request, 1)) for _ in range(60)]
    await asyncio.sleep(0.05)
    number = sum(turn.done() for turn in turns)
    few, many = left / 3 / most, min(left / 3 / dearest, 0.7 * left / most)
    assert number == int(many if answers >= 32 else few)
    assert noted >= number * most
    assert budget.spent + number * most <= budget.limit
    for turn in turns:
        turn.cancel()


async def test_what_a_prompt_may_cost_is_learnt_from_what_such_prompts_cost() -> None:
    """Half of the sure bound at most was counted: three quarters are reserved from then on."""
    budget, request = Budget(1e6), ask()
    meter = at_price(budget, Price(prompt=1e6, completion=0.0))
    sure = upper_bound_prompt(request.chat)
    for number in range(40):
        with (await meter.reserve(request, 1)).unwrap() as charge:
            charge.bill(Tokens(prompt=sure // (2 + number % 3)))
        with (await meter.reserve(request, 1)).unwrap() as charge:
            charge.bill(Tokens())  # refused
    before = budget.spent
    with (await meter.reserve(request, 1)).unwrap() as charge:
        charge.bill(None)
    assert budget.spent - before == pytest.approx(0.75 * sure, abs=2)


def test_a_note_that_cannot_be_written_ends_the_run_and_sends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / UNRECORDED).mkdir()
    meter = at_price(Budget(1.0, note=UnrecordedNote(folder)))
    with pytest.raises(IsADirectoryError):
        asyncio.run(meter.reserve(ask(), 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "much", "-1", "nan", "inf", "\xff"])
def test_a_note_that_is_no_number_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / UNRECORDED).write_text(text, "latin-1")
    assert UNRECORDED in str(read_unrecorded(tmp_path).failure())


def test_a_shorter_number_overwrites_a_longer_one(tmp_path: Path) -> None:
    note = UnrecordedNote(tmp_path)
    for amount in (12345.125, 0.5, 1e-7):
        note(amount, sync=True)
        assert read_unrecorded(tmp_path).unwrap() == amount


ONCE = RetryPolicy(max_attempts=1, max_outage=0.0, max_unreached=0.0)


def charged_once(url: str) -> float:
    """The dollars for one request that is sent once."""
    budget = Budget(1e6)
    settings = ClientSettings(policy=ONCE, meter=at_price(budget), timeout=2.0)
    sampler = api_sampler({"verifier": ApiModel((Endpoint(url, "key"),))}, settings)
    assert isinstance(asyncio.run(_of(sampler, ask())), Failure)
    assert budget.lost == budget.spent
    return budget.spent


def test_what_may_have_been_billed_is_charged_and_a_clear_refusal_is_not() -> None:
    charged = {}
    with Provider() as provider:
        for fault in ("500", "401", "503", "malformed", "lost", "reset-mid-body", "empty-choices"):
            provider.reset(faults=[{"fault": fault}])
            charged[fault] = charged_once(provider.url) > 0
    charged["nobody there"] = charged_once(provider.url) > 0
    assert [name for name, is_charged in charged.items() if not is_charged] == [
        "500", "401", "503", "nobody there",
    ]  # fmt: skip


@pytest.mark.parametrize("status", ["502", "504"])
def test_a_gateway_is_charged_for_what_took_as_long_as_an_answer(status: str) -> None:
    async def charged(url: str, fault: str) -> float:
        budget = Budget(1e6)
        settings = ClientSettings(policy=ONCE, meter=at_price(budget))
        sampler = api_sampler({"verifier": ApiModel((Endpoint(url, "key"),))}, settings)
        provider.configure(faults=[{"fault": fault, "match": {"kind": "chat", "after": 2}}])
        (await sampler(ask(0))).unwrap()
        (await sampler(ask(1))).unwrap()
        before = budget.spent
        assert isinstance(await sampler(ask(2)), Failure)
        return budget.spent - before

    with Provider(latency=0.3) as provider:
        at_once = asyncio.run(charged(provider.url, status))
        late = asyncio.run(charged(provider.url, f"{status}-after"))
        assert at_once == 0.0
        assert late > 0.0
        provider.reset(faults=[{"fault": status}])
        assert charged_once(provider.url) == 0.0  # before any answer


async def test_only_what_was_lost_is_said_to_be() -> None:
    """Not an answer that has come and is about to be recorded."""
    request = ask()
    most = cost(upper_bound(request), DEAR) or 0.0
    budget = Budget(1.5 * most)
    first = await wrapped(Vendor(budget, 1), budget)(request)
    paid = budget.spent
    assert isinstance(first, Success)
    assert paid > 0
    assert not await budget.reserve(2 * most)
    assert "lost" not in str(budget.refusal)
    assert budget.unrecorded == pytest.approx(paid)


def job(rows: int) -> Job:
    params = small_params()
    texts = (imitated((Message("user", "x" * 400),), "y" * 400),) * rows
    return replace(make_job(params, make_groups(params)[0], 0, texts, SFT(), key(1)), num_epochs=3)


def test_trainings_are_kept_within_the_budget_by_what_they_report() -> None:
    budget = Budget(0.3)
    done: list[str] = []

    async def tune(job: Job) -> Result[Tuned, Problem]:
        done.append(job.name)
        return Success(Tuned("adapter", (("train_tokens", 1000.0),)))

    async def story() -> None:
        tuner = training_within_budget(tune, budget, lambda job: DEAR, estimated_training)
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


def nothing(row: StageMetrics, seconds: float) -> None:
    pass


def play(
    folder: Path,
    limit: float,
    *,
    metered: Callable[[Meter], Sampler],
    params: HyperParameters = PARAMS,
) -> tuple[Result[RunState, Problem], Budget]:
    """A session of a run that costs, as far as a budget goes."""
    data = in_memory(small_dataset())
    state, first = EMPTY, [RunStarted(params, data.info, "0")]
    if folder.exists():
        opened, recording = store.reopen(folder).unwrap()
        state, first = replay(recording.events).unwrap().state, []
    else:
        opened = store.create(folder).unwrap()
    lost = read_unrecorded(folder).unwrap()
    budget = Budget(limit, run_cost(state, PRICES) or 0.0, lost, UnrecordedNote(folder))
    tuner = dummy.dummy_tuner()
    world = World(
        sampler=metered(at_price(budget)),
        tuner=training_within_budget(tuner, budget, lambda job: DEAR, estimated_training),
        publisher=dummy.serve_at_once,
        source=data.source,
        store=opened,
        tracker=nothing,
    )

    def observe(state: RunState, event: Event) -> None:
        budget.record(dollars_of(state, event, PRICES) or 0.0)

    result = asyncio.run(interpret(state, world, first=first, observe=observe))
    opened.close()
    budget.close()
    return result, budget


def recorded(folder: Path) -> RunState:
    """What a resumed run would know."""
    return replay(store.read_recording(folder / store.CHECKPOINT).unwrap().events).unwrap().state


def test_a_run_in_many_small_budgets_ends_as_one_without(tmp_path: Path) -> None:
    """It stops at each, with nothing lost and nothing asked twice, and never costs more."""
    asked, asked_whole = CountingSampler(), CountingSampler()
    whole, free = play(tmp_path / "whole", 1e9, metered=partial(within_budget, asked_whole))
    assert run_cost(whole.unwrap(), PRICES) == pytest.approx(free.spent)
    limit, stops = free.spent / 7, 0
    result, budget = play(tmp_path / "run", limit, metered=partial(within_budget, asked))
    while isinstance(result, Failure):
        assert result.failure() == budget.refusal
        assert budget.spent <= limit
        assert run_cost(recorded(tmp_path / "run"), PRICES) == pytest.approx(budget.spent)
        stops, limit = stops + 1, limit + free.spent / 7
        assert stops < 40
        result, budget = play(tmp_path / "run", limit, metered=partial(within_budget, asked))
    assert stops > 4
    assert digest(result.unwrap()) == digest(whole.unwrap())
    assert asked.count == asked_whole.count
    assert any(row.stage == "train" and dict(row.metrics)["jobs"] for row in result.unwrap().rows)


def test_the_bill_of_a_real_server_stays_within_the_budget(tmp_path: Path) -> None:
    """By its own count of tokens, cached ones included, with many requests in flight."""
    pytest.importorskip("openai")
    asked = {"use_dummy_api": False, "max_tokens_per_message": 225}
    agents = tuple(replace(agent, **asked) for agent in PARAMS.agents)
    params = replace(PARAMS, agents=agents)
    with Provider(latency=(0.0, 0.02)) as provider:

        def bill() -> float:
            told = provider.counters()
            names = ("prompt_tokens", "cached_tokens", "completion_tokens")
            return cost(Tokens(*(told[name] for name in names)), DEAR) or 0.0

        def sit(limit: float) -> tuple[Result[RunState, Problem], Budget]:
            served = {agent.name: ApiModel((Endpoint(provider.url, "key"),)) for agent in agents}

            def metered(meter: Meter) -> Sampler:
                return api_sampler(served, ClientSettings(meter=meter))

            return play(tmp_path / "run", limit, metered=metered, params=params)

        result, budget = sit(4.0)
        assert result.failure() == budget.refusal
        assert 3.0 < bill() <= 4.0
        assert run_cost(recorded(tmp_path / "run"), PRICES) == pytest.approx(bill())
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
    result, budget = play(tmp_path / "run", 1e9, metered=partial(within_budget, CountingSampler()))
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


def test_a_first_note_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            UnrecordedNote(tmp_path)(1.5, sync=False)
    assert read_unrecorded(tmp_path).unwrap() == 0.0
    UnrecordedNote(tmp_path)(1.5, sync=False)
    assert read_unrecorded(tmp_path).unwrap() == 1.5
