"""A rule for each parameter of the *nip* library: kept, renamed, left out, or refused.

A parameter that the library's text trainers read keeps its meaning, or is refused with the reason;
a parameter that only its other trainers read is left out.
"""

from typing import NamedTuple

from nip_fn.config.compat.tags import TYPE_NAMES
from nip_fn.params.agent import AgentParameters
from nip_fn.params.protocol import CommonProtocolParameters
from nip_fn.params.training import PureTextEiParameters

# Fields of our agents that the library's agents lack.
OWN_AGENT_FIELDS = (
    "name",
    "dpo_reference",
    "system_prompt_template",
    "name_speakers_in_content",
    "merge_same_role_messages",
    "api_base_url",
    "api_key_variable",
    "replies_per_request",
    "use_batch_api",
    "extra_request_fields",
    "num_responses",
    "num_idle_responses",
    "pair_selection_method",
    "min_pair_margin",
    "dpo_sft_weight",
    "gradient_checkpointing",
    "base_precision",
    "opponent_pool",
    "opponent_pool_share",
    "opponent_scripts",
    "checkpoint_agent",
)

OWN_COMMON_FIELDS = ("prover_stance",)

# Sections and fields that only its other trainers, or no trainer at all, would read.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "": (
        *("_package_version", "_package_name", "functionalize_modules", "pretrain_agents"),
        *("test_size", "d_representation", "message_size", "include_linear_message_space"),
        *("d_linear_message_space", "ppo", "vanilla_ppo", "spg", "reinforce", "solo_agent"),
        *("image_classification", "message_regression"),
    ),
    "agents": ("_type", "agents_update_repr"),
    # The first two are saved from the environment of every run.
    "agents.*": ("checkpoint_entity", "checkpoint_project"),
    "rl": (
        *("minibatch_size", "anneal_lr", "max_grad_norm", "loss_critic_type", "clip_value"),
        *("normalize_observations", "num_normalization_steps", "gamma", "lmbda"),
        *("body_lr_factor", "use_shared_body"),
        # read by `_rollouts`
        *("frames_per_batch", "rollouts_per_iteration", "steps_per_env_per_iteration"),
    ),
    "dataset_options": (
        *("_type", "binarification_method", "selected_classes", "binarification_seed"),
        "make_balanced",
    ),
    "zk_protocol": ("_type",),
    "base_run": (
        *("_type", "run_id", "wandb_project", "wandb_entity"),
        "rerun_tests_force_test_during_training_state",
    ),
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

_LENGTH = ("max_message_rounds", "min_message_rounds")
_TWO_PROVERS = (*_LENGTH, "sequential", "prover0_first", "randomize_channel_order")

# Fields that mean the same here: the library's section, ours, and the fields.
KEPT: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "", ("interaction_protocol", "seed", "test_dataset_split")),
    (
        "agents.*",
        "agents.*",
        tuple(
            name
            for name in AgentParameters.__struct_fields__
            if name not in (*OWN_AGENT_FIELDS, *LEFT_OUT["agents.*"], *UNREAD, "body_lr_factor")
        ),
    ),
    ("rl", "rl", ("num_iterations", "lr", "num_epochs", "num_test_iterations")),
    (
        "text_rl",
        "text_rl",
        (
            *("test_scheme", "test_on_whole_dataset", "fine_tune_on_all_previous_rollouts"),
            "verifier_guess_replacement_proportion",
            "verifier_guess_replacement_annealing",
            "verifier_guess_replacement_annealing_rate",
            *("save_transcripts", "transcript_format"),
        ),
    ),
    (
        "pure_text_ei",
        "ei",
        tuple(
            name
            for name in PureTextEiParameters.__struct_fields__
            if name not in ("rollouts_per_iteration", "lr")  # our own
        ),
    ),
    (
        "pure_text_malt",
        "malt",
        (
            *("num_responses_per_timestep", "frozen_agents_generate_one_response"),
            *("pair_selection_method", "interval_threshold_proportion"),
            "num_initial_ei_iterations",
        ),
    ),
    (
        "protocol_common",
        "protocol_common",
        tuple(n for n in CommonProtocolParameters.__struct_fields__ if n not in OWN_COMMON_FIELDS),
    ),
    ("nip_protocol", "nip_protocol", _LENGTH),
    ("debate_protocol", "debate_protocol", _TWO_PROVERS),
    ("mnip_protocol", "mnip_protocol", _TWO_PROVERS),
    ("code_validation", "code_validation", ()),
    (
        "dataset_options",
        "dataset_options",
        ("max_train_size", "max_test_size", "reduce_shuffle_seed"),
    ),
    (
        "code_validation",
        "code_validation",
        ("apps_difficulty", "apps_solution_number", "apps_exclude_flagged"),
    ),
)

