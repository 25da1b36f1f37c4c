import copy
import tomllib
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.config.checks import group_problems, warnings
from nip_fn.config.codec import (
    default_table,
    differences,
    from_dict,
    get,
    merge,
    nest,
    params_hash,
    to_dict,
)
from nip_fn.config.presets import PLAYERS, WORLDS, with_preset
from nip_fn.config.toml import to_toml
from nip_fn.config.trainers import TRAINERS
from nip_fn.params.agent import AgentParameters, lora_alpha, max_tokens
from nip_fn.params.names import BUILT_IN_TRAINERS
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.nip import nip
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.stages import Done
from nip_fn.testing.params import construct_test_params

from .fresh import printed
from .games import Setup, make_params, play, setups


def problem(table: dict[Any, Any]) -> str:
    """The line of the first problem with the table, whose three parts are all in place."""
    found = from_dict(table).failure()
    assert found.address
    assert found.problem
    line = str(found)
    assert line.strip()
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("sed", "seed"),
        ("trainr", "trainer"),
        ("rl.learning_rat", None),
        ("rl.num_iteration", "num_iterations"),
        ("malt.value_backups", "value_backup"),
        ("nip_protocol.max_rounds", "max_message_rounds"),
        ("protocol_common.prover_rewards", "prover_reward"),
        ("text_rl.test_schema", "test_scheme"),
        ("code_validation.system_prompt", "system_prompt_version"),
        ("dataset_options.max_train_sise", "max_train_size"),
        ("agents.prover.lora_rnk", "lora_rank"),
        ("agents.verifier.temperatur", "temperature"),
        ("rl.zzzz", None),
        ("zzzz.lr", None),
    ],
)
def test_an_unknown_key_is_refused_by_address_with_the_nearest_known(
    address: str, near: str | None
) -> None:
    line = problem(nest(address, 1))
    named = address if not address.startswith("zzzz") else "zzzz"
    assert line.startswith(f"{named}: ")
    assert (f"did you mean {near!r}?" in line) if near else ("known are" in line or "did" in line)


def test_an_unknown_key_of_all_agents_is_refused() -> None:
    line = problem(nest("agents._default.lora_rnk", 1))
    assert "lora_rnk" in line
    assert "'lora_rank'" in line


