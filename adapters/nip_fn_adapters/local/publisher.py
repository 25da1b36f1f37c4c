"""Publishing an adapter of local models: it answers at once, so all there is to do is to score."""

from returns.result import Failure, Result, Success

from nip_fn.run.events import Publish
from nip_fn.run.ports import Publisher, Served
from nip_fn_adapters.local.sampler import LocalSampler


def local_publisher(sampler: LocalSampler) -> Publisher:
    """A publisher for what `sampler` serves.

    It answers with the log-probability, in nats, of each of the effect's probes under the adapter
    as the sampler has loaded it; or with why that cannot be loaded.
    """

    async def publish(effect: Publish) -> Result[Served, str]:
        scores: tuple[float, ...] = ()
        for chat, reply in effect.probes:
            score = await sampler.log_probability(effect.model, effect.adapter, chat, reply)
            if isinstance(score, Failure):
                return score
            scores += (score.unwrap(),)
        return Success(Served(scores))

    return publish
