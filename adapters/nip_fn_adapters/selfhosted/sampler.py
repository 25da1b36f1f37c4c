"""Samples replies from the vLLM of a language-model server, with the adapters that it serves."""

from collections.abc import Mapping
from typing import NamedTuple

from returns.result import Failure, Result

from nip_fn.game.reply import Completion
from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.run.ports import Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.api.endpoints import Endpoint
from nip_fn_adapters.api.sampler import ApiSampler, ClientSettings, Served, api_sampler
from nip_fn_adapters.selfhosted.host import Host


class Assignment(NamedTuple):
    """An agent, and the server that its model is at."""

    agent: AgentParameters
    host: Host


class HostedSampler:
    """Fulfils the `Sampler` port."""

    def __init__(self, seats: Mapping[str, Assignment], manners: ClientSettings) -> None:
        """Ask nothing yet, of these agents (by name); servers are readied at the first request."""
        self._seats, self._manners = seats, manners
        self._samplers: dict[Host, ApiSampler] = {}

    async def __call__(self, request: Request) -> Result[tuple[Completion | Unanswered, ...], str]:
        """One completion for each key, in their order, as far as they came.

        Failure: the server cannot be reached, does not serve the model, or none came.
        """
        agent, host = self._seats[request.agent]
        online = await host.online()
        if isinstance(online, Failure):
            return Failure(online.failure())
        if request.adapter is not None:
            served = await host.served(agent_group(agent), request.adapter)
            if isinstance(served, Failure):
                return Failure(served.failure())
        if host not in self._samplers:
            self._samplers[host] = api_sampler(self._served(host, online.unwrap()), self._manners)
        return await self._samplers[host](request)

    def drain(self) -> None:
        """Send nothing more: calls that wait for their turn are cancelled, others may end."""
        for _, host in self._seats.values():
            host.drain()
        for sampler in self._samplers.values():
            sampler.drain()

    def _served(self, host: Host, addresses: tuple[str, ...]) -> dict[str, Served]:
        """How the agents at a server are asked: all replicas of its vLLM share their requests."""
        key, variable = host.client.server.key, host.client.key_variable
        endpoints = tuple(Endpoint(address, key) for address in addresses)
        return {
            name: Served(endpoints, variable, seat.agent.replies_per_request)
            for name, seat in self._seats.items()
            if seat.host is host
        }
