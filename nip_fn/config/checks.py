"""What is wrong with parameters that have the right types: one line for each problem.

A line begins with the address of the parameter, says what is wrong, and what to do.
"""

import re
from collections.abc import Iterator

from jinja2 import TemplateError

from nip_fn.config.hosting import MAX_RANK, highest_rank, is_hosted, is_trained, server_url
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.protocol import verifier_rounds
from nip_fn.keys import key
from nip_fn.params.agent import AgentParameters, ContiguousPeriodicUpdateSchedule, agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import prompt_variables
from nip_fn.prompts.render import render_text
from nip_fn.protocols.registry import protocol_of

NO_NETWORK = "it steers networks other than language models"
NO_WANDB = (
    "it names a place at Weights & Biases; here a run is a folder, and checkpoint_run_id names it"
)

SCHEME_HOST = r"https?://([^\s/:@?#\[\]]+|\[[0-9A-Fa-f:]+\])/?"

# What this program cannot honour: field, the one value that it takes, why.
REFUSED: tuple[tuple[str, object, str], ...] = (
    ("body_lr_factor", None, NO_NETWORK),
    ("use_manual_architecture", False, NO_NETWORK),
    ("normalize_message_history", False, NO_NETWORK),
    ("use_orthogonal_initialisation", True, NO_NETWORK),
    ("orthogonal_initialisation_gain", 1.0, NO_NETWORK),
    ("checkpoint_entity", "", NO_WANDB),
    ("checkpoint_project", "", NO_WANDB),
)

# Fields that agents of one shared model group must agree on, because they describe the one model.
SHARED_FIELDS = (
    "agent_lr_factor",
    "update_schedule",
    "model_provider",
    "model_name",
    "language_model_server_scheme_host",
    "language_model_server_port",
    "vllm_server_port",
    "api_base_url",
    "api_key_variable",
    "replies_per_request",
    "use_batch_api",
    "use_dummy_api",
    "freeze_agent",
    "fine_tune_from_scratch",
    "quantization",
    "num_epochs",
    "dpo_beta",
    "dpo_reference",
    "use_lora",
    "lora_rank",
    "lora_alpha",
    "lora_alpha_scale",
    "lora_dropout",
    "stack_lora_adapters",
    "per_device_train_batch_size",
)


def problems(params: HyperParameters) -> Iterator[str]:
    """Everything that is wrong with parameters whose agents are those of the protocol."""
    for agent in params.agents:
        yield from agent_problems(agent)
    if params.protocol_common.zero_knowledge:
        yield (
            "protocol_common.zero_knowledge: its simulator must see the numbers behind a message, "
            "which agents that write text do not give; leave it false"
        )
    if params.rl.rollouts_per_iteration is not None and params.rl.frames_per_batch is not None:
        yield "rl: rollouts_per_iteration and frames_per_batch are both set; keep one"
    frames, rounds = params.rl.frames_per_batch, protocol_of(params).max_message_rounds
    if frames is not None and frames % rounds:
        yield (
            f"rl.frames_per_batch: {frames} is no multiple of the {rounds} rounds of a dialogue; "
            f"write {frames - frames % rounds or rounds}"
        )
    shares = params.dataset_options.validation_share + params.dataset_options.test_share
    if shares >= 1:
        yield f"dataset_options: validation_share and test_share leave {1 - shares:g} to train with"
    yield from _turn_problems(params)
    yield from group_problems(params.agents)
    yield from _hosting_problems(params)
    yield from _template_problems(params)


def agent_problems(agent: AgentParameters) -> Iterator[str]:
    """What is wrong with one agent by itself."""
    where = f"agents.{agent.name}"
    for field, only, why in REFUSED:
        if getattr(agent, field) != only:
            yield f"{where}.{field}: {why}; leave it at {only!r}"
    if agent.agent_lr_factor is not None:
        for part in ("critic", "body"):
            if getattr(agent.agent_lr_factor, part) != 1.0:
                yield f"{where}.agent_lr_factor.{part}: {NO_NETWORK}; leave it at 1.0"
    if agent.load_checkpoint_and_parameters and agent.checkpoint_run_id is None:
        yield f"{where}.checkpoint_run_id: name the run to load, or its folder"
    if agent.checkpoint_run_id is not None and not agent.load_checkpoint_and_parameters:
        yield (
            f"{where}.checkpoint_run_id: nothing is loaded from it; "
            "set load_checkpoint_and_parameters, too"
        )
    schedule = agent.update_schedule
    if isinstance(schedule, ContiguousPeriodicUpdateSchedule) and not (
        schedule.start < schedule.stop <= schedule.period
    ):
        yield f"{where}.update_schedule: it needs start < stop <= period"
    if agent.temperature is not None and agent.top_p is not None:
        yield f"{where}: temperature and top_p are both set; keep one"
    if agent.system_prompt_template_path is not None and agent.system_prompt_template is None:
        yield (
            f"{where}.system_prompt_template_path: its text is not there; read the file into "
            "system_prompt_template (as nip-fn train does)"
        )
    if agent.stack_lora_adapters and not agent.use_lora:
        yield f"{where}.stack_lora_adapters: without LoRA there is nothing to stack; set use_lora"
    at_openai = agent.model_provider == "OpenAI" and not agent.use_dummy_api
    goes_on = not agent.fine_tune_from_scratch and not agent.freeze_agent
    if at_openai and goes_on and agent.dpo_reference == "base":
        yield (
            f"{where}.dpo_reference: OpenAI's API takes no reference, it is always the model that "
            "a training starts from; leave it at 'previous', or set fine_tune_from_scratch"
        )
    yield from _lora_problems(agent)


