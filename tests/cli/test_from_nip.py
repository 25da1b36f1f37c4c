"""The tables of docs/from-nip.md: all that the *nip* library documents for five classes."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from nip_fn.config.codec import default_table
from nip_fn.export.arrays import ARRAY_COLUMNS
from nip_fn_cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "from-nip.md").read_text("utf-8")

# The documented names: the class, its parameters, attributes and methods, and what these take,
# return and raise.
RECORD = (
    "__eq__ __init__ __repr__ _get_param_class_from_dict construct_test_params from_dict get "
    "to_dict param_dict params_dict ignore_extra_keys address ParameterValue"
)
MADE_WITH = "__init__ hyper_params settings protocol_handler HyperParameters ExperimentSettings"
GROUP = (
    f"{MADE_WITH} ProtocolHandler agent_wholes group_name agent_ids_and_names "
    "create_dpo_fine_tune_job create_supervised_fine_tune_job positive_examples_per_agent "
    "negative_examples_per_agent rollouts_per_agent guess_replaced_rollouts job_name eval "
    "fine_tune_job_failed get_fine_tune_job_error_repr get_fine_tune_job_status get_state "
    "get_state_dict set_state checkpoint switch_to_next_model train wait_for_ready timeout "
    "is_trainable lora_alpha max_message_rounds model_name num_epochs rl_learning_rate "
    "AgentCheckpoint NestedArrayDict"
)
DOCUMENTED = {
    "PureTextAgentParameters": f"{RECORD} __post_init__ load_from_wandb_config wandb_config "
    "LOAD_PRESERVED_PARAMETERS agent_lr_factor body_lr_factor checkpoint_entity checkpoint_project "
    "checkpoint_run_id checkpoint_version dpo_beta fine_tune_from_scratch freeze_agent is_random "
    "language_model_server_port language_model_server_scheme_host load_checkpoint_and_parameters "
    "lora_alpha lora_alpha_scale lora_dropout lora_rank max_response_words max_tokens_per_message "
    "model_name model_provider normalize_message_history num_epochs num_invalid_generation_retries "
    "orthogonal_initialisation_gain per_device_train_batch_size quantization repetition_penalty "
    "shared_model_group stack_lora_adapters supervisor_name system_prompt_template_path "
    "temperature top_p update_schedule use_dummy_api use_lora use_manual_architecture "
    "use_orthogonal_initialisation use_supervisor_message vllm_server_port LrFactors "
    "AgentUpdateSchedule ConstantUpdateSchedule VllmQuantization UseSupervisorType "
    "AgentsParameters",
    "PureTextMaltParameters": f"{RECORD} num_responses_per_timestep num_iterations "
    "max_message_rounds frozen_agents_generate_one_response pair_selection_method "
    "interval_threshold_proportion num_initial_ei_iterations BaseHyperParameters",
    "PureTextSharedModelGroup": f"{GROUP} PureTextWholeAgent PureTextSharedModelGroupState",
    "OpenAiSharedModelGroup": f"{GROUP} OpenAiWholeAgent OpenAiSharedModelGroupState "
    "CodeValidationProtocolHandler _get_lm_server_fine_tune_job _get_openai_fine_tune_job "
    "_make_fine_tune_api_call _make_fine_tune_api_call_lm_server _make_fine_tune_api_call_openai "
    "fine_tune_dataset method language_model_client openai_client training_client_type "
    "SupervisedDatasetItem DpoDatasetItem TrainingJobInfo LmTrainingJobInfo FineTuningJob "
    "TrainingJobNotFoundClientError",
    "OpenAiWholeAgent": f"{MADE_WITH} ProtocolHandler CodeValidationProtocolHandler agent_name "
    "__call__ __getstate__ _build_chat_messages_prompt _generate_dummy_response "
    "_generate_next_message_and_decision _make_generation_api_call build_fine_tune_dataset forward "
    "get_state_dict set_state checkpoint data environment message_history message_agent_id "
    "raw_message_history round_id channel_name question solution prover_stance seed y "
    "ensure_last_message_is_assistant replace_last_message_with_true_label chat_messages_prompt "
    "completion_text finish_reason timesteps replace_verifier_guess_with_true_label agent_id "
    "agent_level_in_keys agent_level_out_keys agent_spec base_model_name client env_level_in_keys "
    "env_level_out_keys in_keys is_prover is_verifier max_message_rounds model_name "
    "num_visible_message_channels out_keys required_pretrained_models shared_model_group "
    "system_prompt_template visible_message_channel_indices visible_message_channel_mask "
    "visible_message_channel_names agent_params CodeValidationAgentSpec PureTextEnvironment "
    "NestedArrayDict PromptMessage _ParsedChatCompletion AgentState AgentCheckpoint "
    "AgentNotActiveInChannelError ContentFilterError UnknownFinishReasonError InvalidResponseError "
    "InvalidDecisionError",
}
KEYS = (
    "round seed question solution y prover_stance message_history message_agent_id "
    "raw_message_history message raw_message decision retry_count token_limit"
)


def words(cell: str) -> list[str]:
    """What a cell or a paragraph has in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def section(title: str) -> str:
    """What stands below a heading of the page."""
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the table below that heading."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def find(name: str) -> Any:
    """What a dotted name stands for: a module, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def look_up(counterpart: str) -> None:
    """Raise an error unless there is such a command, importable name or parameter."""
    if counterpart.startswith("nip-fn "):
        command: Any = typer.main.get_command(app)
        assert counterpart.removeprefix("nip-fn ") in command.commands, counterpart
    elif counterpart.startswith("nip_fn"):
        find(counterpart)
    else:
        value: Any = default_table()
        for part in counterpart.replace("agents.*", "agents._default").split("."):
            value = value[part]


@pytest.mark.parametrize("page", DOCUMENTED)
def test_every_documented_name_has_a_row(page: str) -> None:
    named = [name for there, *_ in rows(page) for name in words(there)]
    assert sorted(named) == sorted({page, *DOCUMENTED[page].split()})


@pytest.mark.parametrize("page", DOCUMENTED)
def test_every_counterpart_exists(page: str) -> None:
    for there, here, _ in rows(page):
        assert words(here), there
        for counterpart in words(here):
            look_up(counterpart)


@pytest.mark.parametrize("wrong", ["nip-fn trian", "nip_fn.run.stepp", "nip_fn.run.step.x", "rl.l"])
def test_a_counterpart_that_does_not_exist_is_found_out(wrong: str) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        look_up(wrong)


def test_rollouts_have_the_library_s_keys() -> None:
    keys = KEYS.split()
    assert set(keys) <= set(words(section("Keys of rollouts")))
    assert set(keys) <= {column.name for column in ARRAY_COLUMNS}
