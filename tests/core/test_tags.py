"""`_type` keys and unknown keys of a written configuration."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from returns.result import Result, Success

from nip_fn.config.codec import default_table, from_dict, get, merge, nest, to_dict
from nip_fn.config.compat.tags import TYPE_NAMES
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.stages import Done
from nip_fn.testing.params import construct_test_params

from .games import Setup, make_params, play, setups
from .test_params import ADDRESSES, JSON, problem

LR_FACTORS = {"agents": {"_default": {"agent_lr_factor": {"actor": 2.0}}}}


def tables(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All tables in a table, by address."""
    yield path, table
    for name, value in table.items():
        if isinstance(value, dict):
            yield from tables(value, f"{path}.{name}".strip("."))


@given(setups())
def test_a_table_with_types_is_the_inverse_of_its_record(setup: Setup) -> None:
    assert from_dict(to_dict(setup.params, type_tags=True)) == Success(setup.params)


def test_every_table_but_that_of_the_agents_has_its_type() -> None:
    written = to_dict(make_params(LR_FACTORS), type_tags=True)
    untyped = {address for address, table in tables(written) if "_type" not in table}
    assert untyped == {"agents"}
    assert written["agents"]["prover"]["update_schedule"] == {"_type": "ConstantUpdateSchedule"}
    plain = to_dict(make_params(LR_FACTORS))
    typed = {address for address, table in tables(plain) if "_type" in table}
    assert typed == {f"agents.{name}.update_schedule" for name in ("prover", "verifier")}


@pytest.mark.parametrize(
    ("pattern", "name"), [(pattern, one) for pattern, names in TYPE_NAMES.items() for one in names]
)
@pytest.mark.parametrize("agent", ["prover", "_default"])
def test_a_type_is_accepted_where_it_belongs(pattern: str, name: str, agent: str) -> None:
    address = f"{pattern}._type".strip(".").replace("*", agent)
    plain = nest(address.rpartition(".")[0], {}) if pattern else {}
    assert from_dict(nest(address, name)) == from_dict(plain)


@pytest.mark.parametrize(
    ("address", "value"),
    [
        ("_type", "RlTrainerParameters"),
        ("_type", None),
        ("rl._type", "HyperParameters"),
        ("rl._type", ["RlTrainerParameters"]),
        ("debate_protocol._type", "NipProtocolParameters"),
        ("agents.prover._type", "RandomAgentParameters"),
        ("agents._default._type", "HyperParameters"),
        ("agents.prover.agent_lr_factor._type", "LrFactor"),
    ],
)
def test_a_type_is_refused_where_another_belongs(address: str, value: object) -> None:
    line = problem(nest(address, value))
    assert line.startswith(f"{address}: {value!r} does not belong here; expected ")


def test_a_schedule_of_no_known_kind_is_refused() -> None:
    line = problem(nest("agents.prover.update_schedule._type", "RandomUpdateSchedule"))
    assert line.startswith("agents.prover.update_schedule")


EXTRA: dict[str, Any] = {
    "zzz": 1,
    "rl": {"zzz": {"y": 1}, "lr": 0.5},
    "nip_protocol": {"_zzz": None},
    "agents": {
        "zzz": {"lora_rank": 3},
        "other": 3,
        "_default": {"zzz": 1},
        "prover": {
            "zzz": 2,
            "agent_lr_factor": {"actor": 2.0, "zzz": 1},
            "update_schedule": {
                "_type": "ContiguousPeriodicUpdateSchedule",
                "period": 2,
                "start": 0,
                "stop": 1,
                "zzz": 3,
            },
        },
    },
}


def test_unknown_keys_are_left_out_at_every_level_if_asked_for() -> None:
    problem(EXTRA)
    before = copy.deepcopy(EXTRA)
    params = from_dict(EXTRA, ignore_extra_keys=True).unwrap()
    assert before == EXTRA
    assert get(params, "rl.lr") == 0.5
    assert get(params, "agents.prover.agent_lr_factor.actor") == 2.0
    assert get(params, "agents.prover.update_schedule.stop") == 1


@pytest.mark.parametrize(
    ("address", "value"),
    [("rl.lr", "x"), ("rl", 3), ("agents", 3), ("agents.prover", 3), ("rl._type", "Zzz")],
)
def test_what_is_wrong_is_refused_even_so(address: str, value: object) -> None:
    line = str(from_dict(merge(EXTRA, nest(address, value)), ignore_extra_keys=True).failure())
    assert line.startswith(f"{address}: ")


@given(setups())
def test_nothing_known_is_left_out(setup: Setup) -> None:
    table = to_dict(setup.params, type_tags=True)
    assert from_dict(table, ignore_extra_keys=True) == Success(setup.params)


@settings(max_examples=200)
@given(ADDRESSES, JSON)
def test_any_value_anywhere_gives_a_result_even_so(address: str, value: object) -> None:
    table = nest(address, value)
    before = repr(table)
    assert isinstance(from_dict(table, ignore_extra_keys=True), Result)
    assert repr(table) == before


@given(st.dictionaries(st.text(max_size=5) | st.integers(), JSON, max_size=3))
def test_keys_that_mean_nothing_mean_nothing(table: dict[Any, Any]) -> None:
    unknown = {name: value for name, value in table.items() if name not in default_table()}
    unknown.pop("_type", None)
    assert from_dict(unknown, ignore_extra_keys=True) == from_dict({})


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