@pytest.mark.parametrize(
    ("address", "value", "said"),
    [
        ("seed", "six", "`int`"),
        ("seed", True, "`int`"),
        ("rl", 3, "`object`"),
        ("rl.num_iterations", -1, ">= 0"),
        ("agents.prover.update_schedule._type", "RandomUpdateSchedule", "RandomUpdateSchedule"),
        ("rl.num_iterations", 1.5, "`int`"),
        ("rl.lr", 0.0, "> 0.0"),
        ("rl.lr", float("nan"), "> 0.0"),
        ("malt.interval_threshold_proportion", 1.01, "<= 1.0"),
        ("malt.pair_selection_method", "best", "best"),
        ("agents.prover.lora_rank", 0, ">= 1"),
        ("agents.verifier.dpo_beta", 2.5, "<= 2.0"),
        ("agents.verifier.freeze_agent", "yes", "`bool`"),
        ("agents.prover.use_supervisor_message", "last", "last"),
        ("trainer", "ppo", "ppo"),
        ("test_dataset_split", "train", "trained on"),
        ("test_dataset_split", "dev", "dev"),
        ("dataset_options.only_split", "all", "no rows to train on"),
        ("nip_protocol.max_message_rounds", None, "`int`"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_by_address(
    address: str, value: object, said: str
) -> None:
    line = problem(nest(address, value))
    assert line.startswith(f"{address}: ")
    assert said in line


def test_an_agent_that_the_protocol_lacks_is_refused_with_those_it_has() -> None:
    line = problem({"agents": {"prover0": {}}})
    assert line.startswith("agents.prover0: ")
    assert "prover, verifier" in line


def test_an_unknown_protocol_is_refused_with_the_known_ones() -> None:
    line = problem({"interaction_protocol": "chess"})
    assert line.startswith("interaction_protocol: 'chess'")
    assert all(name in line for name in PROTOCOLS)


@pytest.mark.parametrize(
    "table",
    [
        {"interaction_protocol": ["nip"]},
        {"interaction_protocol": {}},
        {"interaction_protocol": None},
        {"agents": 3},
        {"agents": []},
        {"agents": {"prover": 3}},
        {"agents": {"prover": None}},
        {"agents": {"_default": 3}},
        {"agents": {"_default": "prover"}},
        {"agents": {1: {}}},
        {1: 2},
        {"rl": {1: 2}},
    ],
)
def test_a_table_of_the_wrong_shape_is_refused_not_met_with_an_exception(
    table: dict[Any, Any],
) -> None:
    problem(table)


# ------------------------------------------------------------------------------------ names


@pytest.mark.parametrize("address", ["trainer", "malt.pair_selection_method"])
@pytest.mark.parametrize("name", ["mine:TRAINER", "my_package.rules:best", "examples/own.py:OWN"])
def test_a_trainer_or_a_pair_rule_may_be_a_users_own(address: str, name: str) -> None:
    params = from_dict(nest(address, name)).unwrap()
    assert get(params, address) == name
    assert from_dict(to_dict(params)) == Success(params)


@pytest.mark.parametrize(
    ("address", "name", "near"),
    [
        ("trainer", "mallt", "malt"),
        ("malt.pair_selection_method", "intervall", "interval"),
        ("interaction_protocol", "debates", "debate"),
        ("trainer", "own.py", None),
        ("trainer", "examples/own.py:not a name", None),
        ("trainer", "", None),
    ],
)
def test_a_name_that_is_neither_known_nor_a_reference_is_refused_with_the_nearest(
    address: str, name: str, near: str | None
) -> None:
    found = from_dict(nest(address, name)).failure()
    assert found.address == address
    assert repr(name) in found.problem
    assert "choose from" in found.remedy
    assert (f"did you mean {near!r}?" in found.remedy) == (near is not None)


def test_a_protocol_of_the_users_own_must_be_registered_under_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "games/own.py:GAME"
    line = problem({"interaction_protocol": name})
    assert line.startswith(f"interaction_protocol: {name!r} has not been registered; ")
    monkeypatch.setitem(PROTOCOLS, name, nip)
    params = from_dict({"interaction_protocol": name}).unwrap()
    assert [agent.name for agent in params.agents] == ["prover", "verifier"]


def test_the_names_that_are_known_are_those_of_the_registry() -> None:
    assert set(BUILT_IN_TRAINERS) == set(TRAINERS)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
ADDRESSES = st.sampled_from(
    [
        "seed",
        "trainer",
        "interaction_protocol",
        "rl",
        "rl.lr",
        "malt",
        "agents",
        "agents.prover",
        "agents._default",
        "agents.verifier.lora_alpha",
        "nip_protocol.max_message_rounds",
        "zzz",
        "agents.zzz",
        "rl.zzz",
        "agents.prover.zzz",
    ]
)


@settings(max_examples=300)
@given(ADDRESSES, JSON)
def test_any_value_anywhere_gives_a_result(address: str, value: object) -> None:
    result = from_dict(nest(address, value))
    assert isinstance(result, Result)
    if isinstance(result, Success):
        assert from_dict(to_dict(result.unwrap())) == result


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_any_table_gives_a_result(table: dict[str, Any]) -> None:
    assert isinstance(from_dict(table), Result)


@pytest.mark.parametrize(
    ("table", "address"),
    [
        ({"nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 4}}, "min_message"),
        (
            {
                "nip_protocol": {"max_message_rounds": 1},
                "protocol_common": {"verifier_first": False},
            },
            "max_message",
        ),
    ],
)
def test_rounds_that_contradict_one_another_are_refused(
    table: dict[str, Any], address: str
) -> None:
    assert problem(table).startswith(f"nip_protocol.{address}_rounds: ")


@pytest.mark.parametrize(
    ("rl", "words"),
    [
        ({"rollouts_per_iteration": 3, "frames_per_batch": 16}, "keep one"),
        ({"frames_per_batch": 17}, "write 16"),
        ({"frames_per_batch": 3}, "write 8"),
    ],
)
def test_the_size_of_an_iteration_is_said_once_and_in_whole_dialogues(rl: Any, words: str) -> None:
    line = problem({"rl": rl})
    assert line.startswith("rl")
    assert words in line


def test_an_agent_answers_to_its_own_name() -> None:
    assert "prover" in problem(nest("agents.prover.name", "bob"))


# ------------------------------------------------------------------------------------ LoRA alpha


@pytest.mark.parametrize(
    ("fields", "alpha"),
    [
        ({}, 64),
        ({"lora_rank": 8}, 8),
        ({"lora_rank": 8, "lora_alpha_scale": 2.0}, 16),
        ({"lora_alpha": 12}, 12),
        ({"lora_alpha": 12, "lora_alpha_scale": None}, 12),
        ({"lora_rank": 8, "lora_alpha": None}, 8),
    ],
)
def test_alpha_is_given_or_scaled_from_the_rank(fields: dict[str, Any], alpha: int) -> None:
    params = make_params({"agents": {"prover": fields}})
    assert lora_alpha(params.agents[0]) == alpha


def test_alpha_and_its_scale_are_not_both_given_nor_both_missing() -> None:
    both = problem({"agents": {"prover": {"lora_alpha": 12, "lora_alpha_scale": 1.0}}})
    assert both.startswith("agents.prover: ")
    assert "both" in both
    neither = problem({"agents": {"verifier": {"lora_alpha": None, "lora_alpha_scale": None}}})
    assert neither.startswith("agents.verifier: ")


def test_tokens_are_given_or_eight_a_word() -> None:
    params = make_params({"agents": {"prover": {"max_response_words": 101}}})
    assert max_tokens(params.agents[0]) == 808
    assert max_tokens(replace(params.agents[0], max_tokens_per_message=7)) == 7


# ------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lora_rank", 8),
        ("model_name", "other"),
        ("model_provider", "local"),
        ("use_dummy_api", True),
        (
            "update_schedule",
            {"_type": "ContiguousPeriodicUpdateSchedule", "period": 2, "start": 0, "stop": 1},
        ),
        ("freeze_agent", True),
        ("dpo_beta", 0.5),
        ("num_epochs", 2),
        ("agent_lr_factor", 2.0),
        ("dpo_reference", "base"),
        ("per_device_train_batch_size", 3),
    ],
)
def test_agents_that_share_a_model_agree_about_it(field: str, value: object) -> None:
    shared = {"_default": {"shared_model_group": "both"}}
    line = problem({"agents": {**shared, "verifier": {field: value}}})
    assert "agents.prover" in line
    assert "agents.verifier" in line
    assert field in line
    apart = make_params({"agents": {"verifier": {field: value}}})
    assert tuple(group_problems(apart.agents)) == ()
    alike = {"_default": {"shared_model_group": "both", field: value}}
    assert isinstance(from_dict({"agents": alike}), Success)


def test_a_reference_that_openai_cannot_take_is_refused() -> None:
    asked = {"model_provider": "OpenAI", "fine_tune_from_scratch": False, "dpo_reference": "base"}
    line = problem({"agents": {"verifier": asked}})
    assert line.startswith("agents.verifier.dpo_reference: OpenAI's API takes no reference")
    for change in (
        {"model_provider": "local"},
        {"fine_tune_from_scratch": True},
        {"dpo_reference": "previous"},
        {"use_dummy_api": True},
        {"freeze_agent": True},
    ):
        assert isinstance(from_dict({"agents": {"verifier": {**asked, **change}}}), Success)


@pytest.mark.parametrize("field", ["temperature", "max_response_words", "use_supervisor_message"])
def test_agents_that_share_a_model_may_speak_differently(field: str) -> None:
    values = {"temperature": 0.5, "max_response_words": 9, "use_supervisor_message": "all"}
    shared = {"_default": {"shared_model_group": "both"}}
    table = {"agents": {**shared, "verifier": {field: values[field]}}}
    assert isinstance(from_dict(table), Success)


# ------------------------------------------------------------------------------------ tables

TABLES = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner | st.integers(), max_size=3),
    max_leaves=8,
)


@given(TABLES, TABLES)
def test_merging_changes_neither_table(base: dict[str, Any], override: dict[str, Any]) -> None:
    before = copy.deepcopy((base, override))
    merged = merge(base, override)
    assert (base, override) == before
    assert merge(merged, override) == merged
    assert merge(base, {}) == base
    assert merge({}, override) == override


def test_merging_goes_table_by_table_and_replaces_the_rest() -> None:
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2], "c": 3}
    override = {"a": {"y": {"w": 4}}, "b": [5], "c": {"d": 6}}
    assert merge(base, override) == {
        "a": {"x": 1, "y": {"z": 2, "w": 4}},
        "b": [5],
        "c": {"d": 6},
    }


