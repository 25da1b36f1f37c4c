"""Which agents' models are at a language-model server, and what a run asks of each server."""

from nip_fn.agent_params import AgentParameters, agent_group, is_updated
from nip_fn.params import HyperParameters
from nip_fn.serving import LORA_RANKS, Needs

MAX_RANK = LORA_RANKS[-1]


def is_hosted(agent: AgentParameters) -> bool:
    """Whether the agent's model is at a language-model server, not at a plain vLLM."""
    self_hosted = agent.model_provider == "SelfHosted" and agent.api_base_url is None
    return self_hosted and not agent.use_dummy_api


def server_url(agent: AgentParameters) -> str:
    """Where the agent's language-model server is, without a slash at the end."""
    host = agent.language_model_server_scheme_host.rstrip("/")
    return f"{host}:{agent.language_model_server_port}"


def is_trained(params: HyperParameters, agent: AgentParameters) -> bool:
    """Whether the run is to train the agent."""
    return params.rl.num_iterations > 0 and not agent.freeze_agent


def highest_rank(params: HyperParameters, agent: AgentParameters) -> int:
    """The highest rank that adapters of the agent come to in the run: those of a stack add up."""
    if not agent.stack_lora_adapters or agent.fine_tune_from_scratch:
        return agent.lora_rank
    trainings = sum(is_updated(agent.update_schedule, i) for i in range(params.rl.num_iterations))
    return agent.lora_rank * max(1, trainings)


def needs_of(params: HyperParameters, url: str, loaded_rank: int = 1) -> Needs:
    """What the run asks of the language-model server there; `loaded_rank`: the highest of the
    adapters that it begins with.

    vLLM is started once, for the ranks that stacks will have at the end of the run.
    """
    agents = [agent for agent in params.agents if is_hosted(agent) and server_url(agent) == url]
    tuned = [
        agent
        for agent in agents
        if is_trained(params, agent) or agent.load_checkpoint_and_parameters
    ]
    ranks = [highest_rank(params, agent) for agent in tuned if is_trained(params, agent)]
    return Needs(
        model_name=agents[0].model_name,
        max_lora_rank=min(max(loaded_rank, *ranks, 1), MAX_RANK),
        max_loras=max(1, len({agent_group(agent) for agent in tuned})),
        quantization=agents[0].quantization,
    )
