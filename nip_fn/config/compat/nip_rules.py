"""A rule for each parameter of the *nip* library: kept, renamed, left out, or refused.

A parameter that the library's text trainers read keeps its meaning, or is refused with the reason;
a parameter that only its other trainers read is left out.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# Sections and fields that only its other trainers, or no trainer at all, would read.
LEFT_OUT: dict[str, str] = {
    "": "_type _package_version _package_name functionalize_modules pretrain_agents test_size "
    "d_representation message_size include_linear_message_space d_linear_message_space ppo "
    "vanilla_ppo spg reinforce solo_agent image_classification message_regression",
    "agents": "_type agents_update_repr",
    # The first two are saved from the environment of every run.
    "agents.*": "checkpoint_entity checkpoint_project body_lr_factor use_manual_architecture "
    "normalize_message_history use_orthogonal_initialisation orthogonal_initialisation_gain",
    # The last three are read by `nip.py`.
    "rl": "_type minibatch_size anneal_lr max_grad_norm loss_critic_type clip_value "
    "normalize_observations num_normalization_steps gamma lmbda body_lr_factor use_shared_body "
    "frames_per_batch rollouts_per_iteration steps_per_env_per_iteration",
    "text_rl": "_type",
    "pure_text_ei": "_type",
    "pure_text_malt": "_type",
    "code_validation": "_type",
    "dataset_options": "_type binarification_method selected_classes binarification_seed "
    "make_balanced",
    "protocol_common": "_type",
    "nip_protocol": "_type",
    "debate_protocol": "_type",
    "mnip_protocol": "_type",
    "zk_protocol": "_type",
    "base_run": "_type run_id wandb_project wandb_entity "
    "rerun_tests_force_test_during_training_state",
}

# Fields of every agent that its text agents hold and do not read: the values that say nothing.
UNREAD: dict[str, object] = {
    "use_manual_architecture": False,
    "normalize_message_history": False,
    "use_orthogonal_initialisation": True,
    "orthogonal_initialisation_gain": 1.0,
}

# The library's defaults, where ours are others.  `rl.frames_per_batch` is one of them, too.
DEFAULTS: dict[str, dict[str, object]] = {
    "rl": {"num_iterations": 1000, "lr": 0.003, "num_epochs": 4, "num_test_iterations": 10},
    "text_rl": {"save_transcripts": True},
}
FRAMES = 1000  # rl.frames_per_batch

RANDOM_AGENT = "RandomAgentParameters"
TEST_DATA = "test"  # its ten rows of placeholders
BASE_RUNS = ("none", "parameters", "rerun_tests")

_LENGTH = "max_message_rounds min_message_rounds"
_TWO_PROVERS = f"{_LENGTH} sequential prover0_first randomize_channel_order"

# Fields that mean the same here, by the library's section and ours.
KEPT: dict[tuple[str, str], str] = {
    ("", ""): "interaction_protocol seed test_dataset_split",
    ("agents.*", "agents.*"): "agent_lr_factor update_schedule load_checkpoint_and_parameters "
    "checkpoint_run_id checkpoint_version model_provider model_name "
    "language_model_server_scheme_host language_model_server_port vllm_server_port use_dummy_api "
    "shared_model_group temperature top_p repetition_penalty fine_tune_from_scratch freeze_agent "
    "quantization num_epochs dpo_beta use_lora lora_rank lora_alpha lora_alpha_scale lora_dropout "
    "stack_lora_adapters per_device_train_batch_size system_prompt_template_path "
    "use_supervisor_message supervisor_name max_response_words max_tokens_per_message "
    "num_invalid_generation_retries",
    ("rl", "rl"): "num_iterations lr num_epochs num_test_iterations",
    ("text_rl", "text_rl"): "test_scheme test_on_whole_dataset fine_tune_on_all_previous_rollouts "
    "verifier_guess_replacement_proportion verifier_guess_replacement_annealing "
    "verifier_guess_replacement_annealing_rate save_transcripts transcript_format",
    ("pure_text_ei", "ei"): "rollout_selection_method reward_threshold "
    "weighting_sample_size_factor weighting_minimum weighting_use_replacement weighting_epsilon",
    ("pure_text_malt", "malt"): "num_responses_per_timestep frozen_agents_generate_one_response "
    "pair_selection_method interval_threshold_proportion num_initial_ei_iterations",
    ("protocol_common", "protocol_common"): "verifier_first randomize_prover_stance prover_reward "
    "prover_invalid_response_penalty verifier_reward verifier_incorrect_penalty "
    "verifier_neither_accept_nor_reject_reward verifier_terminated_penalty "
    "verifier_no_guess_reward shared_reward force_guess verifier_decision_spectrum",
    ("nip_protocol", "nip_protocol"): _LENGTH,
    ("debate_protocol", "debate_protocol"): _TWO_PROVERS,
    ("mnip_protocol", "mnip_protocol"): _TWO_PROVERS,
    ("dataset_options", "dataset_options"): "max_train_size max_test_size reduce_shuffle_seed",
    ("code_validation", "code_validation"): "apps_difficulty apps_solution_number "
    "apps_exclude_flagged",
}


class FieldRule(NamedTuple):
    """The translation of one field of the library.

    to: The address of the field here; None if it is left out.
    only: The values that are accepted; None for all.
    why: The reason why others are refused.
    becomes: The values here of renamed ones.
    """

    to: str | None = None
    only: tuple[object, ...] | None = None
    why: str = ""
    becomes: Mapping[str, str] = MappingProxyType({})


_NO_ZK = "nip-fn has no zero-knowledge protocols"

# Fields that have another name, values with another name, or values that cannot be honoured.
_SPECIAL: dict[str, FieldRule] = {
    "scenario": FieldRule(
        only=("code_validation",), why="the only task of nip-fn is to judge solutions of problems"
    ),
    "trainer": FieldRule(
        "trainer",
        ("pure_text_ei", "pure_text_malt"),
        "nip-fn trains language models only",
        {"pure_text_ei": "ei", "pure_text_malt": "malt"},
    ),
    "dataset": FieldRule(
        "dataset",
        ("lrhammond/buggy-apps", "codeparrot/apps", TEST_DATA),
        "the library has no other data set of code",
        {
            TEST_DATA: "builtin:python",
            "lrhammond/buggy-apps": "hf:lrhammond/buggy-apps",
            "codeparrot/apps": "hf:codeparrot/apps",
        },
    ),
    "agents.*._type": FieldRule(
        only=("CodeValidationAgentParameters", "PureTextAgentParameters", RANDOM_AGENT),
        why="another class belongs here",
    ),
    "agents.*.is_random": FieldRule(only=(False, True), why="it is a switch"),
    "agents.*.vllm_openai_base_url": FieldRule(
        only=("http://localhost:8000/v1",),
        why="set language_model_server_scheme_host and vllm_server_port instead",
    ),
    "base_run.base_run_type": FieldRule(only=BASE_RUNS, why="the library has no others"),
    "protocol_common.verifier_decision_scale": FieldRule(
        "protocol_common.verifier_decision_spectrum"
    ),
    "protocol_common.zero_knowledge": FieldRule(only=(False,), why=_NO_ZK),
    "zk_protocol.simulator_reward_coefficient": FieldRule(only=(1.0,), why=_NO_ZK),
    "zk_protocol.aux_prover_reward_coefficient": FieldRule(only=(1.0,), why=_NO_ZK),
    "code_validation.system_prompt_version": FieldRule(
        "code_validation.system_prompt_version",
        ("v1", "v2"),
        "the library has no others",
        {"v2": "v1"},
    ),
}


def _address(section: str, field: str) -> str:
    return f"{section}.{field}" if section else field


RULES: dict[str, FieldRule] = {
    **{_address(name, field): FieldRule() for name in LEFT_OUT for field in LEFT_OUT[name].split()},
    **{
        _address(section, field): FieldRule(_address(ours, field))
        for (section, ours), fields in KEPT.items()
        for field in fields.split()
    },
    **_SPECIAL,
}

# The addresses of tables whose fields have rules of their own.
SECTIONS = {rule.rpartition(".")[0] for rule in RULES} | {"agents"}