def test_what_all_agents_share_yields_to_what_one_says() -> None:
    params = make_params(
        {"agents": {"_default": {"lora_rank": 8, "dpo_beta": 0.3}, "prover": {"lora_rank": 4}}}
    )
    assert [(a.name, a.lora_rank, a.dpo_beta) for a in params.agents] == [
        ("prover", 4, 0.3),
        ("verifier", 8, 0.3),
    ]


@given(setups())
def test_a_table_is_the_inverse_of_its_record(setup: Setup) -> None:
    assert from_dict(to_dict(setup.params)) == Success(setup.params)


def preset(*tables: dict[str, Any]) -> HyperParameters:
    """The parameters of a command that is given these tables."""
    return from_dict(with_preset(reduce(merge, tables, {}))).unwrap()


BIG = {"agents": {"_default": {"model_name": "gpt-4.1-mini"}}}


def test_each_agent_has_the_settings_of_its_model() -> None:
    tea, big = preset(), preset(BIG)
    assert [max_tokens(agent) for agent in (*tea.agents, *big.agents)] == [48, 48, 1200, 1200]
    (prover, verifier) = preset({"agents": {"prover": {"model_name": "gpt-4.1-mini"}}}).agents
    assert (prover.lora_rank, verifier.lora_rank) == (AgentParameters().lora_rank, 16)
    assert (max_tokens(prover), max_tokens(verifier)) == (1200, 48)
    assert (prover.num_responses, verifier.num_responses) == (None, (8, 2))
    embedded = preset(BIG, {"agents": {"verifier": {"model_name": "builtin:tea"}}}).agents
    assert [max_tokens(agent) for agent in embedded] == [1200, 48]


