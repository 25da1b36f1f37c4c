"""Parameters of one agent: every field of the *nip* library's text agents, and a few of our own.

Nine fields can only hold their default, because they apply to networks other than language models
or to Weights & Biases.  They stay in the record because recordings and saved configurations hold
them; `nip_fn.config.checks` refuses any other value, with the reason.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from nip_fn.errors import Problem
from nip_fn.params.base import Count, Natural, NotNegative, Positive, Record, Share, Temperature
from nip_fn.params.names import name_problem

Provider = Literal["OpenAI", "SelfHosted", "OpenRouter", "local", "scripted"]
# As they are written in files and on the command line, and as messages spell them.
OPTIONS: dict[Provider, str] = {
    "local": "local",
    "OpenAI": "openai",
    "OpenRouter": "openrouter",
    "SelfHosted": "self-hosted",
    "scripted": "scripted",
}
Checkpointing = Literal["auto", "on", "off"]
Precision = Literal["float32", "bf16", "8-bit", "4-bit"]
SupervisorRule = Literal["none", "all", "first", "all_but_first"]
# A number for all turns, or one for each.
ByTurn = Count | Annotated[tuple[Count, ...], Meta(min_length=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]


# Tokens of a reply for each word that the prompt allows.  English takes about 1.3 tokens a word and
# quoted code twice as many, so that 2 hold the message.  A verifier's prompt asks it to reason and
# sets no limit, and what is cut before the verdict is lost: three times as much again for that.
TOKENS_PER_WORD = 8


class LrFactors(Record, frozen=True):
    """Learning rates as multiples of `rl.lr`."""

    actor: Annotated[Positive, Meta(description="Factor for the language model.")] = 1.0
    critic: Annotated[
        Positive, Meta(description="Must be 1.0: language models have no value network.")
    ] = 1.0
    body: Annotated[
        Positive, Meta(description="Must be 1.0: language models have no shared body.")
    ] = 1.0


class ConstantUpdateSchedule(Record, frozen=True, tag_field="_type", tag="ConstantUpdateSchedule"):
    """An agent that is trained in every iteration."""


class ContiguousPeriodicUpdateSchedule(
    Record, frozen=True, tag_field="_type", tag="ContiguousPeriodicUpdateSchedule"
):
    """An agent that is trained in iterations `start` to `stop - 1` of every `period`."""

    period: Count
    start: Natural
    stop: Natural


class AlternatingPeriodicUpdateSchedule(
    Record, frozen=True, tag_field="_type", tag="AlternatingPeriodicUpdateSchedule"
):
    """One of two agents that alternate: the first is trained at the start of every `period`."""

    period: Count
    first_agent_num_rounds: Natural
    first_agent: bool = True


UpdateSchedule = (
    ConstantUpdateSchedule | ContiguousPeriodicUpdateSchedule | AlternatingPeriodicUpdateSchedule
)


class AgentParameters(Record, frozen=True):
    """The model, the sampling and the training of one agent."""

    name: Annotated[str, Meta(description="Name of the agent in the protocol.")] = ""
    agent_lr_factor: Annotated[
        LrFactors | None, Meta(description="Learning rates as multiples of rl.lr. None: all 1.")
    ] = None
    body_lr_factor: Annotated[
        LrFactors | None, Meta(description="Must be none: applies to tensor agents only.")
    ] = None
    update_schedule: Annotated[
        UpdateSchedule, Meta(description="Iterations in which the agent is trained.")
    ] = ConstantUpdateSchedule()
    use_manual_architecture: Annotated[
        bool, Meta(description="Must be false: applies to tensor agents only.")
    ] = False
    normalize_message_history: Annotated[
        bool, Meta(description="Must be false: applies to tensor agents only.")
    ] = False
    load_checkpoint_and_parameters: Annotated[
        bool,
        Meta(description="Load this agent's parameters and adapter from an earlier run."),
    ] = False
    checkpoint_entity: Annotated[
        str, Meta(description="Must be empty: runs are not stored at Weights & Biases.")
    ] = ""
    checkpoint_project: Annotated[
        str, Meta(description="Must be empty: runs are not stored at Weights & Biases.")
    ] = ""
    checkpoint_run_id: Annotated[
        str | None, Meta(description="Name or folder of the run to load.")
    ] = None
    checkpoint_version: Annotated[
        str,
        Meta(description='Adapter that is loaded: its iteration or name, "latest", or "base".'),
    ] = "latest"
    use_orthogonal_initialisation: Annotated[
        bool, Meta(description="Must be true: applies to tensor agents only.")
    ] = True
    orthogonal_initialisation_gain: Annotated[
        Positive, Meta(description="Must be 1.0: applies to tensor agents only.")
    ] = 1.0
    model_provider: Annotated[
        Provider,
        Meta(
            description='Provider of sampling and training. "local": a model in this process. '
            '"scripted": no model; the agent follows a strategy and is never trained. "dummy": no '
            "model; random replies, as with use_dummy_api.",
        ),
    ] = "OpenAI"
    model_name: Annotated[
        str,
        Meta(
            description='The base model; with "local" a folder or "builtin:tea", with "scripted" '
            "the name of a strategy, such as honest, liar or silent, or one of your own. An API "
            "has to be told one: the default is that of files that the nip library saved."
        ),
    ] = "gpt-4o-mini-2024-07-18"
    language_model_server_scheme_host: Annotated[
        str, Meta(description="Scheme and host of the language-model server (self-hosted).")
    ] = "http://localhost"
    language_model_server_port: Annotated[
        Port, Meta(description="Port of the language-model server (self-hosted).")
    ] = 5000
    vllm_server_port: Annotated[
        Port,
        Meta(
            description="Port at which vLLM is reached (self-hosted), and its replicas at those "
            "after it. 8000: where the language-model server says."
        ),
    ] = 8000
    api_base_url: Annotated[
        str | None,
        Meta(
            description="Base URL of an OpenAI-compatible API; several, separated by commas, share "
            "the requests. None: the provider's own."
        ),
    ] = None
    api_key_variable: Annotated[
        str | None,
        Meta(
            description="Environment variable that holds the API key. None: OPENAI_API_KEY, "
            "OPENROUTER_API_KEY, or NIP_FN_SERVER_TOKEN if set."
        ),
    ] = None
    replies_per_request: Annotated[
        Literal["auto", "all", "one"],
        Meta(
            description='Sample sibling replies in one request ("n"), or each in its own. "auto": '
            "one request if the server supports it."
        ),
    ] = "auto"
    use_batch_api: Annotated[
        bool,
        Meta(description="Use the batch API: half the price, but each step may take a day."),
    ] = False
    use_dummy_api: Annotated[
        bool, Meta(description="Use no model: random replies, and training without effect.")
    ] = False
    shared_model_group: Annotated[
        str | None,
        Meta(description="Agents with the same group share a model. None: a model of its own."),
    ] = None
    temperature: Annotated[
        Temperature | None,
        Meta(description="Sampling temperature; excludes top_p. None: the model's default."),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0.0, le=1.0)] | None,
        Meta(description="Nucleus sampling threshold. None: the model's default."),
    ] = None
    repetition_penalty: Annotated[
        Positive | None,
        Meta(description="Above 1, repeated tokens are discouraged. None: the model's default."),
    ] = None
    num_responses: Annotated[
        ByTurn | None,
        Meta(
            description="With malt: replies sampled from this agent at each of its turns, or a "
            "list with one number for each turn, the last of which repeats. The more replies "
            "follow a reply of another agent, the surer the sign of that agent's pairs. None: "
            "malt.num_responses_per_timestep, or 1 if frozen."
        ),
    ] = None
    num_idle_responses: Annotated[
        ByTurn | None,
        Meta(
            description="The same where its replies are not trained on: it is frozen, not due by "
            "its update_schedule, or plays an earlier model. None: as num_responses."
        ),
    ] = None
    pair_selection_method: Annotated[
        str | None,
        Meta(
            description="With malt: a pair rule for this agent. None: malt.pair_selection_method."
        ),
    ] = None
    min_pair_margin: Annotated[
        NotNegative | None,
        Meta(
            description="With malt: smallest difference of expected reward between this agent's "
            "chosen and rejected reply. None: malt.min_pair_margin."
        ),
    ] = None
    opponent_pool: Annotated[
        Natural,
        Meta(
            description="Number of earlier models of every other agent (the base model included) "
            "that this agent also meets while it samples, drawn at random for each tree. Such a "
            "tree trains only this agent. 0: it meets the latest models alone."
        ),
    ] = 0
    opponent_scripts: Annotated[
        tuple[str, ...],
        Meta(
            description="Strategies, named as a scripted agent's, that every other agent also "
            "follows while this one samples, drawn as earlier models are: 'repeat' or, "
            "in the bug hunt, 'framer' attack a verifier."
        ),
    ] = ()
    opponent_pool_share: Annotated[
        Share,
        Meta(
            description="With opponent_pool or opponent_scripts: share of the trees in which it "
            "meets earlier models or scripts."
        ),
    ] = 0.5
    fine_tune_from_scratch: Annotated[
        bool,
        Meta(description="Start each training from the base model, not from the last adapter."),
    ] = True
    freeze_agent: Annotated[bool, Meta(description="Never train this agent.")] = False
    quantization: Annotated[
        Literal["bitsandbytes", "none"],
        Meta(description="Quantization of the weights that vLLM serves."),
    ] = "none"
    num_epochs: Annotated[
        Count | None, Meta(description="Epochs over the training data. None: rl.num_epochs.")
    ] = None
    dpo_beta: Annotated[
        Annotated[float, Meta(gt=0.0, le=2.0)] | None,
        Meta(description="DPO's beta: strength of the pull to the reference policy. None: 0.1."),
    ] = None
    dpo_reference: Annotated[
        Literal["previous", "base"],
        Meta(description="DPO's reference policy: the adapter before the training, or the base."),
    ] = "previous"
    dpo_sft_weight: Annotated[
        Annotated[float, Meta(ge=0.0, le=100.0)],
        Meta(
            description="Weight of the supervised loss of the chosen replies (nats per token), "
            "added to the loss of DPO. 0: DPO alone."
        ),
    ] = 0.0
    use_lora: Annotated[bool, Meta(description="Train a LoRA adapter instead of all weights.")] = (
        True
    )
    lora_rank: Annotated[Count, Meta(description="Rank of the LoRA adapter.")] = 64
    lora_alpha: Annotated[
        Count | None, Meta(description="LoRA's alpha. None: lora_rank x lora_alpha_scale.")
    ] = None
    lora_alpha_scale: Annotated[
        Positive | None, Meta(description="LoRA's alpha as a multiple of its rank.")
    ] = 1.0
    lora_dropout: Annotated[Share, Meta(description="Dropout rate of the LoRA layers.")] = 0.05
    stack_lora_adapters: Annotated[
        bool, Meta(description="Each training adds a new adapter on top of the previous ones.")
    ] = False
    per_device_train_batch_size: Annotated[
        Count, Meta(description="Training examples per device in a gradient step.")
    ] = 2
    gradient_checkpointing: Annotated[
        Checkpointing,
        Meta(
            description="Keep only each layer's input in a training, and compute the rest again "
            'for the backward pass: less memory for a third more time. "auto": models with 10^9 '
            "weights or more."
        ),
    ] = "auto"
    base_precision: Annotated[
        Literal["auto", Precision],
        Meta(
            description="Numbers that hold the base's weights while a LoRA is trained on it; 8 "
            'and 4 bits need bitsandbytes and a GPU. "auto": bf16 for models with 10^9 weights or '
            "more on a GPU that is fast at it, float32 otherwise and for a LoRA that is stacked."
        ),
    ] = "auto"
    system_prompt_template_path: Annotated[
        str | None, Meta(description="File with a Jinja template to use as the system prompt.")
    ] = None
    system_prompt_template: Annotated[
        str | None,
        Meta(description="Text of that template; filled in from the file when the run starts."),
    ] = None
    use_supervisor_message: Annotated[
        SupervisorRule,
        Meta(
            description="Rounds in which the chat ends with instructions from a supervisor, as it "
            'always does at the verifier\'s last turn; "first" is the first round of the game.'
        ),
    ] = "none"
    supervisor_name: Annotated[str, Meta(description="Name of that supervisor.")] = "Supervisor"
    max_response_words: Annotated[
        Count, Meta(description="Length limit, in words, that the prompt states for a reply.")
    ] = 150
    max_tokens_per_message: Annotated[
        Count | None,
        Meta(
            description="Token limit of a reply, hidden reasoning included. None: as if left out, "
            f"{TOKENS_PER_WORD} x max_response_words, or the limit of an embedded model."
        ),
    ] = None
    # The JSON of the table that is written: a record must be hashable, and tables are not.
    extra_request_fields: Annotated[
        str | None,
        Meta(
            description="Table of further fields of each request to an API, such as "
            '{reasoning_effort = "low"}; they are sent as they are. None: no more fields.'
        ),
    ] = None
    num_invalid_generation_retries: Annotated[
        Count, Meta(description="Attempts at a valid reply before it is recorded as invalid.")
    ] = 20
    name_speakers_in_content: Annotated[
        bool | None,
        Meta(
            description="Begin each message with its speaker's name. None: only for providers that "
            "drop the name field."
        ),
    ] = None
    merge_same_role_messages: Annotated[
        bool | None,
        Meta(description="Merge consecutive messages of one role. None: except with OpenAI."),
    ] = None
    checkpoint_agent: Annotated[
        str | None,
        Meta(description="Name of the agent to load in that run. None: this agent's own name."),
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


def lr_factor(agent: AgentParameters) -> float:
    """The learning rate of the agent's model as a multiple of `rl.lr`."""
    return 1.0 if agent.agent_lr_factor is None else agent.agent_lr_factor.actor


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


def is_updated(schedule: UpdateSchedule, iteration: int) -> bool:
    """True if an agent with this schedule is trained in that iteration.

    >>> schedule = AlternatingPeriodicUpdateSchedule(period=3, first_agent_num_rounds=2)
    >>> [is_updated(schedule, iteration) for iteration in range(6)]
    [True, True, False, True, True, False]
    """
    match schedule:
        case ContiguousPeriodicUpdateSchedule(period=period, start=start, stop=stop):
            return start <= iteration % period < stop
        case AlternatingPeriodicUpdateSchedule(period=period, first_agent_num_rounds=rounds):
            return (iteration % period < rounds) == schedule.first_agent
    return True
