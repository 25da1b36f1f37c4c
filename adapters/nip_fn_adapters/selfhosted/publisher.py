"""Publishing an adapter at a language-model server, which looks at it and scores the probes."""

from collections.abc import Mapping

from returns.result import Failure, Result, Success

from nip_fn.run.events import Publish
from nip_fn.run.ports import Publisher, Served
from nip_fn_adapters.selfhosted.client import Trouble
from nip_fn_adapters.selfhosted.host import Host

POISONED = 422  # the status that says that it is the adapter that is refused


def hosted_publisher(groups: Mapping[str, Host]) -> Publisher:
    """A publisher for groups (by name) whose models are at language-model servers."""

    async def publish(effect: Publish) -> Result[Served, str]:
        host = groups[effect.group]
        online = await host.online()
        if isinstance(online, Failure):
            return Failure(online.failure())
        answer = await host.publish(effect.group, effect.adapter, effect.probes, effect.expected)
        if not isinstance(answer, Failure):
            return Success(Served(answer.unwrap().scores))
        trouble: Trouble = answer.failure()
        if trouble.refusal is not None and trouble.refusal.status == POISONED:
            return Success(Served(problem=trouble.refusal.reason))
        return Failure(trouble.line)

    return publish