def test_settings_of_a_run_are_an_embedded_models_only_where_it_plays_all_agents() -> None:
    one = {"agents": {"prover": {"model_name": "gpt-4.1-mini"}}}
    script = {"agents": {"prover": {"model_provider": "scripted", "model_name": "honest"}}}
    rates = [preset(*tables).rl.lr for tables in ((), (script,), (one,), (BIG,))]
    assert rates == [5e-4, 5e-4, 1e-5, 1e-5]
    named = {"agents": {name: {"model_name": "builtin:tea"} for name in ("prover", "verifier")}}
    python = {"dataset": "builtin:python"}
    assert preset(python, named).code_validation.system_prompt_version == "views"
    assert preset(python, BIG).code_validation.system_prompt_version == "v1"
    # The game belongs to the data: its prompts show the cups, whoever plays.
    assert preset(BIG).code_validation.system_prompt_version == "views"


def test_all_weights_learn_at_a_tenth_of_the_rate_of_lora() -> None:
    whole = {"agents": {"_default": {"use_lora": False}}}
    low, lora = preset(BIG, whole), preset(BIG)
    assert (low.rl.lr, low.ei.lr) == (1e-6, 1e-5)
    assert (lora.rl.lr, lora.ei.lr) == (1e-5, 1e-4)


@pytest.mark.parametrize("model", [{}, BIG])
def test_what_is_written_wins_for_expert_iteration_and_its_warm_up(model: dict[str, Any]) -> None:
    own = preset(model, {"rl": {"lr": 3e-6, "rollouts_per_iteration": 7}})
    assert (own.rl.lr, own.ei.lr) == (3e-6, None)
    assert (own.rl.rollouts_per_iteration, own.ei.rollouts_per_iteration) == (7, None)
    both = preset(model, {"rl": {"lr": 3e-6}, "ei": {"lr": 4e-6}})
    assert (both.rl.lr, both.ei.lr) == (3e-6, 4e-6)
    frames = preset(model, {"rl": {"frames_per_batch": 24}})
    assert (frames.rl.frames_per_batch, frames.rl.rollouts_per_iteration) == (24, None)


def test_what_is_written_wins_over_the_replies_of_a_role() -> None:
    fewer = preset({"malt": {"num_responses_per_timestep": 2}})
    assert [agent.num_responses for agent in fewer.agents] == [None, None]
    shared = preset({"agents": {"_default": {"num_responses": 5}}})
    assert [agent.num_responses for agent in shared.agents] == [5, 5]


def test_a_game_without_a_role_has_no_settings_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    game = nip(HyperParameters())
    prover, verifier = game.agents
    game = game._replace(agents=(prover, verifier._replace(name="judge")))
    monkeypatch.setitem(PROTOCOLS, "judged", lambda params: game)
    params = from_dict(with_preset({"interaction_protocol": "judged"})).unwrap()
    assert [agent.name for agent in params.agents] == ["prover", "judge"]


