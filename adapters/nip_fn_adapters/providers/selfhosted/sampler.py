"""Sampling from the vLLM of a language-model server, with the adapters that it serves."""

from collections.abc import Mapping
from typing import NamedTuple

from returns.result import Result, Success

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.run.ports import Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.sampler import ApiModel, ApiSampler, ClientSettings, api_sampler
from nip_fn_adapters.providers.selfhosted.host import Host
from nip_fn_adapters.results import bind_async

Answer = Result[tuple[Completion | Unanswered, ...], Problem]


class Assignment(NamedTuple):
    """An agent, and the server that its model is at."""

    agent: AgentParameters
    host: Host


class HostedSampler:
    """Fulfils the `Sampler` port."""

    def __init__(self, assignments: Mapping[str, Assignment], settings: ClientSettings) -> None:
        """Ask nothing yet; `assignments` are by the agent's name."""
        self._assignments, self._settings = assignments, settings
        self._samplers: dict[Host, ApiSampler] = {}

    async def __call__(self, request: Request) -> Answer:
        """One completion for each key, in their order, as far as they came.

        Fails if the server cannot be reached or does not serve the model, or no completion came.
        """
        agent, host = self._assignments[request.agent]

        async def serve(replicas: tuple[Endpoint, ...]) -> Result[tuple[Endpoint, ...], Problem]:
            if request.adapter is None:
                return Success(replicas)
            served = await host.served(agent_group(agent), request.adapter)
            return served.map(lambda nothing: replicas)

        async def sample(replicas: tuple[Endpoint, ...]) -> Answer:
            if host not in self._samplers:
                self._samplers[host] = api_sampler(self._served(host, replicas), self._settings)
            return await self._samplers[host](request)

        return await bind_async(await bind_async(await host.online(), serve), sample)

    def drain(self) -> None:
        """Admit no more: requests that wait are cancelled, those under way may end."""
        for _, host in self._assignments.values():
            host.drain()
        for sampler in self._samplers.values():
            sampler.drain()

    def _served(self, host: Host, replicas: tuple[Endpoint, ...]) -> dict[str, ApiModel]:
        """The endpoints of the agents at a server: all replicas of its vLLM share the requests."""
        variable = host.client.key_variable
        return {
            name: ApiModel(replicas, variable, assigned.agent.replies_per_request)
            for name, assigned in self._assignments.items()
            if assigned.host is host
        }
