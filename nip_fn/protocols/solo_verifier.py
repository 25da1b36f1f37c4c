"""solo_verifier: the verifier decides alone, in one message; the baseline of all the others."""

from nip_fn.game.protocol import AgentSpec, Move, Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import in_turn, make_protocol


def solo_verifier(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    return make_protocol(
        common=params.protocol_common,
        name="solo_verifier",
        agents=(AgentSpec("verifier", "verifier", "Verifier"),),
        schedule=in_turn((Move(0, (0,)),)),
        # The *nip* library says two here, to get around an error of NumPy's strings.
        max_message_rounds=1,
    )
