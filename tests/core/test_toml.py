"""Configurations as TOML say what the parameters are."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.config.codec import by_address, from_dict
from nip_fn.config.presets import with_preset
from nip_fn.config.spelling import as_recorded
from nip_fn.config.toml import to_toml
from nip_fn.config.unused import unused
from tests.core.games import Setup, make_params, setups


@given(setups())
def test_what_is_written_is_read_again_whatever_the_settings_of_models(setup: Setup) -> None:
    table = tomllib.loads(to_toml(setup.params))
    assert from_dict(table).unwrap() == setup.params
    assert from_dict(with_preset(table)).unwrap() == setup.params


@given(st.text(), st.floats(min_value=1e-300, max_value=1e6, exclude_min=True), st.integers(1, 99))
def test_any_text_and_any_number_survive(text: str, number: float, count: int) -> None:
    if text == "none":  # the one text that an optional parameter cannot hold
        return
    own = {"system_prompt_template": text, "model_name": text, "num_responses": [count, 1]}
    schedule = {"_type": "ContiguousPeriodicUpdateSchedule", "period": count, "start": 0}
    params = make_params(
        {"agents": {"prover": {**own, "update_schedule": {**schedule, "stop": count}}}},
        {"protocol_common": {"prover_reward": number}},
    )
    assert from_dict(tomllib.loads(to_toml(params))).unwrap() == params


def test_only_what_is_active_is_not_commented_out() -> None:
    params = make_params({"agents": {"prover": {"temperature": 0.5}}, "seed": 3})
    comments = {"agents.AGENT.temperature": "Warmth.", "rl.lr": "Rate."}
    text = to_toml(params, comments, ["seed", "agents.prover.temperature"])
    values = by_address(tomllib.loads(text))
    assert values == {
        "seed": 3,
        "agents.prover.temperature": 0.5,
        "agents.verifier.temperature": "none",
    }
    assert text.count("# Warmth.\ntemperature = ") == 2
    assert "# Rate.\n#lr = " in text


@pytest.mark.parametrize(
    "given_",
    [{}, {"dataset": "builtin:tea"}, {"trainer": "ei", "interaction_protocol": "debate"}],
)
def test_the_settings_of_a_model_are_not_told_as_unused(given_: dict[str, Any]) -> None:
    params = from_dict(with_preset(given_)).unwrap()
    table = as_recorded(tomllib.loads(to_toml(params)))
    assert unused(table, [params]) == ()
    odd = {**table, "mnip_protocol": {"max_message_rounds": 9}}
    assert ["mnip_protocol.max_message_rounds" in str(line) for line in unused(odd, [params])] == [
        True
    ]
