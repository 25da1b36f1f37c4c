"""How one agent speaks and learns: every field of the *nip* library's text agents, and our own.

Fields that only steer networks other than language models are known by name, and refused when they
are set to anything that this program cannot honour (`checks.py` gives the reasons).
"""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.params.base import Count, Natural, Positive, Record, Share

Provider = Literal["OpenAI", "SelfHosted", "OpenRouter", "local"]
SupervisorRule = Literal["none", "all", "first", "all_but_first"]
Port = Annotated[int, Meta(ge=1, le=65535)]


class LrFactors(Record, frozen=True):
    """Learning rates as multiples of `rl.lr`."""

    actor: Annotated[Positive, Meta(description="of the language model")] = 1.0
    critic: Annotated[float, Meta(description="of a value network; text agents have none")] = 1.0
    body: Annotated[float, Meta(description="of a shared body; text agents have none")] = 1.0


class ConstantUpdateSchedule(Record, frozen=True, tag_field="_type", tag="ConstantUpdateSchedule"):
    """Trained in every iteration."""


class ContiguousPeriodicUpdateSchedule(
    Record, frozen=True, tag_field="_type", tag="ContiguousPeriodicUpdateSchedule"
):
    """Trained in iterations `start` to `stop - 1` of every `period`."""

    period: Count
    start: Natural
    stop: Natural


class AlternatingPeriodicUpdateSchedule(
    Record, frozen=True, tag_field="_type", tag="AlternatingPeriodicUpdateSchedule"
):
    """Two agents in turn: the first for some iterations of every `period`, then the other."""

    period: Count
    first_agent_num_rounds: Natural
    first_agent: bool = True


UpdateSchedule = (
    ConstantUpdateSchedule | ContiguousPeriodicUpdateSchedule | AlternatingPeriodicUpdateSchedule
)