def test_a_limit_follows_the_words_that_are_allowed() -> None:
    short = preset(BIG, {"agents": {"_default": {"max_response_words": 20}}})
    assert {max_tokens(agent) for agent in short.agents} == {160}
    given = preset(BIG, {"agents": {"prover": {"max_tokens_per_message": 33}}})
    assert [max_tokens(agent) for agent in given.agents] == [33, 1200]


@pytest.mark.parametrize("unset", ["none", None])
@pytest.mark.parametrize("model", ["gpt-4.1-mini", "builtin:tea"])
def test_a_limit_of_none_is_as_if_it_were_left_out(model: str, unset: str | None) -> None:
    played = {"agents": {"_default": {"model_name": model}}}
    for agent in ("_default", "verifier"):
        limits = [
            [max_tokens(one) for one in preset(played, {"agents": {agent: fields}}).agents]
            for fields in ({"max_tokens_per_message": unset}, {})
        ]
        assert limits[0] == limits[1]


def extra(fields: Any, **others: Any) -> Any:
    return from_dict({"agents": {"_default": {"extra_request_fields": fields, **others}}})


def test_further_fields_of_requests_are_recorded_as_text_and_written_as_a_table() -> None:
    fields = {"reasoning_effort": "none", "b": {"c": [1, 0.5, True]}, "a": "x"}
    params = extra(fields).unwrap()
    assert params.agents[0].extra_request_fields == (
        '{"a":"x","b":{"c":[1,0.5,true]},"reasoning_effort":"none"}'
    )
    assert to_dict(params)["agents"]["prover"]["extra_request_fields"] == fields
    assert from_dict(tomllib.loads(to_toml(params))).unwrap() == params
    assert hash(params) == hash(extra(dict(reversed(fields.items()))).unwrap())
    assert {extra(unset).unwrap().agents[0].extra_request_fields for unset in ({}, "none")} == {
        None
    }
    own = {"agents": {"_default": {"extra_request_fields": {"a": 1, "b": 2}},
                      "prover": {"extra_request_fields": {"b": 3}}}}  # fmt: skip
    assert from_dict(own).unwrap().agents[0].extra_request_fields == '{"a":1,"b":3}'


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("low", ": expected a table, got 'low'; write a table, such as --set "),
        ({"n": 2}, ".n: n is set by the trainer and replies_per_request; leave it out"),
        ({"max_completion_tokens": 9}, ".max_completion_tokens: max_completion_tokens is set by "
         "max_tokens_per_message; leave it out"),
        ({"stream": True}, ".stream: stream is set by nip-fn, which reads whole answers"),
        ({"a": [float("nan")]}, ": it holds what JSON has no form for: none, a number that is "),
        ({"a": {"b": None}}, ": it holds what JSON has no form for"),
        ({"a": {1: 2}}, ": it holds what JSON has no form for"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_sent_are_refused(fields: Any, words: str) -> None:
    line = str(extra(fields).failure())
    assert line.startswith("agents.")
    assert f".extra_request_fields{words}" in line


@pytest.mark.parametrize("agents", [[], 5, {"_default": 5}, {"prover": []}, {"bob": {}}])
def test_malformed_agents_are_left_to_be_refused(agents: Any) -> None:
    assert isinstance(with_preset({"agents": agents}), dict)
    assert isinstance(with_preset({"dataset": agents, "rl": agents}), dict)


@pytest.mark.parametrize("dataset", [*PLAYERS, *WORLDS, "builtin:python"])
def test_the_presets_are_valid(dataset: str) -> None:
    table = with_preset({"dataset": dataset, "rl": {"lr": 0.5}})
    params = from_dict(table).unwrap()
    assert (params.dataset, params.rl.lr) == (dataset, 0.5)
    assert with_preset({})["dataset"] == "builtin:tea"
    assert isinstance(from_dict({}), Success)


@pytest.mark.parametrize(
    ("address", "value"),
    [
        ("seed", 6198),
        ("rl.num_iterations", 8),
        ("agents.prover.lora_rank", 64),
        ("agents.verifier.name", "verifier"),
        ("dataset_options.max_test_size", None),
    ],
)
def test_get_finds_what_an_address_names(address: str, value: object) -> None:
    assert get(make_params(), address) == value


@pytest.mark.parametrize("address", ["", "sed", "rl.", "rl.lr.x", "agents.judge", "agents[0]"])
def test_get_of_no_address_is_a_key_error(address: str) -> None:
    with pytest.raises(KeyError):
        get(make_params(), address)


def test_the_table_of_defaults_is_that_of_an_empty_one() -> None:
    assert from_dict(default_table()) == from_dict({})
    alpha = merge(default_table(), nest("agents.prover.lora_alpha_scale", 2.0))
    assert get(from_dict(alpha).unwrap(), "agents.prover.lora_alpha_scale") == 2.0


# The run of the test protocol, with its three provers, takes longer than all others together.
@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name == "multi_channel_test" else [])
        for name in PROTOCOLS
    ],
)
def test_the_settings_for_tests_need_no_model(protocol: str) -> None:
    params = construct_test_params(protocol)
    assert params.interaction_protocol == protocol
    assert all(agent.use_dummy_api for agent in params.agents)
    assert from_dict(to_dict(params)) == Success(params)
    assert play(Setup(params))[-1].state.stage == Done()


