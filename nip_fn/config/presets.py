"""The embedded settings: for each data set a model and a training that learn on a laptop."""

from typing import Any

from nip_fn.config.codec import merge

# Written as a user would write it in TOML; what a configuration file leaves out comes from here.
ARITHMETIC: dict[str, Any] = {
    "trainer": "malt",
    "interaction_protocol": "nip",
    "agents": {
        "_default": {
            "model_provider": "local",
            "model_name": "builtin:tiny",
            "use_supervisor_message": "all",
            "max_tokens_per_message": 64,
            "num_invalid_generation_retries": 3,
            "merge_same_role_messages": False,
            "fine_tune_from_scratch": False,
            "lora_rank": 16,
            "lora_alpha_scale": 2.0,
            "lora_dropout": 0.0,
            "dpo_beta": 0.1,
            "per_device_train_batch_size": 32,
        },
    },
    "rl": {"num_iterations": 4, "rollouts_per_iteration": 80, "lr": 5e-4, "num_epochs": 2},
    "text_rl": {"test_scheme": "all"},
    # One dialogue a problem instead of a tree: more problems, for about as many replies.  Imitation
    # moves a model less than preferences do at the same learning rate.
    "ei": {"rollouts_per_iteration": 1500, "lr": 3e-3},
    "malt": {"num_responses_per_timestep": 4},
    "nip_protocol": {"max_message_rounds": 3},
    "debate_protocol": {"max_message_rounds": 3},
    "mnip_protocol": {"max_message_rounds": 3},
    "code_validation": {"system_prompt_version": "tiny"},
    "dataset_options": {"max_test_size": 400},
}

# The lady tasting tea: what `nip-fn train` does where nothing else is asked for.
TEA: dict[str, Any] = merge(
    ARITHMETIC,
    {
        "agents": {
            "_default": {
                "model_name": "builtin:tea",
                "use_supervisor_message": "none",
                "max_tokens_per_message": 40,
                "num_invalid_generation_retries": 1,
            },
            # Many questions, since only a few of them differ in what they are worth; of each two
            # verdicts on the same answers one is often better already.
            "verifier": {"num_responses": [8, 2]},
        },
        "rl": {"num_iterations": 10, "rollouts_per_iteration": 48},
        "code_validation": {"system_prompt_version": "views"},
    },
)

PRESETS = {"builtin:tea": TEA, "builtin:tea-public": TEA}


def with_preset(given: dict[str, Any]) -> dict[str, Any]:
    """A written configuration, laid over the embedded settings for its data set."""
    dataset = given.get("dataset", "builtin:tea")
    return merge({**PRESETS.get(dataset, ARITHMETIC), "dataset": dataset}, given)
