"""Publishing an adapter at a language-model server, which checks it and scores the probes."""

from collections.abc import Mapping

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.run.events import Publish
from nip_fn.run.ports import Publisher, Served
from nip_fn_adapters.providers.selfhosted.host import Host
from nip_fn_adapters.results import bind_async
from nip_fn_adapters.serving.wire import Refusal, ServedAdapter

POISONED = 422  # the status of a refusal for which the adapter itself is at fault


def hosted_publisher(groups: Mapping[str, Host]) -> Publisher:
    """A publisher for groups (by name) whose models are at language-model servers."""

    async def publish(effect: Publish) -> Result[Served, Problem]:
        host = groups[effect.group]

        async def send(_: object) -> Result[ServedAdapter, Problem]:
            return await host.publish(effect.group, effect.adapter, effect.probes, effect.expected)

        answer = await bind_async(await host.online(), send)
        return answer.map(lambda served: Served(served.scores, served.dtype)).lash(_poisoned)

    return publish


def _poisoned(problem: Problem) -> Result[Served, Problem]:
    """An answer rather than a failure, if it is the adapter that the server refuses."""
    if isinstance(problem, Refusal) and problem.status == POISONED:
        return Success(Served(problem=problem.problem))
    return Failure(problem)