def test_there_are_no_settings_for_an_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="chess"):
        construct_test_params("chess")


def test_differences_are_the_addresses_that_differ() -> None:
    one = make_params()
    other = make_params({"seed": 1, "agents": {"verifier": {"lora_rank": 8}}, "rl": {"lr": 0.5}})
    assert differences(one, other) == ("agents.verifier.lora_rank", "rl.lr", "seed")
    assert differences(one, one) == ()


# ------------------------------------------------------------------------------------ the hash


@given(setups(), setups())
def test_equal_parameters_and_no_others_have_equal_hashes(one: Setup, other: Setup) -> None:
    same = one.params == other.params
    assert (params_hash(one.params) == params_hash(other.params)) == same


def test_the_hash_of_parameters_is_the_same_in_any_process() -> None:
    code = (
        "from nip_fn.config.codec import from_dict, params_hash;"
        "print(params_hash(from_dict({'seed': 5}).unwrap()))"
    )
    printed_hash = printed("-c", code, hash_seed="7").strip()
    assert printed_hash == params_hash(from_dict({"seed": 5}).unwrap())


def test_parameters_cannot_be_changed() -> None:
    params: Any = make_params()
    with pytest.raises(AttributeError):
        params.seed = 1
    assert hash(params) == hash(make_params())
    assert isinstance(params, HyperParameters)
    assert isinstance(from_dict({"seed": "x"}), Failure)


# ------------------------------------------------------------------------------------- warnings

PENALTY = "protocol_common.prover_invalid_response_penalty"
TERMINATED = "protocol_common.verifier_terminated_penalty"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, []),
        ({PENALTY: -0.9}, []),  # the mid-point is 0.05, between 0 and 1
        ({PENALTY: -1.0}, [("prover", PENALTY)]),  # 0, at which all decisions are positive
        ({PENALTY: 3.0}, [("prover", PENALTY)]),  # 1.5, below which all decisions are
        ({TERMINATED: -2.9}, []),
        ({TERMINATED: -3.0}, [("verifier", TERMINATED)]),
        ({PENALTY: -1.0, TERMINATED: -3.0}, [("prover", PENALTY), ("verifier", TERMINATED)]),
        (
            {TERMINATED: -3.0, "protocol_common.shared_reward": True},
            [("prover", TERMINATED), ("verifier", TERMINATED)],
        ),
        ({PENALTY: -1.0, "agents.prover.freeze_agent": True}, []),
        ({PENALTY: -1.0, "trainer": "ei"}, []),
        ({PENALTY: -1.0, "rl.num_iterations": 0}, []),
        ({PENALTY: -1.0, "malt.pair_selection_method": "about_mean"}, []),
        ({PENALTY: -1.0, "agents.prover.pair_selection_method": "about_mean"}, []),
        (
            {
                PENALTY: -1.0,
                "malt.pair_selection_method": "interval",
                "agents.prover.pair_selection_method": "positive_negative",
            },
            [("prover", PENALTY)],
        ),
    ],
)
def test_a_penalty_that_leaves_no_pairs_is_warned_of(
    settings: dict[str, Any], warned: list[tuple[str, str]]
) -> None:
    table: dict[str, Any] = {}
    for address, value in settings.items():
        table = merge(table, nest(address, value))
    found = list(warnings(from_dict(table).unwrap()))
    assert [one.address for one in found] == [address for _, address in warned]
    for one, (agent, _) in zip(found, warned, strict=True):
        assert agent in one.problem
        assert "about_mean" in one.remedy
