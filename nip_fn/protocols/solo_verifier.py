"""solo_verifier: the verifier decides alone, in one message; the baseline of all the others."""

from nip_fn.params import HyperParameters
from nip_fn.protocols.common import in_turn, make_protocol
from nip_fn.protocols.protocol import AgentSpec, Move, Protocol


def solo_verifier(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    return make_protocol(
        params,
        name="solo_verifier",
        agents=(AgentSpec("verifier", "verifier", "Verifier"),),
        channels=("main",),
        visibility=((True,),),
        schedule=in_turn((Move(0, (0,)),)),
        max_message_rounds=1,
    )
