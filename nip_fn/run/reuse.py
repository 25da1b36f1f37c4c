"""The parameters that no recorded reply depends on: what is done with replies, not how they came.

A replay may select by others of them, and a fork (`run.fork`) select, train and test by them.
"""

from nip_fn.config.codec import differences
from nip_fn.config.hosting import may_change
from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters

SELECTION_PARAMETERS = (
    "ei.reward_threshold",
    "ei.rollout_selection_method",
    "ei.weighting_epsilon",
    "ei.weighting_minimum",
    "ei.weighting_sample_size_factor",
    "ei.weighting_use_replacement",
    "malt.balance_pairs",
    "malt.deduplicate_pairs",
    "malt.interval_threshold_proportion",
    "malt.max_pairs_per_datapoint",
    "malt.min_pair_margin",
    "malt.pair_selection_method",
    "malt.value_backup",
    # Only the draws of the selection follow it here; the replies remain those that were recorded.
    "seed",
    "agents.AGENT.min_pair_margin",
    "agents.AGENT.pair_selection_method",
)
# A fork plays the recorded replies again, under its own rules: other rewards change neither who
# speaks nor what is shown.  A penalty that ends the game would, and so would a reward that prompts
# tell of (`shared_reward`).
REWARD_PARAMETERS = (
    "protocol_common.prover_reward",
    "protocol_common.verifier_incorrect_penalty",
    "protocol_common.verifier_neither_accept_nor_reject_reward",
    "protocol_common.verifier_no_guess_reward",
    "protocol_common.verifier_reward",
    "protocol_common.verifier_terminated_penalty",
)
TRAINING_PARAMETERS = (
    "ei.lr",
    "rl.lr",
    "rl.num_epochs",
    "rl.num_iterations",
    "text_rl.switch_adapters",
    "text_rl.verifier_guess_replacement_annealing",
    "text_rl.verifier_guess_replacement_annealing_rate",
    "text_rl.verifier_guess_replacement_proportion",
    "agents.AGENT.agent_lr_factor",
    "agents.AGENT.base_precision",
    "agents.AGENT.dpo_beta",
    "agents.AGENT.dpo_reference",
    "agents.AGENT.dpo_sft_weight",
    "agents.AGENT.fine_tune_from_scratch",
    "agents.AGENT.gradient_checkpointing",
    "agents.AGENT.lora_alpha",
    "agents.AGENT.lora_alpha_scale",
    "agents.AGENT.lora_dropout",
    "agents.AGENT.lora_rank",
    "agents.AGENT.num_epochs",
    "agents.AGENT.per_device_train_batch_size",
    "agents.AGENT.stack_lora_adapters",
    "agents.AGENT.use_lora",
)
TEST_PARAMETERS = (
    "rl.num_test_iterations",
    "test_dataset_split",
    "text_rl.save_transcripts",
    "text_rl.test_on_whole_dataset",
    "text_rl.test_scheme",
    "text_rl.test_temperature",
    "text_rl.test_trees",
    "text_rl.transcript_format",
)
FORK_PARAMETERS = (
    *SELECTION_PARAMETERS,
    *REWARD_PARAMETERS,
    *TRAINING_PARAMETERS,
    *TEST_PARAMETERS,
)


def is_among(address: str, parameters: tuple[str, ...]) -> bool:
    """True if the address is one of the parameters, where `agents.AGENT` stands for any agent."""
    section, _, rest = address.partition(".")
    agent, _, field = rest.partition(".")
    general = f"agents.AGENT.{field}" if section == "agents" and agent else address
    # A parameter may be a table of its own, such as `agent_lr_factor`.
    return any(general == one or general.startswith(f"{one}.") for one in parameters)


def fork_problem(recorded: HyperParameters, requested: HyperParameters) -> Problem | None:
    """The first parameter that other replies might have followed from; None if there is none."""
    for address in differences(recorded, requested):
        if not (is_among(address, FORK_PARAMETERS) or may_change(recorded, requested, address)):
            return Problem(
                "the recorded replies might have been others with it",
                address,
                "leave it as it was, or start a new run without --from",
            )
    return None
