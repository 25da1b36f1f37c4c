"""Publishing an adapter of local models: it answers at once, so only its probes are scored."""

from returns.result import Result

from nip_fn.errors import Problem
from nip_fn.run.events import Publish
from nip_fn.run.ports import Publisher, Served
from nip_fn_adapters.providers.local.sampler import LocalSampler


def local_publisher(sampler: LocalSampler) -> Publisher:
    """A publisher for the models of `sampler`.

    It scores each of the effect's probes, in nats, with the adapter as the sampler has loaded it;
    an adapter that cannot be loaded is a failure.
    """

    async def publish(effect: Publish) -> Result[Served, Problem]:
        return await sampler.score_probes(effect.model, effect.adapter, effect.probes)

    return publish
