"""Configurations as the *nip* library writes them, made by its rules and not by ours.

The library's `HyperParameters` fills every section on construction, and `to_dict` writes every
field of every class, with the class as `_type`.  Names, fields and defaults are those of its second
version.
"""

import copy
from collections.abc import Mapping
from typing import Any

Table = dict[str, Any]

LR_FACTORS: Table = {"_type": "LrFactors", "actor": 1.0, "critic": 1.0}

AGENT_BASE: Table = {
    # None is filled with the default instance, so that both are always tables.
    "agent_lr_factor": LR_FACTORS,
    "body_lr_factor": LR_FACTORS,
    "update_schedule": {"_type": "ConstantUpdateSchedule"},
    "use_manual_architecture": False,
    "normalize_message_history": False,
    "load_checkpoint_and_parameters": False,
    "checkpoint_entity": "",
    "checkpoint_project": "",
    "checkpoint_run_id": None,
    "checkpoint_version": "latest",
    "use_orthogonal_initialisation": True,
    "orthogonal_initialisation_gain": 1.0,
}

TEXT_AGENT: Table = {
    "_type": "CodeValidationAgentParameters",
    **AGENT_BASE,
    "model_provider": "OpenAI",
    "model_name": "gpt-4o-mini-2024-07-18",
    "language_model_server_scheme_host": "http://localhost",
    "language_model_server_port": 5000,
    "vllm_server_port": 8000,
    "use_dummy_api": False,
    "shared_model_group": None,
    "temperature": None,
    "top_p": None,
    "repetition_penalty": None,
    "fine_tune_from_scratch": True,
    "freeze_agent": False,
    "quantization": "none",
    "num_epochs": None,
    "dpo_beta": None,
    "use_lora": True,
    "lora_rank": 64,
    "lora_alpha": None,
    "lora_alpha_scale": 1.0,
    "lora_dropout": 0.05,
    "stack_lora_adapters": False,
    "per_device_train_batch_size": 2,
    "system_prompt_template_path": None,
    "use_supervisor_message": "none",
    "supervisor_name": "Supervisor",
    "max_response_words": 150,
    "max_tokens_per_message": None,
    "num_invalid_generation_retries": 20,
    "is_random": False,
}

RANDOM_AGENT: Table = {"_type": "RandomAgentParameters", **AGENT_BASE, "is_random": True}

LONG: Table = {"max_message_rounds": 8, "min_message_rounds": 1}
TWO_PROVERS: Table = {
    **LONG,
    "sequential": False,
    "prover0_first": True,
    "randomize_channel_order": True,
}

