"""Parameters of one agent: its model, its sampling, its prompts and its training."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from nip_fn.errors import Problem
from nip_fn.params.base import (
    Count,
    Natural,
    NotNegative,
    Positive,
    Record,
    Share,
    Temperature,
    parameter,
)
from nip_fn.params.names import name_problem
from nip_fn.params.update_schedule import ConstantUpdateSchedule, UpdateSchedule
from nip_fn.training.losses import BUILT_IN_LOSSES, Loss
from nip_fn.training.tuning import Checkpointing, Precision

Provider = Literal["OpenAI", "SelfHosted", "OpenRouter", "local", "scripted"]
# As they are written in files and on the command line, and as messages spell them.
OPTIONS: dict[Provider, str] = {
    "local": "local",
    "OpenAI": "openai",
    "OpenRouter": "openrouter",
    "SelfHosted": "self-hosted",
    "scripted": "scripted",
}
LOSS_NAMES = tuple(name for name in BUILT_IN_LOSSES if name != "sft")
SupervisorRule = Literal["none", "all", "first", "all_but_first"]
# A number for all turns, or one for each.
ByTurn = Count | Annotated[tuple[Count, ...], Meta(min_length=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]


# Tokens of a reply for each word that the prompt allows.  English takes about 1.3 tokens a word and
# quoted code twice as many, so that 2 hold the message.  A verifier's prompt asks it to reason and
# sets no limit, and what is cut before the verdict is lost: three times as much again for that.
TOKENS_PER_WORD = 8


# How a group's model is trained, and where and how patiently the models of a group are reached.
training_parameter = partial(parameter, stage="training", shared=True)
server_parameter = partial(parameter, stage="session", shared=True)


class AgentParameters(Record, frozen=True):
    """The model, the sampling and the training of one agent."""

    name: Annotated[str, parameter("Name of the agent in the protocol.")] = ""
    agent_lr_factor: Annotated[
        Positive | None,
        training_parameter(
            "Learning rate of this agent's model as a multiple of the run's. None: 1.",
            needs="real training",
        ),
    ] = None
    update_schedule: Annotated[
        UpdateSchedule,
        parameter(
            "Iterations in which the agent is trained.",
            needs="trained",
            shared=True,
            reset_in_attacks=True,
        ),
    ] = ConstantUpdateSchedule()
    load_checkpoint_and_parameters: Annotated[
        bool,
        parameter(
            "Load this agent's parameters and adapter from an earlier run.",
            kept_when_loaded=True,
            reset_in_attacks=True,
        ),
    ] = False
    checkpoint_run_id: Annotated[
        str | None,
        parameter(
            "Name or folder of the run to load.", kept_when_loaded=True, reset_in_attacks=True
        ),
    ] = None
    checkpoint_version: Annotated[
        str,
        parameter(
            'Adapter to load: its iteration or name, "latest", or "base".',
            needs="loading",
            kept_when_loaded=True,
            reset_in_attacks=True,
        ),
    ] = "latest"
    model_provider: Annotated[
        Provider,
        parameter(
            'Where the model is sampled and trained. "local": in this process. "scripted": no '
            'model; the agent follows a strategy and is never trained. "dummy": no model; replies '
            "are random, as with use_dummy_api.",
            needs="provider",
            shared=True,
        ),
    ] = "OpenAI"
    model_name: Annotated[
        str,
        parameter(
            'The base model. With "local", a folder or "builtin:tea"; with "scripted", the name '
            "of a strategy such as honest, liar or silent, or one of your own. Name one if you "
            "use an API: the default is that of files saved by the nip library.",
            shared=True,
        ),
    ] = "gpt-4o-mini-2024-07-18"
    language_model_server_scheme_host: Annotated[
        str,
        server_parameter(
            "Scheme and host of the language-model server (self-hosted).",
            needs="language-model server",
        ),
    ] = "http://localhost"
    language_model_server_port: Annotated[
        Port,
        server_parameter(
            "Port of the language-model server (self-hosted).", needs="language-model server"
        ),
    ] = 5000
    vllm_server_port: Annotated[
        Port,
        server_parameter(
            "Port of vLLM (self-hosted); its replicas use the ports after it. 8000: the port that "
            "the language-model server reports.",
            needs="language-model server",
        ),
    ] = 8000
    api_base_url: Annotated[
        str | None,
        server_parameter(
            "Base URL of an OpenAI-compatible API. Several URLs, separated by commas, share the "
            "requests. None: the provider's own.",
            needs="server",
        ),
    ] = None
    api_key_variable: Annotated[
        str | None,
        server_parameter(
            "Environment variable that holds the API key. None: OPENAI_API_KEY or "
            "OPENROUTER_API_KEY; for other servers NIP_FN_SERVER_TOKEN, if it is set.",
            needs="server",
        ),
    ] = None
    replies_per_request: Annotated[
        Literal["auto", "all", "one"],
        server_parameter(
            '"all": sample sibling replies in one request ("n"). "one": send a request for each. '
            '"auto": one request if the server supports it.',
            needs="server",
        ),
    ] = "auto"
    use_batch_api: Annotated[
        bool,
        parameter(
            "Use the batch API: half the price, but each step may take a day.",
            needs="server",
            shared=True,
        ),
    ] = False
    use_dummy_api: Annotated[
        bool,
        parameter("Use no model: replies are random, and training has no effect.", shared=True),
    ] = False
    shared_model_group: Annotated[
        str | None,
        parameter(
            "Agents in the same group share one model. None: a model of its own.",
            reset_in_attacks=True,
        ),
    ] = None
    temperature: Annotated[
        Temperature | None,
        parameter(
            "Sampling temperature; excludes top_p. None: the model's default.", needs="model"
        ),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0.0, le=1.0)] | None,
        parameter("Nucleus sampling threshold. None: the model's default.", needs="model"),
    ] = None
    repetition_penalty: Annotated[
        Positive | None,
        parameter(
            "Values above 1 discourage repeated tokens. None: the model's default.", needs="model"
        ),
    ] = None
    num_responses: Annotated[
        ByTurn | None,
        parameter(
            "With malt: number of replies sampled from this agent at each of its turns, or a list "
            "with a number for each turn, whose last number repeats. The more replies follow "
            "another agent's reply, the more reliable that agent's preference pairs are. None: "
            "malt.num_responses_per_timestep, or 1 if the agent is frozen.",
            needs="malt",
            reset_in_attacks=True,
        ),
    ] = None
    num_idle_responses: Annotated[
        ByTurn | None,
        parameter(
            "Number of replies at turns that are not trained on: the agent is frozen, not due by "
            "its update_schedule, or played by an earlier model. None: the same as num_responses.",
            needs="idle turns",
            reset_in_attacks=True,
        ),
    ] = None
    pair_selection_method: Annotated[
        str | None,
        parameter(
            "With malt: pair rule for this agent. None: malt.pair_selection_method.",
            needs="pair rule",
            stage="selection",
            reset_in_attacks=True,
        ),
    ] = None
    min_pair_margin: Annotated[
        NotNegative | None,
        parameter(
            "With malt: smallest difference in expected reward between this agent's chosen and "
            "rejected replies. None: malt.min_pair_margin.",
            needs="pair rule",
            stage="selection",
            reset_in_attacks=True,
        ),
    ] = None
    opponent_pool: Annotated[
        Natural,
        parameter(
            "Number of earlier models of each other agent (including the base model) to train "
            "this agent against. They are drawn at random for each tree, and such a tree trains "
            "this agent only. 0: only the latest models.",
            needs="iterations",
            kept_when_loaded=True,
            reset_in_attacks=True,
        ),
    ] = 0
    opponent_scripts: Annotated[
        tuple[str, ...],
        parameter(
            "Scripted strategies to train this agent against, drawn from the same pool as earlier "
            "models. 'repeat' attacks a verifier, and so does 'framer' in the bug hunt.",
            needs="iterations",
            kept_when_loaded=True,
            reset_in_attacks=True,
        ),
    ] = ()
    opponent_pool_share: Annotated[
        Share,
        parameter(
            "Share of the trees in which this agent plays against the earlier models or scripts "
            "of its pool.",
            needs="opponents",
            kept_when_loaded=True,
        ),
    ] = 0.5
    fine_tune_from_scratch: Annotated[
        bool,
        training_parameter(
            "Start each training from the base model instead of the last adapter.", needs="trained"
        ),
    ] = True
    freeze_agent: Annotated[
        bool,
        parameter(
            "Never train this agent.", needs="iterations", shared=True, kept_when_loaded=True
        ),
    ] = False
    quantization: Annotated[
        Literal["bitsandbytes", "none"],
        parameter("Quantization of the weights that vLLM serves.", needs="model", shared=True),
    ] = "none"
    num_epochs: Annotated[
        Count | None,
        training_parameter(
            "Epochs over the training data. None: rl.num_epochs.", needs="real training"
        ),
    ] = None
    # A name, or a table such as {_type = "clipped", kl = 0.01}.
    loss: Annotated[
        Loss | str | None,
        training_parameter(
            "Loss of the trainings: dpo, ipo, simpo, policy_gradient, clipped, a table that gives "
            "its numbers, or a loss of your own. None: dpo for malt, policy_gradient for "
            "reinforce.",
            needs="loss",
            names=LOSS_NAMES,
        ),
    ] = None
    dpo_beta: Annotated[
        Annotated[float, Meta(gt=0.0, le=2.0)] | None,
        training_parameter(
            "DPO's beta, the strength of the pull towards the reference policy. None: 0.1.",
            needs="dpo",
        ),
    ] = None
    dpo_reference: Annotated[
        Literal["previous", "base"],
        training_parameter(
            "Reference policy: the adapter that the training starts from, or the base model.",
            needs="reference",
        ),
    ] = "previous"
    dpo_sft_weight: Annotated[
        Annotated[float, Meta(ge=0.0, le=100.0)],
        training_parameter(
            "Weight of a supervised loss on the chosen replies (nats per token), added to the DPO "
            "loss. 0: DPO only.",
            needs="dpo",
        ),
    ] = 0.0
    use_lora: Annotated[
        bool,
        training_parameter("Train a LoRA adapter instead of all weights.", needs="our trainer"),
    ] = True
    lora_rank: Annotated[Count, training_parameter("Rank of the LoRA adapter.", needs="lora")] = 64
    lora_alpha: Annotated[
        Count | None,
        training_parameter("LoRA's alpha. None: lora_rank x lora_alpha_scale.", needs="lora"),
    ] = None
    lora_alpha_scale: Annotated[
        Positive | None, training_parameter("LoRA's alpha as a multiple of its rank.", needs="lora")
    ] = 1.0
    lora_dropout: Annotated[
        Share, training_parameter("Dropout rate of the LoRA layers.", needs="lora")
    ] = 0.05
    stack_lora_adapters: Annotated[
        bool,
        training_parameter(
            "Train a new adapter on top of the previous ones each time.",
            needs="stacked adapters",
        ),
    ] = False
    per_device_train_batch_size: Annotated[
        Count,
        training_parameter(
            "Training examples per device in each gradient step.", needs="real training"
        ),
    ] = 2
    gradient_checkpointing: Annotated[
        Checkpointing,
        training_parameter(
            "Recompute activations in the backward pass: less memory, about a third more time. "
            '"auto": for models with at least 10^9 weights.',
            needs="our trainer",
        ),
    ] = "auto"
    base_precision: Annotated[
        Literal["auto", Precision],
        training_parameter(
            "Precision of the base weights while a LoRA adapter is trained; 8 and 4 bits need "
            'bitsandbytes and a GPU. "auto": bf16 for models with at least 10^9 weights on a GPU '
            "with fast bf16, otherwise float32; always float32 for stacked adapters.",
            needs="lora",
        ),
    ] = "auto"
    system_prompt_template_path: Annotated[
        str | None,
        parameter("File with a Jinja template to use as the system prompt.", needs="chat"),
    ] = None
    system_prompt_template: Annotated[
        str | None,
        parameter(
            "Text of the template, filled in from the file when the run starts.", needs="chat"
        ),
    ] = None
    use_supervisor_message: Annotated[
        SupervisorRule,
        parameter(
            'Rounds whose chat ends with a supervisor\'s instructions; "first" is the first round '
            "of the game. The verifier's last turn always has them.",
            needs="chat",
        ),
    ] = "none"
    supervisor_name: Annotated[str, parameter("Name of the supervisor.", needs="chat")] = (
        "Supervisor"
    )
    max_response_words: Annotated[
        Count,
        parameter(
            "Maximum length of a reply in words, as stated in the prompt.", needs="word limit"
        ),
    ] = 150
    max_tokens_per_message: Annotated[
        Count | None,
        parameter(
            "Maximum tokens of a reply, including hidden reasoning. None: "
            f"{TOKENS_PER_WORD} x max_response_words, or the limit of an embedded model.",
            needs="model",
        ),
    ] = None
    # The JSON of the table that is written: a record must be hashable, and tables are not.
    extra_request_fields: Annotated[
        str | None,
        parameter(
            "Table of extra fields to send with each API request, such as {reasoning_effort = "
            '"low"}. None: no extra fields.',
            needs="server",
        ),
    ] = None
    num_invalid_generation_retries: Annotated[
        Count, parameter("Number of attempts before a reply is recorded as invalid.")
    ] = 20
    name_speakers_in_content: Annotated[
        bool | None,
        parameter(
            "Start each message with its speaker's name. None: only with providers that drop the "
            "name field.",
            needs="chat",
        ),
    ] = None
    merge_same_role_messages: Annotated[
        bool | None,
        parameter(
            "Merge consecutive messages of one role. None: with every provider but OpenAI.",
            needs="chat",
        ),
    ] = None
    checkpoint_agent: Annotated[
        str | None,
        parameter(
            "Name of the agent to load from that run. None: the same name.",
            kept_when_loaded=True,
            reset_in_attacks=True,
        ),
    ] = None


def agent_group(agent: AgentParameters) -> str:
    """The name of the shared model group that the agent belongs to."""
    return agent.shared_model_group or agent.name


def group_name_problems(agents: Iterable[AgentParameters]) -> Iterator[Problem]:
    """A problem for each model group whose name is not plain: files are named after groups."""
    for agent in agents:
        if agent.shared_model_group is not None:
            address = f"agents.{agent.name}.shared_model_group"
            if problem := name_problem(agent.shared_model_group, address):
                yield problem


def provider(agent: AgentParameters) -> str:
    """The agent's provider, as it is written; "dummy" if no model speaks for it."""
    return "dummy" if agent.use_dummy_api else OPTIONS[agent.model_provider]