_NO_ZK = "nip-fn has no zero-knowledge protocols"

# Fields that can only hold their default: section, field, default, reason.
AT_DEFAULT: tuple[tuple[str, str, object, str], ...] = (
    ("zk_protocol", "simulator_reward_coefficient", 1.0, _NO_ZK),
    ("zk_protocol", "aux_prover_reward_coefficient", 1.0, _NO_ZK),
    (
        "agents.*",
        "vllm_openai_base_url",
        "http://localhost:8000/v1",
        "set language_model_server_scheme_host and vllm_server_port instead",
    ),
)


class Rule(NamedTuple):
    """The translation of one field of the library."""

    to: str | None = None  # its address in ours; None: it is left out
    only: tuple[object, ...] | None = None  # the values that are accepted; None: all
    why: str = ""  # the reason why other values are refused
    becomes: tuple[tuple[object, object], ...] = ()  # (their value, ours) of renamed values


_NO_TENSORS = "nip-fn trains language models only"

# Fields that have another name, or values with another name.
_RENAMED: dict[str, Rule] = {
    "scenario": Rule(
        only=("code_validation",), why="the only task of nip-fn is to judge solutions of problems"
    ),
    "trainer": Rule(
        "trainer",
        ("pure_text_ei", "pure_text_malt"),
        _NO_TENSORS,
        becomes=(("pure_text_ei", "ei"), ("pure_text_malt", "malt")),
    ),
    "dataset": Rule(
        "dataset",
        ("lrhammond/buggy-apps", "codeparrot/apps", TEST_DATA),
        "the library has no other data set of code",
        becomes=(
            (TEST_DATA, "builtin:python"),
            ("lrhammond/buggy-apps", "hf:lrhammond/buggy-apps"),
            ("codeparrot/apps", "hf:codeparrot/apps"),
        ),
    ),
    "agents.*._type": Rule(
        only=(*TYPE_NAMES["agents.*"], RANDOM_AGENT), why="another class belongs here"
    ),
    "agents.*.is_random": Rule(only=(False, True), why="it is a switch"),
    "base_run.base_run_type": Rule(only=BASE_RUNS, why="the library has no others"),
    "protocol_common.verifier_decision_scale": Rule("protocol_common.verifier_decision_spectrum"),
    "code_validation.system_prompt_version": Rule(
        "code_validation.system_prompt_version",
        ("v1", "v2"),
        "the library has no others",
        becomes=(("v2", "v1"),),
    ),
}


def _at(section: str, field: str) -> str:
    return f"{section}.{field}" if section else field


RULES: dict[str, Rule] = {
    **{_at(section, field): Rule() for section, fields in LEFT_OUT.items() for field in fields},
    **{_at("agents.*", field): Rule() for field in (*UNREAD, "body_lr_factor")},
    **{
        _at(section, field): Rule(_at(ours, field))
        for section, ours, fields in KEPT
        for field in fields
    },
    **{
        _at(section, "_type"): Rule(only=TYPE_NAMES[ours], why="another class belongs here")
        for section, ours, _ in KEPT
    },
    **{
        _at(section, field): Rule(only=(default,), why=why)
        for section, field, default, why in AT_DEFAULT
    },
    **_RENAMED,
}

# The addresses of tables whose fields have rules of their own.
SECTIONS = {rule.rpartition(".")[0] for rule in RULES} | {"agents"}