# The sections with the fields that its text trainers read, and some of those that they do not.
SECTIONS: dict[str, Table] = {
    "rl": {
        "_type": "RlTrainerParameters",
        "frames_per_batch": 1000,
        "rollouts_per_iteration": None,
        "steps_per_env_per_iteration": None,
        "num_iterations": 1000,
        "num_epochs": 4,
        "minibatch_size": 64,
        "lr": 0.003,
        "anneal_lr": False,
        "max_grad_norm": 1.0,
        "loss_critic_type": "smooth_l1",
        "clip_value": False,
        "normalize_observations": True,
        "num_normalization_steps": 1000,
        "gamma": 0.9,
        "lmbda": 0.95,
        "body_lr_factor": LR_FACTORS,
        "use_shared_body": True,
        "num_test_iterations": 10,
    },
    "ppo": {"_type": "CommonPpoParameters", "clip_epsilon": 0.2},
    "vanilla_ppo": {"_type": "VanillaPpoParameters"},
    "spg": {"_type": "SpgParameters", "variant": "spg"},
    "reinforce": {"_type": "ReinforceParameters"},
    "solo_agent": {"_type": "SoloAgentParameters", "num_epochs": 100},
    "text_rl": {
        "_type": "TextRlParameters",
        "fine_tune_on_all_previous_rollouts": False,
        "verifier_guess_replacement_proportion": 0.0,
        "verifier_guess_replacement_annealing": "none",
        "verifier_guess_replacement_annealing_rate": 0.1,
        "save_transcripts": True,
        "transcript_format": "yaml",
        "test_scheme": "none",
        "test_on_whole_dataset": True,
    },
    "pure_text_ei": {
        "_type": "PureTextEiParameters",
        "rollout_selection_method": "threshold",
        "reward_threshold": 0.9,
        "weighting_sample_size_factor": 0.5,
        "weighting_minimum": None,
        "weighting_use_replacement": True,
        "weighting_epsilon": 0.01,
    },
    "pure_text_malt": {
        "_type": "PureTextMaltParameters",
        "num_responses_per_timestep": 2,
        "frozen_agents_generate_one_response": True,
        "pair_selection_method": "positive_negative",
        "interval_threshold_proportion": 0.1,
        "num_initial_ei_iterations": 0,
    },
    "image_classification": {"_type": "ImageClassificationParameters"},
    "code_validation": {
        "_type": "CodeValidationParameters",
        "apps_difficulty": "interview",
        "apps_solution_number": 0,
        "apps_exclude_flagged": True,
        "system_prompt_version": "v2",
    },
    "dataset_options": {
        "_type": "DatasetParameters",
        "binarification_method": "merge",
        "selected_classes": None,
        "binarification_seed": None,
        "make_balanced": True,
        "max_train_size": None,
        "max_test_size": None,
        "reduce_shuffle_seed": 42,
    },
    "protocol_common": {
        "_type": "CommonProtocolParameters",
        "verifier_first": True,
        "randomize_prover_stance": False,
        "prover_reward": 1.0,
        "prover_invalid_response_penalty": None,
        "verifier_reward": 1.0,
        "verifier_incorrect_penalty": -1.0,
        "verifier_neither_accept_nor_reject_reward": None,
        "verifier_terminated_penalty": -1.0,
        "verifier_no_guess_reward": 0.0,
        "shared_reward": False,
        "force_guess": None,
        "zero_knowledge": False,
        "verifier_decision_spectrum": "accept_reject",
    },
    "nip_protocol": {"_type": "NipProtocolParameters", **LONG},
    "debate_protocol": {"_type": "DebateProtocolParameters", **TWO_PROVERS},
    "mnip_protocol": {"_type": "MnipProtocolParameters", **TWO_PROVERS},
    "zk_protocol": {
        "_type": "ZkProtocolParameters",
        "simulator_reward_coefficient": 1.0,
        "aux_prover_reward_coefficient": 1.0,
    },
    "message_regression": {"_type": "MessageRegressionParameters", "num_epochs": 5},
    "base_run": {
        "_type": "BaseRunParameters",
        "base_run_type": "none",
        "run_id": None,
        "wandb_project": "",
        "wandb_entity": "",
        "rerun_tests_force_test_during_training_state": True,
    },
}

TOP: Table = {
    "interaction_protocol": "nip",
    "seed": 6198,
    "functionalize_modules": False,
    "pretrain_agents": False,
    "test_dataset_split": "test",
    "d_representation": 16,
    "message_size": 1,
    "include_linear_message_space": False,
    "d_linear_message_space": 2,
}

PROVERS: dict[str, tuple[str, ...]] = {
    "nip": ("prover",),
    "adp": ("prover",),
    "debate": ("prover0", "prover1"),
    "mnip": ("prover0", "prover1"),
    "merlin_arthur": ("prover0", "prover1"),
    "solo_verifier": (),
}


def saved(trainer: str, dataset: str, **given: Any) -> Table:
    """`HyperParameters(...).to_dict(include_package_meta=True)`.

    Args:
        trainer: Its name in the library.
        dataset: Likewise.
        **given: Fields of the root; a section, or an agent, may be given as a table of some fields.
    """
    agents = given.pop("agents", None) or {"_default": {}}
    sections = {name: {**own, **(given.pop(name, None) or {})} for name, own in SECTIONS.items()}
    table = {
        "_type": "HyperParameters",
        "_package_name": "nip",
        "_package_version": "2.0.1",
        "scenario": "code_validation",
        "trainer": trainer,
        "dataset": dataset,
        **TOP,
        **sections,
        "agents": {**{name: agent(own) for name, own in agents.items()}, **UPDATES},
        **given,
    }
    return copy.deepcopy(table)


UPDATES = {"agents_update_repr": "Standard"}


def agent(given: Mapping[str, Any]) -> Table:
    """The saved table of an agent; `is_random` chooses its class."""
    return {**(RANDOM_AGENT if given.get("is_random") else TEXT_AGENT), **given}


