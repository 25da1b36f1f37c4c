"""The vLLM settings that a run needs from a language-model server."""

from nip_fn.config.hosting import MAX_RANK, highest_rank, is_hosted, is_trained, server_url
from nip_fn.params.agent import agent_group
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.serving.wire import Needs


def needs_of(params: HyperParameters, url: str, loaded_rank: int = 1) -> Needs:
    """The vLLM settings that a run needs from the language-model server at `url`.

    vLLM is started once, for the ranks that stacks of adapters will have at the end of the run.
    `loaded_rank` is the highest rank of the adapters that the run begins with.
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