class AgentParameters(Record, frozen=True):
    """How one agent speaks and learns."""

    name: Annotated[str, Meta(description="the agent's name in the protocol")] = ""
    agent_lr_factor: Annotated[
        LrFactors | None, Meta(description="learning rates as multiples of rl.lr; None: all 1")
    ] = None
    body_lr_factor: Annotated[
        LrFactors | None, Meta(description="tensor agents only: leave it out")
    ] = None
    update_schedule: Annotated[
        UpdateSchedule, Meta(description="the iterations in which the agent is trained")
    ] = ConstantUpdateSchedule()
    use_manual_architecture: Annotated[
        bool, Meta(description="tensor agents only: leave it false")
    ] = False
    normalize_message_history: Annotated[
        bool, Meta(description="tensor agents only: leave it false")
    ] = False
    load_checkpoint_and_parameters: Annotated[
        bool,
        Meta(description="go on from an earlier run: its parameters of this agent, its adapter"),
    ] = False
    checkpoint_entity: Annotated[str, Meta(description="Weights & Biases only: leave it out")] = ""
    checkpoint_project: Annotated[str, Meta(description="Weights & Biases only: leave it out")] = ""
    checkpoint_run_id: Annotated[
        str | None, Meta(description="that run: its name, or its folder")
    ] = None
    checkpoint_version: Annotated[
        str, Meta(description='the iteration after which its adapter is taken, or "latest"')
    ] = "latest"
    use_orthogonal_initialisation: Annotated[
        bool, Meta(description="tensor agents only: leave it true")
    ] = True
    orthogonal_initialisation_gain: Annotated[
        float, Meta(description="tensor agents only: leave it at 1")
    ] = 1.0
    model_provider: Annotated[
        Provider, Meta(description='who samples and trains; "local": a model in this process')
    ] = "OpenAI"
    model_name: Annotated[
        str, Meta(description='the base model; with "local" a directory, or "builtin:tiny"')
    ] = "gpt-4o-mini-2024-07-18"
    language_model_server_scheme_host: Annotated[
        str, Meta(description="scheme and host of the language-model server (SelfHosted)")
    ] = "http://localhost"
    language_model_server_port: Annotated[
        Port, Meta(description="port of the language-model server (SelfHosted)")
    ] = 5000
    vllm_server_port: Annotated[Port, Meta(description="port of its vLLM (SelfHosted)")] = 8000
    api_base_url: Annotated[
        str | None,
        Meta(
            description="where a compatible API is served; several, with commas between, share the "
            "requests; None: as the provider says"
        ),
    ] = None
    api_key_variable: Annotated[
        str | None,
        Meta(
            description="the environment variable that holds the API key; None: OPENAI_API_KEY, "
            "OPENROUTER_API_KEY, or NIP_FN_SERVER_TOKEN where that is set"
        ),
    ] = None
    replies_per_request: Annotated[
        Literal["auto", "all", "one"],
        Meta(description='sibling replies in one request ("n"), or each its own; "auto": tried'),
    ] = "auto"
    use_batch_api: Annotated[
        bool,
        Meta(description="ask in batches: at half the price, where each step may take a day"),
    ] = False
    use_dummy_api: Annotated[
        bool, Meta(description="no model at all: random replies, trainings that train nothing")
    ] = False
    shared_model_group: Annotated[
        str | None, Meta(description="agents with the same group share a model; None: their own")
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0.0)] | None,
        Meta(description="sampling temperature; None: the model's default. Not with top_p"),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0.0, le=1.0)] | None,
        Meta(description="share of the likeliest tokens to sample from; None: the model's default"),
    ] = None
    repetition_penalty: Annotated[
        Positive | None,
        Meta(description="above 1 discourages repeated tokens; None: the model's default"),
    ] = None
    fine_tune_from_scratch: Annotated[
        bool, Meta(description="start each training at the base model, not at the last adapter")
    ] = True
    freeze_agent: Annotated[bool, Meta(description="never train this agent")] = False
    quantization: Annotated[
        Literal["bitsandbytes", "none"], Meta(description="of the weights that vLLM serves")
    ] = "none"
    num_epochs: Annotated[
        Count | None, Meta(description="passes over the training data; None: rl.num_epochs")
    ] = None
    dpo_beta: Annotated[
        Annotated[float, Meta(gt=0.0, le=2.0)] | None,
        Meta(description="DPO's beta: how closely to stay with the reference; None: 0.1"),
    ] = None
    dpo_reference: Annotated[
        Literal["previous", "base"],
        Meta(description="DPO's reference policy: the adapter before this training, or the base"),
    ] = "previous"
    use_lora: Annotated[bool, Meta(description="train a LoRA adapter, not all weights")] = True
    lora_rank: Annotated[Count, Meta(description="rank of the LoRA adapter")] = 64
    lora_alpha: Annotated[
        Count | None, Meta(description="LoRA's scaling factor; None: lora_rank x lora_alpha_scale")
    ] = None
    lora_alpha_scale: Annotated[
        Positive | None, Meta(description="LoRA's alpha as a multiple of its rank")
    ] = 1.0
    lora_dropout: Annotated[Share, Meta(description="dropout rate of the LoRA layers")] = 0.05
    stack_lora_adapters: Annotated[
        bool, Meta(description="a new adapter on top of the last at each training")
    ] = False
    per_device_train_batch_size: Annotated[
        Count, Meta(description="training examples in a gradient step")
    ] = 2
    system_prompt_template_path: Annotated[
        str | None, Meta(description="a file with a Jinja template to use as the system prompt")
    ] = None
    system_prompt_template: Annotated[
        str | None, Meta(description="that template's text; filled in when the run starts")
    ] = None
    use_supervisor_message: Annotated[
        SupervisorRule,
        Meta(description="rounds in which the chat ends with instructions from a supervisor"),
    ] = "none"
    supervisor_name: Annotated[str, Meta(description="the name of that supervisor")] = "Supervisor"
    max_response_words: Annotated[
        Count, Meta(description="the length of a message that the prompt asks for, in words")
    ] = 150
    max_tokens_per_message: Annotated[
        Count | None, Meta(description="hard limit of a reply; None: 1.5 x max_response_words")
    ] = None
    num_invalid_generation_retries: Annotated[
        Count, Meta(description="attempts at a reply before it is recorded as invalid")
    ] = 20
    name_speakers_in_content: Annotated[
        bool | None,
        Meta(description="write who speaks into a message; None: where the provider drops names"),
    ] = None
    merge_same_role_messages: Annotated[
        bool | None,
        Meta(description="join neighbouring messages of one role; None: except with OpenAI"),
    ] = None


def agent_group(agent: AgentParameters) -> str:
    """The name of the shared model group that the agent belongs to."""
    return agent.shared_model_group or agent.name


def lora_alpha(agent: AgentParameters) -> int:
    """LoRA's alpha: given outright, or `lora_rank * lora_alpha_scale`."""
    if agent.lora_alpha is not None:
        return agent.lora_alpha
    return round(agent.lora_rank * (agent.lora_alpha_scale or 1.0))


def lr_factor(agent: AgentParameters) -> float:
    """The learning rate of the agent's model as a multiple of `rl.lr`."""
    return 1.0 if agent.agent_lr_factor is None else agent.agent_lr_factor.actor


def max_tokens(agent: AgentParameters) -> int:
    """The hard limit of a reply in tokens: given, or one and a half for each word asked for."""
    return agent.max_tokens_per_message or int(1.5 * agent.max_response_words)


def names_speakers_in_content(agent: AgentParameters) -> bool:
    """Whether messages say who speaks: as asked for, or where the provider drops `name`."""
    if agent.name_speakers_in_content is not None:
        return agent.name_speakers_in_content
    return agent.model_provider != "OpenAI"


def merges_same_role_messages(agent: AgentParameters) -> bool:
    """Whether neighbours of one role are joined: as asked for, or where a template may care."""
    if agent.merge_same_role_messages is not None:
        return agent.merge_same_role_messages
    return agent.model_provider != "OpenAI"


def is_updated(schedule: UpdateSchedule, iteration: int) -> bool:
    """Whether an agent with this schedule is trained in that iteration.

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