def experiment(protocol: str = "nip", trainer: str = "pure_text_malt", **given: Any) -> Table:
    """What the library's script for experiments makes of its own defaults and of `given`."""
    common: Table = {
        "fine_tune_from_scratch": False,
        "num_epochs": 3,
        "dpo_beta": 0.1,
        "lora_rank": 32,
        "use_supervisor_message": "all",
    }
    group = {"shared_model_group": "provers_group", "model_name": "gpt-4o-2024-08-06"}
    provers = {name: {**common, **group, "temperature": 1.0} for name in PROVERS[protocol]}
    rounds = {"max_message_rounds": 9, "min_message_rounds": 1}
    sections: dict[str, Any] = {
        "rl": {
            "frames_per_batch": None,
            "rollouts_per_iteration": 20,
            "num_iterations": 8,
            "lr": 1e-6,
            "num_test_iterations": 1,
        },
        "text_rl": {"verifier_guess_replacement_annealing": "linear"},
        "pure_text_malt": {"pair_selection_method": "interval"},
        "nip_protocol": rounds,
        "debate_protocol": rounds,
    }
    merged = {
        name: {**sections.get(name, {}), **given.pop(name, {})}
        for name in {*sections, *(given.keys() & SECTIONS.keys())}
    }
    agents = given.pop("agents", {})
    named = {**provers, "verifier": common}
    return saved(
        trainer,
        given.pop("dataset", "lrhammond/buggy-apps"),
        interaction_protocol=protocol,
        test_dataset_split="validation",
        agents={name: {**own, **agents.get(name, {})} for name, own in named.items()},
        **merged,
        **given,
    )


ALTERNATING = {
    "_type": "AlternatingPeriodicUpdateSchedule",
    "period": 2,
    "first_agent_num_rounds": 1,
    "first_agent": True,
}

# Two dozen, by what is special about each.
CONFIGURATIONS: dict[str, Table] = {
    "defaults": saved("pure_text_malt", "lrhammond/buggy-apps"),
    "defaults-ei": saved("pure_text_ei", "lrhammond/buggy-apps"),
    "apps": saved("pure_text_ei", "codeparrot/apps", code_validation={"apps_solution_number": 1}),
    "test-data": saved("pure_text_ei", "test", rl={"frames_per_batch": 8, "num_iterations": 2}),
    "script-nip": experiment(),
    "script-nip-ei": experiment(trainer="pure_text_ei"),
    "script-adp": experiment("adp"),
    "script-debate": experiment("debate", debate_protocol={"sequential": True}),
    "script-mnip": experiment("mnip", text_rl={"test_scheme": "first_and_last"}),
    "script-merlin": experiment("merlin_arthur", "pure_text_ei"),
    "script-solo": experiment("solo_verifier", "pure_text_ei"),
    "frames-not-divisible": experiment(
        rl={"frames_per_batch": 1000, "rollouts_per_iteration": None}
    ),
    "steps": experiment(rl={"frames_per_batch": 90, "steps_per_env_per_iteration": 9}),
    "whole-data": experiment(rl={"rollouts_per_iteration": None}),
    "likert-5": experiment(protocol_common={"verifier_decision_spectrum": "likert_scale_5"}),
    "likert-7-shared": experiment(
        protocol_common={"verifier_decision_spectrum": "likert_scale_7", "shared_reward": True}
    ),
    "out-of-100": experiment(protocol_common={"verifier_decision_spectrum": "out_of_100"}),
    "stances": experiment(
        protocol_common={"randomize_prover_stance": True, "prover_invalid_response_penalty": -1.0}
    ),
    "ei-then-malt": experiment(pure_text_malt={"num_initial_ei_iterations": 1}),
    "weighted-ei": experiment(
        trainer="pure_text_ei",
        pure_text_ei={"rollout_selection_method": "weighted_sampling", "weighting_minimum": -1.0},
        text_rl={"verifier_guess_replacement_proportion": 0.2},
    ),
    "self-hosted": experiment(
        agents={
            "prover": {"model_provider": "SelfHosted", "model_name": "Qwen/Qwen2.5-7B-Instruct"},
            "verifier": {
                "model_provider": "SelfHosted",
                "model_name": "Qwen/Qwen2.5-1.5B-Instruct",
                "language_model_server_port": 5001,
                "lora_alpha": 64,
                "lora_alpha_scale": None,
                "stack_lora_adapters": True,
            },
        }
    ),
    "openrouter-frozen": experiment(
        agents={"prover": {"model_provider": "OpenRouter", "freeze_agent": True}}
    ),
    "random-prover": experiment(agents={"prover": {"is_random": True, "shared_model_group": None}}),
    "rerun-tests": experiment(
        base_run={"base_run_type": "rerun_tests", "run_id": "cv_a_0"},
        text_rl={"test_scheme": "all"},
    ),
    "from-parameters": experiment(base_run={"base_run_type": "parameters", "run_id": "cv_a_0"}),
    "schedules-and-factors": experiment(
        agents={
            "prover": {
                "update_schedule": ALTERNATING,
                "agent_lr_factor": {**LR_FACTORS, "actor": 2.0},
            },
            "verifier": {
                "body_lr_factor": {**LR_FACTORS, "actor": 0.1},
                "use_orthogonal_initialisation": False,
            },
        }
    ),
    "sections-none": {
        **saved("pure_text_malt", "lrhammond/buggy-apps"),
        **dict.fromkeys(SECTIONS),
    },
}
