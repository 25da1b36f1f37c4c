"""mnip: two provers on one side, each hears the verifier only, who questions both."""

from functools import partial

from nip_fn.game.protocol import Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols import two_provers
from nip_fn.protocols.build import make_protocol


def mnip(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    # The *nip* library ignores these two lengths and takes those of nip.
    length, common = params.mnip_protocol, params.protocol_common
    return make_protocol(
        common=common,
        name="mnip",
        agents=two_provers.make_agents(),
        channels=two_provers.CHANNELS,
        # Each prover sees its own channel only: answers that cannot be agreed on are what a second
        # prover adds to nip.
        visibility=((True, False), (False, True), (True, True)),
        schedule=two_provers.make_schedule(length, verifier_first=common.verifier_first),
        max_message_rounds=length.max_message_rounds,
        min_message_rounds=length.min_message_rounds,
        channel_order=partial(two_provers.reading_order, length),
    )
