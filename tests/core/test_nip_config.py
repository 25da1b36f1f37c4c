"""Configurations of the nip library, read as ours."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.result import Result, Success

from nip_fn.config.codec import from_dict, get, merge, nest, to_dict
from nip_fn.config.compat.nip import from_nip_config, is_nip_config, load_from_wandb_config
from nip_fn.config.compat.nip_rules import AT_DEFAULT, LEFT_OUT, RULES
from nip_fn.params.agent import AlternatingPeriodicUpdateSchedule, LrFactors, lora_alpha

Table = dict[str, Any]


def lr_factors(actor: float = 1.0) -> Table:
    return {"_type": "LrFactors", "actor": actor, "critic": 1.0}


BASE_AGENT: Table = {
    "_type": "CodeValidationAgentParameters",
    "is_random": False,
    "agent_lr_factor": None,
    "body_lr_factor": None,
    "update_schedule": {"_type": "ConstantUpdateSchedule"},
    "use_manual_architecture": False,
    "normalize_message_history": False,
    "load_checkpoint_and_parameters": False,
    "checkpoint_entity": "a-team",  # from the environment of whoever saved it
    "checkpoint_project": "proofs",
    "checkpoint_run_id": None,
    "checkpoint_version": "latest",
    "use_orthogonal_initialisation": True,
    "orthogonal_initialisation_gain": 1.0,
    "model_provider": "OpenAI",
    "model_name": "gpt-4o-mini-2024-07-18",
    "use_dummy_api": False,
    "shared_model_group": None,
    "temperature": None,
    "top_p": None,
    "fine_tune_from_scratch": True,
    "freeze_agent": False,
    "max_response_words": 150,
    "max_tokens_per_message": None,
    "num_invalid_generation_retries": 20,
}

V2_AGENT: Table = {
    **BASE_AGENT,
    "language_model_server_scheme_host": "http://gpu-1",
    "language_model_server_port": 5001,
    "vllm_server_port": 8001,
    "model_provider": "SelfHosted",
    "model_name": "meta-llama/Llama-3.1-8B-Instruct",
    "repetition_penalty": 1.1,
    "dpo_beta": 0.2,
    "quantization": "none",
    "num_epochs": None,
    "use_lora": True,
    "lora_rank": 32,
    "lora_alpha": None,
    "lora_alpha_scale": 1.0,
    "lora_dropout": 0.05,
    "stack_lora_adapters": False,
    "per_device_train_batch_size": 2,
    "system_prompt_template_path": None,
    "use_supervisor_message": "all",
    "supervisor_name": "Supervisor",
}

# What only other trainers read.
TENSORS: Table = {
    "functionalize_modules": False,
    "pretrain_agents": False,
    "d_representation": 16,
    "message_size": 1,
    "include_linear_message_space": False,
    "d_linear_message_space": 2,
    "ppo": {"_type": "CommonPpoParameters", "clip_epsilon": 0.2},
    "vanilla_ppo": {"_type": "VanillaPpoParameters"},
    "spg": {"_type": "SpgParameters", "variant": "spg"},
    "reinforce": {"_type": "ReinforceParameters"},
    "solo_agent": {"_type": "SoloAgentParameters", "num_epochs": 100},
    "image_classification": {"_type": "ImageClassificationParameters"},
    "message_regression": {"_type": "MessageRegressionParameters", "num_epochs": 5},
}

RL: Table = {
    "_type": "RlTrainerParameters",
    "frames_per_batch": 90,
    "rollouts_per_iteration": None,
    "steps_per_env_per_iteration": None,
    "num_iterations": 6,
    "num_epochs": 4,
    "minibatch_size": 64,
    "lr": 1e-6,
    "anneal_lr": False,
    "max_grad_norm": 1.0,
    "loss_critic_type": "smooth_l1",
    "clip_value": False,
    "normalize_observations": True,
    "num_normalization_steps": 1000,
    "gamma": 0.9,
    "lmbda": 0.95,
    "body_lr_factor": None,
    "use_shared_body": True,
    "num_test_iterations": 1,
}

TEXT_RL: Table = {
    "_type": "TextRlParameters",
    "fine_tune_on_all_previous_rollouts": False,
    "verifier_guess_replacement_proportion": 0.0,
    "verifier_guess_replacement_annealing": "none",
    "verifier_guess_replacement_annealing_rate": 0.1,
    "save_transcripts": True,
    "transcript_format": "yaml",
    "test_scheme": "first_and_last",
}

EI: Table = {
    "_type": "PureTextEiParameters",
    "rollout_selection_method": "threshold",
    "reward_threshold": 0.9,
    "weighting_sample_size_factor": 0.5,
    "weighting_minimum": None,
    "weighting_use_replacement": True,
    "weighting_epsilon": 0.01,
}

COMMON: Table = {
    "_type": "CommonProtocolParameters",
    "verifier_first": True,
    "randomize_prover_stance": True,
    "prover_reward": 1.0,
    "verifier_reward": 1.0,
    "verifier_incorrect_penalty": -2.0,
    "verifier_terminated_penalty": -1.0,
    "verifier_no_guess_reward": 0.0,
    "shared_reward": False,
    "force_guess": None,
    "zero_knowledge": False,
}

TWO_PROVERS: Table = {
    "max_message_rounds": 8,
    "min_message_rounds": 1,
    "sequential": False,
    "prover0_first": True,
    "randomize_channel_order": True,
}

IMAGES: Table = {
    "binarification_method": "merge",
    "selected_classes": None,
    "binarification_seed": None,
    "make_balanced": True,
}

# Every field of the second version.
V2: Table = {
    "_type": "HyperParameters",
    "_package_name": "nip",
    "_package_version": "2.0.1",
    "scenario": "code_validation",
    "trainer": "pure_text_malt",
    "dataset": "lrhammond/buggy-apps",
    "interaction_protocol": "nip",
    "seed": 17,
    "test_dataset_split": "validation",
    **TENSORS,
    "agents": {
        "prover": {**V2_AGENT, "agent_lr_factor": lr_factors(2.0)},
        "verifier": {
            **V2_AGENT,
            "lora_alpha": 64,
            "lora_alpha_scale": None,
            "update_schedule": {
                "_type": "AlternatingPeriodicUpdateSchedule",
                "period": 2,
                "first_agent_num_rounds": 1,
                "first_agent": True,
            },
        },
        "agents_update_repr": "Custom(...)",
    },
    "rl": RL,
    "text_rl": {**TEXT_RL, "test_on_whole_dataset": True},
    "pure_text_ei": EI,
    "pure_text_malt": {
        "_type": "PureTextMaltParameters",
        "num_responses_per_timestep": 3,
        "frozen_agents_generate_one_response": True,
        "pair_selection_method": "interval",
        "interval_threshold_proportion": 0.2,
        "num_initial_ei_iterations": 0,
    },
    "code_validation": {
        "_type": "CodeValidationParameters",
        "apps_difficulty": "interview",
        "apps_solution_number": 0,
        "apps_exclude_flagged": True,
        "system_prompt_version": "v2",
    },
    "dataset_options": {
        "_type": "DatasetParameters",
        **IMAGES,
        "max_train_size": 500,
        "max_test_size": None,
        "reduce_shuffle_seed": 42,
    },
    "protocol_common": {
        **COMMON,
        "prover_invalid_response_penalty": -0.5,
        "verifier_neither_accept_nor_reject_reward": None,
        "verifier_decision_spectrum": "likert_scale_5",
    },
    "nip_protocol": {
        "_type": "NipProtocolParameters",
        "max_message_rounds": 9,
        "min_message_rounds": 2,
    },
    "debate_protocol": {"_type": "DebateProtocolParameters", **TWO_PROVERS},
    "mnip_protocol": {"_type": "MnipProtocolParameters", **TWO_PROVERS},
    "zk_protocol": {
        "_type": "ZkProtocolParameters",
        "simulator_reward_coefficient": 1.0,
        "aux_prover_reward_coefficient": 1.0,
    },
    "base_run": {
        "_type": "BaseRunParameters",
        "base_run_type": "none",
        "run_id": None,
        "wandb_project": "proofs",
        "wandb_entity": "a-team",
        "rerun_tests_force_test_during_training_state": True,
    },
}

# As the first version saved it: no package keys, fewer fields, test_size.
V1: Table = {
    "_type": "HyperParameters",
    "scenario": "code_validation",
    "trainer": "pure_text_malt",
    "dataset": "codeparrot/apps",
    "interaction_protocol": "debate",
    "seed": 6198,
    "test_size": 0.2,
    **TENSORS,
    "agents": {
        "prover0": BASE_AGENT,
        "prover1": BASE_AGENT,
        "verifier": {**BASE_AGENT, "freeze_agent": True},
        "agents_update_repr": "Standard",
    },
    "rl": {**RL, "frames_per_batch": None, "rollouts_per_iteration": 40},
    "text_rl": TEXT_RL,
    "pure_text_ei": EI,
    "pure_text_malt": {"_type": "PureTextMaltParameters", "num_responses_per_timestep": 2},
    "code_validation": {
        "_type": "CodeValidationParameters",
        "apps_difficulty": "interview",
        "apps_solution_number": 0,
    },
    "dataset_options": {
        "_type": "DatasetParameters",
        **IMAGES,
        "max_train_size": None,
        "max_test_size": 100,
    },
    "protocol_common": {**COMMON, "verifier_decision_scale": "out_of_10"},
    "nip_protocol": {
        "_type": "NipProtocolParameters",
        "max_message_rounds": 8,
        "min_message_rounds": 1,
    },
    "debate_protocol": {"_type": "DebateProtocolParameters", **TWO_PROVERS, "sequential": True},
    "mnip_protocol": {"_type": "MnipProtocolParameters", **TWO_PROVERS},
    "zk_protocol": {
        "_type": "ZkProtocolParameters",
        "simulator_reward_coefficient": 1.0,
        "aux_prover_reward_coefficient": 1.0,
    },
    "base_run": {"_type": "BaseRunParameters", "base_run_type": "none", "run_id": None},
}

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
            "agents.verifier.checkpoint_entity": "",
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


def without(table: Table, *names: str) -> Table:
    return {name: value for name, value in table.items() if name not in names}


def problem(table: Mapping[str, Any], **options: bool) -> str:
    """The line of the first problem."""
    line = str(from_nip_config(table, **options).failure())
    assert line.strip()
    assert "\n" not in line
    return line


@pytest.mark.parametrize(("saved", "expected"), EXPECTED, ids=["v2", "v1"])
def test_a_saved_configuration_keeps_its_meaning(saved: Table, expected: Table) -> None:
    params = from_nip_config(saved).bind(from_dict).unwrap()
    assert {address: get(params, address) for address in expected} == expected


def test_the_agents_of_a_saved_configuration_keep_their_records() -> None:
    prover, verifier = from_nip_config(V2).bind(from_dict).unwrap().agents
    assert prover.agent_lr_factor == LrFactors(actor=2.0)
    assert lora_alpha(prover) == 32
    assert lora_alpha(verifier) == 64
    assert verifier.update_schedule == AlternatingPeriodicUpdateSchedule(
        period=2, first_agent_num_rounds=1
    )


@SAVED
def test_what_was_read_is_written_and_read_again(saved: Table) -> None:
    params = from_nip_config(saved).bind(from_dict).unwrap()
    assert from_dict(to_dict(params)) == Success(params)
    assert from_dict(to_dict(params, type_tags=True)) == Success(params)


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
    assert from_nip_config(bare).bind(from_dict).unwrap().rl.rollouts_per_iteration == 125


def test_only_a_configuration_of_the_library_is_taken_for_one() -> None:
    assert is_nip_config(V1)
    assert is_nip_config({"_package_version": "2.0.0"})
    params = from_dict({}).unwrap()
    assert not is_nip_config(to_dict(params))
    assert not is_nip_config(to_dict(params, type_tags=True))


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
        ("rl._type", "PpoParameters", ["class", "'RlTrainerParameters'"]),
        ("_type", "Params", ["class"]),
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


@pytest.mark.parametrize(("section", "field", "default", "why"), AT_DEFAULT)
def test_fields_that_are_honoured_at_their_default_only(
    section: str, field: str, default: object, why: str
) -> None:
    address = f"{section}.{field}".replace("*", "prover")
    assert isinstance(from_nip_config(merge(V2, nest(address, default))), Success)
    line = problem(merge(V2, nest(address, "another")))
    assert line.startswith(f"{address}: 'another' is refused: {why}")
    assert repr(default) in line


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
    params = from_nip_config(table).bind(from_dict).unwrap()
    assert params.trainer == "ei"
    assert params.ei.rollout_selection_method == "weighted_sampling"
    assert params.ei.weighting_minimum == -0.5
    assert params.text_rl.verifier_guess_replacement_proportion == 0.2


def test_unknown_keys_are_left_out_if_asked_for() -> None:
    extra: Table = {"zzz": 1, "rl": {"zzz": {"y": 2}}, "agents": {"prover": {"zzz": 3}}}
    extended = merge(V2, extra)
    assert problem(extended).endswith("no such parameter")
    assert from_nip_config(extended, ignore_extra_keys=True) == from_nip_config(V2)
    refused = merge(extended, {"trainer": "spg"})
    assert problem(refused, ignore_extra_keys=True).startswith("trainer: ")


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
    params = from_nip_config(table).bind(from_dict).unwrap()
    assert params.rl.rollouts_per_iteration == rollouts


def test_agents_may_share_a_default() -> None:
    shared = merge(without(V2, "agents"), {"agents": {"_default": V2_AGENT}})
    params = from_nip_config(shared).bind(from_dict).unwrap()
    assert {agent.model_provider for agent in params.agents} == {"SelfHosted"}
    half_way = {**BASE_AGENT, "model_provider": "vLLM-OpenAI"}
    april = merge(without(V2, "agents"), {"agents": {"_default": half_way}})
    params = from_nip_config(april).bind(from_dict).unwrap()
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
    assert all(f"{s}.{f}".strip(".") in RULES for s, fields in LEFT_OUT.items() for f in fields)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(RULES)), JSON, st.booleans())
def test_any_value_anywhere_gives_a_result(address: str, value: object, ignore: bool) -> None:
    table = merge(V2, nest(address.replace("*", "prover"), value))
    read = from_nip_config(table, ignore_extra_keys=ignore)
    assert isinstance(read, Result)
    assert isinstance(read.bind(from_dict), Result)


def test_an_agent_is_loaded_from_what_the_library_saved_of_it() -> None:
    own = {"checkpoint_run_id": "a", "freeze_agent": True, "temperature": 0.3}
    saved = {**V2["agents"]["prover"], "freeze_agent": False, "checkpoint_run_id": "theirs"}
    loaded = load_from_wandb_config(own, saved).unwrap()
    assert loaded["checkpoint_run_id"] == "a"
    assert loaded["freeze_agent"] is True
    assert loaded["lora_rank"] == V2["agents"]["prover"]["lora_rank"]
    assert loaded.get("temperature") != 0.3
    assert "zzz" in str(load_from_wandb_config(own, {**saved, "zzz": 1}).failure())
