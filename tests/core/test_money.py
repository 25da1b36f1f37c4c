"""Prices, what was spent, and what a run will come to."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn.game.chat import Message
from nip_fn.game.datapoint import Datapoint, Split
from nip_fn.game.episode import reset
from nip_fn.game.reply import Completion
from nip_fn.keys import fold_in
from nip_fn.params.agent import AgentParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import JobFinished, Replied, RunStarted
from nip_fn.run.forest import Forest
from nip_fn.run.stages import Growing
from nip_fn.run.state import EMPTY, RunState, rules, stage_key
from nip_fn.training.rows import imitated, preference
from nip_fn.training.tokens import estimated_prompt, estimated_training, trained_tokens
from nip_fn.trees.grow import insert, new_tree
from nip_fn.trees.node import GameTree, ReplyArrival, node_at, pending_requests
from nip_fn_adapters.costs.forecast import (
    Assumptions,
    StageForecast,
    decision_points,
    forecast_stages,
)
from nip_fn_adapters.costs.prices import (
    FREE,
    Price,
    Prices,
    PriceTable,
    Tokens,
    cost,
    find,
    in_batches,
    listed_prices,
    parse_prices,
    price_of,
    prices_text,
    sum_known,
    total,
    unpriced,
    upper_bound_prompt,
)
from nip_fn_adapters.costs.spending import dollars_of, run_cost, run_expenses, stage_expenses

from .games import BUSY, DATA, DATASET, MANY_PAIRS, Setup, make_params, play, setups, shuffled

NONE = PriceTable()
LISTED = Prices(NONE, listed_prices())

tokens = st.integers(0, 10**7)
token_counts = st.builds(
    lambda prompt, share, completion, trained: Tokens(
        prompt, round(prompt * share), completion, trained
    ),
    tokens,
    st.floats(0, 1),
    tokens,
    tokens,
)
dollar = st.floats(0, 100)
prices = st.builds(Price, dollar, dollar, st.none() | dollar, dollar)


# ------------------------------------------------------------------------------------------- costs


@given(st.lists(token_counts), prices)
def test_what_is_stage_expenses_parts_adds_up(parts: list[Tokens], price: Price) -> None:
    whole = cost(total([Tokens(), *parts]), price)
    assert whole == pytest.approx(sum_known(cost(part, price) for part in parts))


def test_a_cost_by_hand() -> None:
    price = Price(prompt=2.0, completion=8.0, cached=0.5, training=25.0)
    usage = Tokens(prompt=3_000_000, cached=1_000_000, completion=500_000, trained=10_000)
    assert cost(usage, price) == 2 * 2.0 + 0.5 + 4.0 + 0.25
    assert cost(usage, replace(price, cached=None)) == 3 * 2.0 + 4.0 + 0.25
    half = in_batches(replace(price, batch=0.5))
    assert cost(usage._replace(trained=0), half) == (2 * 2.0 + 0.5 + 4.0) / 2
    assert half.training == 25.0


def test_more_cached_tokens_than_there_were_are_none_of_the_bill() -> None:
    price = Price(prompt=2.0, completion=8.0, cached=1.0)
    assert cost(Tokens(prompt=10, cached=50), price) == cost(Tokens(prompt=10, cached=10), price)


def test_an_unknown_price_is_never_nothing() -> None:
    assert cost(Tokens(prompt=1), None) is None
    assert cost(Tokens(trained=1), Price(1.0, 1.0)) is None
    assert cost(Tokens(), None) == 0.0
    assert sum_known([1.0, None]) is None
    assert sum_known([]) == 0.0


# ------------------------------------------------------------------------------------------- names


@given(
    st.sampled_from(sorted(listed_prices().models)),
    st.dates().map(lambda date: f"{date:%Y-%m-%d}".zfill(10)) | st.sampled_from(["latest", "0613"]),
    st.sampled_from(["", "openai/"]),
)
def test_a_snapshot_costs_what_its_model_does(name: str, date: str, provider: str) -> None:
    table = listed_prices().models
    expected = table.get(f"{name}-{date}", table[name])
    assert find(table, f"{provider}{name}-{date}") == expected
    assert find(table, f"{provider}{name}") == table[name]


@given(st.sampled_from(sorted(listed_prices().models)), st.text("abcxyz-.5", min_size=1))
def test_a_name_that_only_begins_alike_is_another_model(name: str, rest: str) -> None:
    table = listed_prices().models
    assert find(table, name + rest) == table.get(name + rest)


def agent(model: str, provider: str = "OpenAI", **fields: object) -> AgentParameters:
    return AgentParameters(name="a", model_name=model, model_provider=provider, **fields)  # type: ignore[arg-type]


names = st.text(max_size=12).filter(lambda name: name.isprintable())
tables = st.dictionaries(names, prices, max_size=3)


@given(st.builds(PriceTable, tables, tables))
def test_a_table_that_is_kept_is_read_again(table: PriceTable) -> None:
    assert parse_prices(prices_text(table)).unwrap() == table


def test_what_was_fine_tuned_has_prices_of_its_own() -> None:
    base, tuned = listed_prices().models["gpt-4o-mini"], listed_prices().fine_tuned["gpt-4o-mini"]
    snapshot = agent("gpt-4o-mini-2024-07-18")
    assert price_of(LISTED, snapshot, tuned=False) == base
    assert price_of(LISTED, snapshot, tuned=True) == tuned
    named = agent("ft:gpt-4o-mini-2024-07-18:org:suffix:abc")
    assert price_of(LISTED, named, tuned=False) == price_of(LISTED, named, tuned=True) == tuned
    assert price_of(LISTED, agent("gpt-5"), tuned=True) is None
    assert price_of(LISTED, agent("ft:gpt-5:org::x"), tuned=False) is None


def test_the_listed_prices_are_sensible() -> None:
    table = listed_prices()
    for name, price in (*table.models.items(), *table.fine_tuned.items()):
        assert 0 < price.prompt < price.completion, name
        assert price.cached is None or price.cached < price.prompt, name
    for name, price in table.fine_tuned.items():
        assert price.training, name
        assert price.prompt >= table.models[name].prompt, name


@pytest.mark.parametrize("model", ["gpt-4o", "any/thing"])
def test_what_runs_here_is_free_unless_the_user_says_otherwise(model: str) -> None:
    own = Prices(PriceTable({model: Price(1.0, 2.0)}), listed_prices())
    for one in (
        agent(model, "local"),
        agent(model, "SelfHosted"),
        agent(model, use_dummy_api=True),
    ):
        assert price_of(LISTED, one, tuned=False) == price_of(LISTED, one, tuned=True) == FREE
        for tuned in (False, True):
            found = price_of(own, one, tuned=tuned)
            assert found == Price(1.0, 2.0, training=0.0)
    assert price_of(LISTED, agent("some/model:free", "OpenRouter"), tuned=False) == FREE
    assert price_of(LISTED, agent("some/model", "OpenRouter"), tuned=False) is None


def test_the_users_prices_go_before_the_listed_ones() -> None:
    own = Prices(PriceTable({"gpt-4o": Price(9.0, 9.0)}), listed_prices())
    found = price_of(own, agent("gpt-4o-2024-05-13"), tuned=False)
    assert found == Price(9.0, 9.0)


def test_what_has_no_price_is_named_and_only_if_it_is_needed() -> None:
    table = {"agents": {"_default": {"model_name": "gpt-5"}, "prover": {"freeze_agent": True}}}
    params = make_params(table, {"rl": {"num_iterations": 1}})
    assert unpriced(LISTED, params) == (
        "agents.verifier: gpt-5, fine-tuned",
        "agents.verifier: gpt-5, its training",
    )
    assert unpriced(LISTED, make_params(table, {"rl": {"num_iterations": 0}})) == ()
    assert unpriced(LISTED, make_params({"rl": {"num_iterations": 1}})) == ()
    unknown = make_params({"agents": {"_default": {"model_name": "m", "freeze_agent": True}}})
    assert unpriced(LISTED, unknown) == ("agents.prover: m", "agents.verifier: m")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("models = 5", "models"),
        ('[models]\n"m" = { prompt = -1, completion = 1 }', "prompt"),
        ('[models]\n"m" = { prompt = 1 }', "completion"),
        ('[models]\n"m" = { prompt = 1, completion = 1, promt = 1 }', "promt"),
        ("[model]", "model"),
        ("[models", "TOML"),
    ],
)
def test_what_is_wrong_with_a_price_table_is_one_line(text: str, word: str) -> None:
    line = str(parse_prices(text).failure())
    assert word in line
    assert "\n" not in line


# --------------------------------------------------------------------------------- bounds of tokens

words = st.text(max_size=200)
chats = st.lists(st.builds(Message, st.just("user"), words, st.none() | words)).map(tuple)


@given(chats)
def test_no_prompt_has_more_tokens_than_its_bound(chat: tuple[Message, ...]) -> None:
    """A tokenizer that goes by bytes has one token a byte at worst; names may be shown, too."""
    size = sum(
        len(text.encode("utf-8", "replace")) for m in chat for text in (m.content, m.name or "")
    )
    assert upper_bound_prompt(chat) >= size + 16 * len(chat)
    assert upper_bound_prompt(chat) >= estimated_prompt(chat)


def test_trained_tokens_are_those_reported_or_else_a_guess() -> None:
    ended = next(one.state for one in play(BUSY) if isinstance(one.event, JobFinished))
    job = ended.jobs[0].job
    chat, chosen, rejected = (
        (Message("user", "x" * 40),),
        "y" * 80,
        "z" * 8,
    )
    three = replace(job, num_epochs=3, rows=(preference(chat, chosen, rejected),))
    assert estimated_training(three) == 3 * (10 + 4 + 20 + 2)
    assert estimated_training(replace(three, rows=(imitated(chat, chosen),))) == 3 * (14 + 20)
    assert estimated_training(three, 2.0, 10.0) == 3 * (28 + 220)
    assert trained_tokens(three, "adapter", ()) == 108.0
    assert trained_tokens(three, "adapter", (("train_tokens", 7.0),)) == 7.0
    assert trained_tokens(three, None, ()) == 0.0


# ----------------------------------------------------------------------------------- what was spent


@given(setups(), st.integers(0, 99))
def test_at_any_moment_a_run_has_cost_what_its_events_add_up_to(setup: Setup, order: int) -> None:
    """From the state alone, whatever was asked for first: so a resumed run knows what is spent."""
    paid = 0.0
    for before, moment in pairwise((None, *play(setup, shuffled(order)))):
        assert moment is not None
        state: RunState = EMPTY if before is None else before.state
        added = dollars_of(state, moment.event, LISTED)
        assert added is not None
        paid += added
        assert dollars_of(moment.state, moment.event, LISTED) == added  # or after the event
        assert run_cost(moment.state, LISTED) == pytest.approx(paid)


def test_tokens_are_counted_by_agent_cached_ones_too() -> None:
    run = play(BUSY)
    counts: Counter[tuple[str, str]] = Counter()
    for moment in run:
        if isinstance(moment.event, Replied):
            name, done = BUSY.params.agents[moment.event.agent].name, moment.event.completion
            counts[name, "prompt"] += done.prompt_tokens
            counts[name, "completion"] += done.completion_tokens
    for name in ("prover", "verifier"):
        own = total(
            [
                s.tokens
                for s in run_expenses(run[-1].state, LISTED)
                if s.name == name and not s.tokens.trained
            ]
        )
        assert (own.prompt, own.completion) == (counts[name, "prompt"], counts[name, "completion"])
        assert counts[name, "prompt"] > 0


def test_after_a_training_replies_cost_what_the_fine_tuned_model_does() -> None:
    state = play(BUSY)[-1].state
    table = Prices(NONE, PriceTable(
        {"gpt-4o-mini": Price(1e6, 0.0)}, {"gpt-4o-mini": Price(1e9, 0.0, training=1e3)}
    ))  # fmt: skip
    for row in state.rows:
        for one in stage_expenses(state.params, row, table):
            if row.stage == "train":
                assert one.dollars == pytest.approx(one.tokens.trained / 1000)
            else:
                assert one.dollars == one.tokens.prompt * (1 if row.iteration == 0 else 1000)
    assert {row.stage for row in state.rows} >= {"test", "sample", "train"}


def test_the_cost_of_an_agent_that_played_several_models_is_that_of_all_of_them() -> None:
    """Unknown if the price of one of them is."""
    met = {"agents": {"_default": {"opponent_pool": 3, "opponent_pool_share": 0.45}}}
    state = play(Setup(make_params(MANY_PAIRS, met), decision_rate=0.5))[-1].state
    tuned = PriceTable({}, {"gpt-4o-mini": Price(1e9, 0.0, training=1e3)})
    both = PriceTable({"gpt-4o-mini": Price(1e6, 0.0)}, tuned.fine_tuned)
    (row,) = [row for row in state.rows if (row.iteration, row.stage) == (1, "sample")]
    known = stage_expenses(state.params, row, Prices(NONE, both))
    assert [one.name for one in known] == ["prover", "verifier"]
    for index, one in enumerate(known):
        used = [use for use in row.usage if use.agent == index]
        assert len(used) == 2
        assert one.tokens.prompt == sum(use.prompt for use in used)
        assert one.dollars == sum(use.prompt * (1000 if use.adapter else 1) for use in used)
    unknown = stage_expenses(state.params, row, Prices(NONE, tuned))
    assert [one.dollars for one in unknown] == [None, None]


# -------------------------------------------------------------------------------- what it will cost


def draw(split: Split, indices: Sequence[int]) -> tuple[Datapoint, ...]:
    return tuple(DATA[split][index] for index in indices)


def asked(state: RunState) -> dict[tuple[int, str, str], tuple[float, float]]:
    """(iteration, stage, agent) -> requests and replies, as a run counted them."""
    return {
        (row.iteration, row.stage, one.name): (
            numbers[f"{one.name}.requests"],
            numbers[f"{one.name}.replies"],
        )
        for row in state.rows
        if row.stage in ("test", "sample")
        for numbers in [dict(row.metrics)]
        for one in state.params.agents
    }


def planned(lines: Sequence[StageForecast]) -> dict[tuple[int, str, str], tuple[float, float]]:
    return {
        (line.iteration, line.stage, line.name): (line.most.requests, line.most.replies)
        for line in lines
        if line.stage != "train"
    }


def with_one_request_a_position(setup: Setup) -> Setup:
    """As a dummy is asked, and as the run counts."""
    agents = tuple(replace(one, replies_per_request="all") for one in setup.params.agents)
    return setup._replace(params=replace(setup.params, agents=agents))


@given(setups())
def test_when_nobody_decides_early_a_run_asks_for_exactly_the_most(setup: Setup) -> None:
    """For any protocol, trainer, branching, schedule and forced guess."""
    setup = with_one_request_a_position(setup)._replace(decision_rate=0.0, invalid_rate=0.0)
    setup = setup._replace(all_checked=True)
    lines = forecast_stages(RunStarted(setup.params, DATASET, ""), draw)
    assert asked(play(setup)[-1].state) == planned(lines)


@given(setups())
def test_no_run_without_retries_asks_for_more(setup: Setup) -> None:
    setup = with_one_request_a_position(setup)._replace(invalid_rate=0.0)
    lines = forecast_stages(RunStarted(setup.params, DATASET, ""), draw)
    state = play(setup)[-1].state
    most = planned(lines)
    for place, (requests, replies) in asked(state).items():
        assert requests <= most[place][0]
        assert replies <= most[place][1]
    for line in lines:
        assert all(a <= b for a, b in zip(line.expected.tokens, line.most.tokens, strict=True))
    trained = {(line.iteration, line.name): line.most.tokens.trained for line in lines}
    for row in state.rows:
        for spent in stage_expenses(state.params, row, LISTED) if row.stage == "train" else ():
            assert spent.tokens.trained <= trained[row.iteration, spent.name]


def test_a_script_costs_nothing() -> None:
    met = {"opponent_scripts": ["silent"], "opponent_pool_share": 0.5}
    tables = {"rl": {"num_iterations": 1}}, {"agents": {"verifier": met}}
    without, scripted = (
        {
            (line.stage, line.name): line.most
            for line in forecast_stages(RunStarted(make_params(*some), DATASET, ""), draw)
        }
        for some in (tables[:1], tables)
    )
    played, model = scripted["sample", "prover"], without["sample", "prover"]
    assert 0.3 < played.prompt / model.prompt < 0.7
    assert 0.3 < played.completion / model.completion < 0.7
    assert scripted["test", "prover"] == without["test", "prover"]


FILLED = Assumptions(0.0, lambda agent: 12, True, 1.0, True)


@pytest.mark.parametrize("how", ["joint", "product"])
@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "mnip", "merlin_arthur"])
def test_a_tree_grown_whole_asks_with_the_prompts_that_were_forecast(
    protocol: str, how: str
) -> None:
    """Replies of the assumed length at every position, against one dialogue that stands for all."""
    params = make_params(
        {
            "interaction_protocol": protocol,
            "malt": {"num_responses_per_timestep": 2, "simultaneous_branching": how},
            **{f"{name}_protocol": {"max_message_rounds": 3} for name in ("nip", "debate", "mnip")},
        }
    )
    (first, *_) = play(Setup(params))
    place = stage_key(first.state, "sample")
    start = reset(DATA["train"][0], fold_in(place, "tree", 0))
    stage = Growing("sample", place, DATA["train"][:1], Forest(), 0)
    state = replace(first.state, stage=stage, iteration=0)
    root = new_tree(rules(state), start)
    grown: Counter[int] = Counter()
    while asks := tuple(pending_requests(root)):
        for ask in asks:
            _, episode = node_at(root, start, ask.path)
            chat = build_chat(params, protocol_of(params), DATA["train"][0], episode, ask.agent)
            grown[ask.agent] += estimated_prompt(chat)
            moves = rules(state).protocol.schedule(len(episode.rounds), start.key)
            move = next(move for move in moves if move.agent == ask.agent)
            headers = rules(state).protocol.headers(move) or ("",)
            text = "\n".join(f"{h} {'y' * (48 // len(headers))}".strip() for h in headers)
            for index in ask.indices:
                given_ = ReplyArrival(ask.path, ask.agent, index, 0, Completion(text, "stop", "m"))
                root, _ = insert(rules(state), root, start, given_)
    counted: Counter[int] = Counter()
    stage = replace(stage, forest=(GameTree(state.protocol.name, 0, start.key, root),))
    for points in decision_points(state, stage, 0, FILLED):
        counted[points.agent] += round(points.number) * points.prompt
    assert counted == grown


def test_siblings_asked_for_one_by_one_pay_for_the_prompt_each() -> None:
    def prompts(mode: str, provider: str = "OpenAI") -> list[tuple[float, float]]:
        params = make_params(
            {
                "agents": {"_default": {"replies_per_request": mode, "model_provider": provider}},
                "rl": {"num_iterations": 1, "rollouts_per_iteration": 2},
                "text_rl": {"test_scheme": "none"},
                "nip_protocol": {"max_message_rounds": 3},
                "malt": {"num_responses_per_timestep": 3},
            }
        )
        lines = forecast_stages(RunStarted(params, DATASET, ""), draw)
        return [
            (fsum(amount.tokens.prompt for amount in amounts), fsum(a.requests for a in amounts))
            for amounts in ([line.expected for line in lines], [line.most for line in lines])
        ]

    together, single = prompts("all"), prompts("one")
    for (prompt, requests), (each, times) in zip(together, single, strict=True):
        assert each == pytest.approx(3 * prompt, rel=0.01)
        assert times == pytest.approx(3 * requests, rel=0.1)
    assert prompts("auto") == together
    assert prompts("auto", "SelfHosted")[1][1] == 3 * prompts("all", "SelfHosted")[1][1]


def test_more_trees_than_are_looked_at_are_all_counted() -> None:
    params = make_params(
        {
            "interaction_protocol": "merlin_arthur",
            "rl": {"num_iterations": 1, "rollouts_per_iteration": 150},
            "text_rl": {"test_scheme": "none"},
        }
    )
    (line, *others) = forecast_stages(RunStarted(params, DATASET, ""), draw)
    by_agent = {one.name: one.most.replies for one in (line, *others) if one.stage == "sample"}
    k = params.malt.num_responses_per_timestep
    assert by_agent["verifier"] == 150 * k * k
    assert by_agent["prover0"] + by_agent["prover1"] == 150 * k
    assert min(by_agent["prover0"], by_agent["prover1"]) > 30 * k
