"""Configurations of the nip library, read as ours."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.result import Result, Success

from nip_fn.config.codec import from_dict, get, merge, nest, to_dict
from nip_fn.config.compat.nip import from_nip_config, is_nip_config, nip_differences
from nip_fn.config.compat.nip_rules import RULES
from nip_fn.params.agent import lora_alpha
from nip_fn.params.run import HyperParameters
from nip_fn.params.update_schedule import AlternatingPeriodicUpdateSchedule

from ..nip_library import (
    ALTERNATING,
    CONFIGURATIONS,
    LR_FACTORS,
    SECTIONS,
    Table,
    experiment,
    saved,
)

HOSTED: Table = {
    "language_model_server_scheme_host": "http://gpu-1",
    "language_model_server_port": 5001,
    "vllm_server_port": 8001,
    "model_provider": "SelfHosted",
    "model_name": "meta-llama/Llama-3.1-8B-Instruct",
    "checkpoint_entity": "a-team",  # from the environment of whoever saved it
    "repetition_penalty": 1.1,
    "lora_rank": 32,
    "use_supervisor_message": "all",
}

# Every field of the second version.
V2: Table = saved(
    "pure_text_malt",
    "lrhammond/buggy-apps",
    seed=17,
    test_dataset_split="validation",
    agents={
        "prover": {**HOSTED, "agent_lr_factor": {**LR_FACTORS, "actor": 2.0}},
        "verifier": {
            **HOSTED,
            "lora_alpha": 64,
            "lora_alpha_scale": None,
            "update_schedule": ALTERNATING,
        },
    },
    rl={"frames_per_batch": 90, "num_iterations": 6, "lr": 1e-6, "num_test_iterations": 1},
    text_rl={"test_scheme": "first_and_last"},
    pure_text_malt={
        "num_responses_per_timestep": 3,
        "pair_selection_method": "interval",
        "interval_threshold_proportion": 0.2,
    },
    dataset_options={"max_train_size": 500},
    protocol_common={
        "randomize_prover_stance": True,
        "verifier_incorrect_penalty": -2.0,
        "prover_invalid_response_penalty": -0.5,
        "verifier_decision_spectrum": "likert_scale_5",
    },
    nip_protocol={"max_message_rounds": 9, "min_message_rounds": 2},
)


def without(table: Table, *names: str) -> Table:
    return {name: value for name, value in table.items() if name not in names}


# As the first version saved it: no package keys, fewer fields, test_size.
V1: Table = {
    **without(
        saved(
            "pure_text_malt",
            "codeparrot/apps",
            interaction_protocol="debate",
            agents={"prover0": {}, "prover1": {}, "verifier": {"freeze_agent": True}},
            rl={"frames_per_batch": None, "rollouts_per_iteration": 40},
            dataset_options={"max_test_size": 100},
            debate_protocol={"sequential": True},
            text_rl={"test_scheme": "first_and_last"},
        ),
        *("_package_name", "_package_version", "test_dataset_split"),
    ),
    "test_size": 0.2,
    "pure_text_malt": {"num_responses_per_timestep": 2},
    "code_validation": {"apps_difficulty": "interview", "apps_solution_number": 0},
    "protocol_common": {
        **without(SECTIONS["protocol_common"], "verifier_decision_spectrum"),
        "verifier_decision_scale": "out_of_10",
    },
}


def params_of(table: Table) -> HyperParameters:
    return from_nip_config(table).bind(from_dict).unwrap()


# Where each field that means the same is found, and what it is there.
EXPECTED: list[tuple[Table, dict[str, object]]] = [
    (
        V2,
        {
            "trainer": "malt",
            "dataset": "hf:lrhammond/buggy-apps",
            "seed": 17,
            "test_dataset_split": "validation",
            "rl.rollouts_per_iteration": 10,  # 90 rounds of dialogues of 9
            "rl.num_iterations": 6,
            "rl.lr": 1e-6,
            "rl.num_epochs": 4,
            "rl.num_test_iterations": 1,
            "text_rl.test_scheme": "first_and_last",
            "malt.num_responses_per_timestep": 3,
            "malt.pair_selection_method": "interval",
            "malt.interval_threshold_proportion": 0.2,
            "code_validation.system_prompt_version": "v1",
            "dataset_options.max_train_size": 500,
            "protocol_common.verifier_decision_spectrum": "likert_scale_5",
            "protocol_common.verifier_incorrect_penalty": -2.0,
            "protocol_common.prover_invalid_response_penalty": -0.5,
            "protocol_common.randomize_prover_stance": True,
            "nip_protocol.max_message_rounds": 9,
            "nip_protocol.min_message_rounds": 2,
            "agents.prover.language_model_server_port": 5001,
            "agents.prover.repetition_penalty": 1.1,
            "agents.prover.lora_rank": 32,
            "agents.prover.lora_alpha": None,
            "agents.verifier.lora_alpha": 64,
            "agents.verifier.use_supervisor_message": "all",
        },
    ),
    (
        V1,
        {
            "trainer": "malt",
            "dataset": "hf:codeparrot/apps",
            "interaction_protocol": "debate",
            "rl.rollouts_per_iteration": 40,
            "dataset_options.max_test_size": 100,
            "protocol_common.verifier_decision_spectrum": "out_of_10",
            "debate_protocol.sequential": True,
            "code_validation.system_prompt_version": "v1",
            "agents.verifier.freeze_agent": True,
            "agents.prover1.model_name": "gpt-4o-mini-2024-07-18",
        },
    ),
]
SAVED = pytest.mark.parametrize("saved", [V2, V1], ids=["v2", "v1"])


def problem(table: Mapping[str, Any]) -> str:
    """The line of the first problem."""
    line = str(from_nip_config(table).failure())
    assert line.strip()
    assert "\n" not in line
    return line


@pytest.mark.parametrize(("saved", "expected"), EXPECTED, ids=["v2", "v1"])
def test_a_saved_configuration_keeps_its_meaning(saved: Table, expected: Table) -> None:
    params = params_of(saved)
    assert {address: get(params, address) for address in expected} == expected


def test_the_agents_of_a_saved_configuration_keep_their_records() -> None:
    prover, verifier = params_of(V2).agents
    assert prover.agent_lr_factor == 2.0
    assert lora_alpha(prover) == 32
    assert lora_alpha(verifier) == 64
    assert verifier.update_schedule == AlternatingPeriodicUpdateSchedule(
        period=2, first_agent_num_rounds=1
    )


@SAVED
def test_what_was_read_is_written_and_read_again(saved: Table) -> None:
    params = params_of(saved)
    assert from_dict(to_dict(params)) == Success(params)


@SAVED
def test_reading_changes_nothing(saved: Table) -> None:
    before = copy.deepcopy(saved)
    ours = from_nip_config(saved).unwrap()
    for section in ours.values():
        if isinstance(section, dict):
            section.clear()
    assert saved == before


@SAVED
def test_sections_that_are_none_have_their_defaults(saved: Table) -> None:
    sections = {name: None for name, value in saved.items() if isinstance(value, dict)}
    bare = {**saved, **sections, "interaction_protocol": "nip"}
    assert params_of(bare).rl.rollouts_per_iteration == 125


def test_only_a_configuration_of_the_library_is_taken_for_one() -> None:
    assert is_nip_config(V1)
    assert is_nip_config({"_package_version": "2.0.0"})
    params = from_dict({}).unwrap()
    assert not is_nip_config(to_dict(params))


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("address", "value", "words"),
    [
        ("scenario", "graph_isomorphism", ["solutions"]),
        ("trainer", "vanilla_ppo", ["language models only"]),
        ("trainer", "solo_agent", ["language models only"]),
        ("dataset", "mnist", ["data set", "'codeparrot/apps'"]),
        ("code_validation.system_prompt_version", "v3", ["'v1' or 'v2'"]),
        ("base_run.base_run_type", "rerun_trainings", ["'rerun_tests'"]),
        ("agents.prover.is_random", "often", ["switch"]),
        ("agents.prover._type", "GraphIsomorphismAgentParameters", ["class"]),
        ("agents.prover.vllm_openai_base_url", "http://x/v1", ["vllm_server_port"]),
        ("protocol_common.zero_knowledge", True, ["zero-knowledge"]),
        ("zk_protocol.simulator_reward_coefficient", 2.0, ["zero-knowledge", "1.0"]),
        ("rl", 3, ["table"]),
        ("agents", [], ["table"]),
        ("agents.prover", "x", ["table"]),
        ("rl.frames_per_batch", "many", ["whole number"]),
        ("rl.frames_per_batch", 0, ["at least 1"]),
        ("rl.steps_per_env_per_iteration", 0, ["at least 1"]),
        ("rl.minibatches", 3, ["no such parameter", "'minibatch_size'"]),
        ("zzz", 3, ["no such parameter"]),
        ("agents.prover.lora_rnk", 3, ["no such parameter", "'lora_rank'"]),
        ("agents.prover.dpo_reference", "base", ["no such parameter"]),
        ("malt", {}, ["no such parameter"]),
        ("protocol_common.verifier_decision_scale", "out_of_10", ["other name"]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_address_with_the_reason(
    address: str, value: object, words: list[str]
) -> None:
    line = problem(merge(V2, nest(address, value)))
    assert line.startswith(f"{address}: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize("name", ["scenario", "trainer", "dataset"])
def test_what_every_configuration_has_must_be_there(name: str) -> None:
    assert problem(without(V2, name)).startswith(f"{name}: missing")


def test_what_our_own_checks_refuse_is_refused_after_all() -> None:
    loaded = merge(V2, nest("agents.prover.load_checkpoint_and_parameters", True))
    assert "checkpoint_run_id" in str(from_nip_config(loaded).bind(from_dict).failure())
    rounds = merge(V2, nest("nip_protocol.max_message_rounds", "many"))
    assert problem(rounds).startswith("nip_protocol.max_message_rounds: ")


def test_expert_iteration_is_read_with_all_its_parameters() -> None:
    own = {"rollout_selection_method": "weighted_sampling", "weighting_minimum": -0.5}
    guesses = {"verifier_guess_replacement_proportion": 0.2}
    table = merge(V2, {"trainer": "pure_text_ei", "pure_text_ei": own, "text_rl": guesses})
    params = params_of(table)
    assert params.trainer == "ei"
    assert params.ei.rollout_selection_method == "weighted_sampling"
    assert params.ei.weighting_minimum == -0.5
    assert params.text_rl.verifier_guess_replacement_proportion == 0.2


# ---------------------------------------------------------------------------------- differences


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_the_library_writes_is_read_and_every_difference_said(name: str) -> None:
    assert params_of(CONFIGURATIONS[name]).agents
    lines = [str(line) for line in nip_differences(CONFIGURATIONS[name])]
    assert any("rl.num_iterations" in line or "rerun" in name for line in lines)


def test_what_is_left_out_is_as_in_that_library() -> None:
    bare = {key: CONFIGURATIONS["sections-none"][key] for key in ("scenario", "trainer", "dataset")}
    whole, sparse = params_of(CONFIGURATIONS["defaults"]), params_of(bare)
    assert sparse == whole
    assert get(sparse, "rl.lr") == SECTIONS["rl"]["lr"]
    assert get(sparse, "rl.num_test_iterations") == 10
    assert get(sparse, "rl.rollouts_per_iteration") == 125  # 1000 rounds of dialogues of 8
    told = "\n".join(map(str, nip_differences(bare)))
    assert "rl.num_iterations = 1000" in told
    assert "rl.lr = 0.003" in told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test-data", ["dataset", "builtin:python"]),
        ("rerun-tests", ["base_run.base_run_type", "nip-fn retest RUN"]),
        ("from-parameters", ["none are fetched"]),
        ("random-prover", ["agents.prover.is_random", "script"]),
        ("frames-not-divisible", ["rl.frames_per_batch", "1000", "111"]),
        ("schedules-and-factors", ["update_schedule", "body_lr_factor", "orthogonal"]),
        ("script-debate", ["interaction_protocol", "paid"]),
        ("script-nip", ["8 iterations train 8 times", "value_backup=leaves", "batch size"]),
    ],
)
def test_each_difference_is_told(name: str, words: list[str]) -> None:
    told = "\n".join(map(str, nip_differences(CONFIGURATIONS[name])))
    assert all(word in told for word in words), told


def test_factors_of_one_leave_the_rate_to_the_provider() -> None:
    """They are written for every agent, whether or not anybody set them."""
    params = params_of(CONFIGURATIONS["script-nip"])
    assert all(agent.agent_lr_factor is None for agent in params.agents)
    named = params_of(CONFIGURATIONS["schedules-and-factors"])
    assert get(named, "agents.prover.agent_lr_factor") == 2.0


def test_a_random_agent_is_never_trained() -> None:
    of_class = {"agents": {"prover": {"_type": "RandomAgentParameters"}}}
    by_switch = {"agents": {"prover": {"is_random": True}}}
    for random in (of_class, by_switch):
        prover, verifier = params_of(merge(V2, random)).agents
        assert (prover.model_provider, prover.model_name) == ("scripted", "random")
        assert verifier.model_provider == "SelfHosted"


def test_the_library_s_test_data_are_ten_datapoints() -> None:
    params = params_of(CONFIGURATIONS["test-data"])
    assert params.dataset == "builtin:python"
    assert params.dataset_options.max_train_size == params.dataset_options.max_test_size == 10


def test_tests_that_are_run_again_train_nothing() -> None:
    params = params_of(CONFIGURATIONS["rerun-tests"])
    assert params.rl.num_iterations == 0
    assert params.text_rl.test_scheme == "all"


def test_what_has_no_meaning_here_is_still_refused() -> None:
    zero = experiment(protocol_common={"zero_knowledge": True})
    assert "zero_knowledge" in str(from_nip_config(zero).bind(from_dict).failure())
    tensors = merge(CONFIGURATIONS["defaults"], {"trainer": "spg"})
    assert "trainer" in str(from_nip_config(tensors).failure())


# ------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize(
    ("protocol", "frames", "steps", "rollouts"),
    [
        ("nip", 90, None, 10),
        ("nip", 90, 10, 9),
        ("debate", 80, None, 10),
        ("adp", 90, None, 45),
        ("solo_verifier", 90, None, 90),
        ("nip", None, 7, None),
        ("nip", 1000, None, 111),
        ("nip", 4, None, 1),
    ],
)
def test_a_batch_of_rounds_is_a_number_of_dialogues(
    protocol: str, frames: int | None, steps: int | None, rollouts: int | None
) -> None:
    rl = {"frames_per_batch": frames, "steps_per_env_per_iteration": steps}
    table = merge(without(V2, "agents"), {"interaction_protocol": protocol, "rl": rl})
    params = params_of(table)
    assert params.rl.rollouts_per_iteration == rollouts


def test_agents_may_share_a_default() -> None:
    shared = merge(without(V2, "agents"), {"agents": {"_default": HOSTED}})
    params = params_of(shared)
    assert {agent.model_provider for agent in params.agents} == {"SelfHosted"}
    half_way = {"model_provider": "vLLM-OpenAI"}
    april = merge(without(V2, "agents"), {"agents": {"_default": half_way}})
    params = params_of(april)
    assert {agent.model_provider for agent in params.agents} == {"SelfHosted"}


def test_the_saved_configurations_have_every_field_that_has_a_rule() -> None:
    def addresses(table: Table, pattern: str = "") -> set[str]:
        found = set()
        for name, value in table.items():
            address = f"{pattern}{name}"
            if pattern == "agents." and isinstance(value, dict):
                address = "agents.*"
            found |= {address}
            if isinstance(value, dict) and address not in RULES:
                found |= addresses(value, f"{address}.")
        return found

    never = {"agents._type", "agents.*.vllm_openai_base_url"}
    assert set(RULES) - addresses(V2) - addresses(V1) == never


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(RULES)), JSON)
def test_any_value_anywhere_gives_a_result(address: str, value: object) -> None:
    table = merge(V2, nest(address.replace("*", "prover"), value))
    read = from_nip_config(table)
    assert isinstance(read, Result)
    assert isinstance(read.bind(from_dict), Result)