def _lora_problems(agent: AgentParameters) -> Iterator[str]:
    where = f"agents.{agent.name}"
    if agent.lora_alpha is not None and agent.lora_alpha_scale is not None:
        yield f"{where}: lora_alpha and lora_alpha_scale are both set; keep one"
    if agent.lora_alpha is None and agent.lora_alpha_scale is None:
        yield f"{where}: set one of lora_alpha and lora_alpha_scale"
    alpha = agent.lora_rank * (agent.lora_alpha_scale or 1.0)
    if alpha < 1 or alpha != round(alpha):
        yield (
            f"{where}.lora_alpha_scale: {agent.lora_alpha_scale} times the rank, "
            f"{agent.lora_rank}, is not a whole number of at least 1"
        )


def group_problems(agents: tuple[AgentParameters, ...]) -> Iterator[str]:
    """Where agents of one shared model group disagree about the model that they share."""
    leaders: dict[str, AgentParameters] = {}
    for agent in agents:
        leader = leaders.setdefault(agent_group(agent), agent)
        for field in SHARED_FIELDS:
            ours, theirs = getattr(agent, field), getattr(leader, field)
            if ours != theirs:
                yield (
                    f"agents.{leader.name} and agents.{agent.name} share the model group "
                    f"{agent_group(agent)!r} but not {field}: {theirs!r} and {ours!r}"
                )


def _hosting_problems(params: HyperParameters) -> Iterator[str]:
    """Where a language-model server is asked for what it cannot do, or another one is."""
    first: dict[str, AgentParameters] = {}
    for agent in params.agents:
        where = f"agents.{agent.name}"
        if is_hosted(agent):
            yield from _hosted_problems(params, agent)
            other = first.setdefault(server_url(agent), agent)
            for field in ("model_name", "quantization"):
                ours, theirs = getattr(agent, field), getattr(other, field)
                if ours != theirs:
                    yield (
                        f"agents.{other.name} and {where} are at {server_url(agent)}, which serves "
                        f"one model, but differ in {field}: {theirs!r} and {ours!r}; give each a "
                        "server (language_model_server_port)"
                    )
        elif agent.quantization != "none" and not agent.use_dummy_api:
            yield (
                f"{where}.quantization: only a language-model server (SelfHosted, without "
                "api_base_url) can be asked for it; leave it at 'none'"
            )
        elif _is_plain_vllm(agent) and is_trained(params, agent):
            yield (
                f"{where}.api_base_url: a vLLM by itself trains nothing; leave it out, for a "
                f"language-model server, or freeze the agent ({where}.freeze_agent = true)"
            )


def _is_plain_vllm(agent: AgentParameters) -> bool:
    """Whether the agent's model is at a vLLM that no language-model server stands before."""
    return agent.model_provider == "SelfHosted" and not (agent.use_dummy_api or is_hosted(agent))


def _hosted_problems(params: HyperParameters, agent: AgentParameters) -> Iterator[str]:
    where = f"agents.{agent.name}"
    if not re.fullmatch(SCHEME_HOST, agent.language_model_server_scheme_host):
        yield (
            f"{where}.language_model_server_scheme_host: "
            f"{agent.language_model_server_scheme_host!r} is no scheme and host; expected one like "
            "http://localhost (the port is language_model_server_port)"
        )
    if agent.use_batch_api:
        yield f"{where}.use_batch_api: a language-model server has no batches; leave it false"
    if not is_trained(params, agent):
        return
    if not agent.use_lora:
        yield f"{where}.use_lora: vLLM is given adapters, not whole models; leave it true"
    rank = highest_rank(params, agent)
    if rank > MAX_RANK:
        yield (
            f"{where}.lora_rank: the adapters come to rank {rank}, and vLLM holds {MAX_RANK} at "
            "most; lower it, or set stack_lora_adapters to false"
        )


def _turn_problems(params: HyperParameters) -> Iterator[str]:
    """Where the verifier gets no turn, or none in which its decision would count."""
    protocol = protocol_of(params)
    rounds = verifier_rounds(protocol, key(params.seed))
    if not rounds:
        yield f"{protocol.name}_protocol.max_message_rounds: the verifier never gets a turn"
    elif rounds[-1] < protocol.min_message_rounds - 1:
        yield (
            f"{protocol.name}_protocol.min_message_rounds: {protocol.min_message_rounds} is too "
            f"many: the verifier speaks for the last time in round {rounds[-1] + 1} of "
            f"{protocol.max_message_rounds}, so its decision would never count"
        )


def _template_problems(params: HyperParameters) -> Iterator[str]:
    """Where an agent's own template cannot be rendered."""
    sample = make_datapoint("sample", "a question", "a solution", 1)
    for index, agent in enumerate(params.agents):
        if agent.system_prompt_template is None:
            continue
        variables = {
            **prompt_variables(params, sample, index),
            "question": sample.question,
            "solution": sample.solution,
            "max_questions": 1,
        }
        try:
            render_text(agent.system_prompt_template, **variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            known = ", ".join(sorted(variables))
            cause = " ".join(str(error).split())
            yield (f"agents.{agent.name}.system_prompt_template: {cause}; it may name {known}")
