"""Agents at language-model servers, and the ranks of the adapters that they will have there."""

from nip_fn.params.agent import AgentParameters, is_frozen, is_scripted
from nip_fn.params.run import HyperParameters
from nip_fn.params.update_schedule import is_updated

# The values that vLLM accepts for --max-lora-rank.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

MAX_RANK = LORA_RANKS[-1]


def is_hosted(agent: AgentParameters) -> bool:
    """True if the agent's model is at a language-model server, not at a plain vLLM."""
    self_hosted = agent.model_provider == "SelfHosted" and agent.api_base_url is None
    return self_hosted and not agent.use_dummy_api


def provider_kind(agent: AgentParameters) -> str:
    """The kind of adapters that serve an agent: api, dummy, local, scripted or self-hosted."""
    if is_scripted(agent):
        return "scripted"
    if agent.use_dummy_api:
        return "dummy"
    if is_hosted(agent):
        return "self-hosted"
    return "local" if agent.model_provider == "local" else "api"


def server_url(agent: AgentParameters) -> str:
    """The URL of the agent's language-model server, without a slash at the end."""
    host = agent.language_model_server_scheme_host.rstrip("/")
    return f"{host}:{agent.language_model_server_port}"


def is_trained(params: HyperParameters, agent: AgentParameters) -> bool:
    """True if the run trains the agent."""
    return params.rl.num_iterations > 0 and not is_frozen(agent)


def highest_rank(params: HyperParameters, agent: AgentParameters) -> int:
    """The highest rank of the agent's adapters in the run; the ranks of a stack add up."""
    if not agent.stack_lora_adapters or agent.fine_tune_from_scratch:
        return agent.lora_rank
    trainings = sum(is_updated(agent.update_schedule, i) for i in range(params.rl.num_iterations))
    return agent.lora_rank * max(1, trainings)