def meets_others(agent: AgentParameters) -> bool:
    """True if the agent meets other opponents while it samples than the present models."""
    return bool(agent.opponent_pool or agent.opponent_scripts)


def is_scripted(agent: AgentParameters) -> bool:
    """True if a strategy speaks for the agent, and no model."""
    return agent.model_provider == "scripted"


def is_frozen(agent: AgentParameters) -> bool:
    """True if the agent is never trained."""
    return agent.freeze_agent or is_scripted(agent)


def fields_in(text: str | None) -> dict[str, Any]:
    """The table whose JSON `extra_request_fields` holds; {} for None.

    >>> fields_in('{"reasoning_effort":"low"}')
    {'reasoning_effort': 'low'}
    """
    fields: dict[str, Any] = msgspec.json.decode(text) if text else {}
    return fields


def lora_alpha(agent: AgentParameters) -> int:
    """LoRA's alpha: as given, or else `lora_rank * lora_alpha_scale`."""
    if agent.lora_alpha is not None:
        return agent.lora_alpha
    return round(agent.lora_rank * (agent.lora_alpha_scale or 1.0))


def max_tokens(agent: AgentParameters) -> int:
    """The limit of a reply in tokens: as given, or else by the stated limit of words."""
    return agent.max_tokens_per_message or TOKENS_PER_WORD * agent.max_response_words


def names_speakers_in_content(agent: AgentParameters) -> bool:
    """True if each message begins with its speaker's name: as given, or else by provider."""
    if agent.name_speakers_in_content is not None:
        return agent.name_speakers_in_content
    # Of the providers, only OpenAI's API passes the `name` of a message on to the model.
    return agent.model_provider != "OpenAI"


def merges_same_role_messages(agent: AgentParameters) -> bool:
    """True if consecutive messages of one role are merged: as given, or else by provider."""
    if agent.merge_same_role_messages is not None:
        return agent.merge_same_role_messages
    # Chat templates of open models may raise an error unless user and assistant alternate.
    return agent.model_provider != "OpenAI"
