"""debate: two provers on opposite sides hear each other, and a verifier questions both."""

from functools import partial

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.protocol import Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols import two_provers
from nip_fn.protocols.build import make_protocol


def debate(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    length, common = params.debate_protocol, params.protocol_common
    return make_protocol(
        common=common,
        name="debate",
        agents=two_provers.make_agents(REJECT, ACCEPT),
        channels=two_provers.CHANNELS,
        # Everybody hears everybody: a debater has to be able to rebut the other.
        schedule=two_provers.make_schedule(length, verifier_first=common.verifier_first),
        max_message_rounds=length.max_message_rounds,
        min_message_rounds=length.min_message_rounds,
        # Opposite sides are the game itself, so they are never drawn by datapoint.
        fixed_sides=True,
        channel_order=partial(two_provers.reading_order, length),
    )
