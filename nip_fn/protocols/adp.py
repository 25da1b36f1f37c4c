"""adp, the adapted proof protocol: the prover sends one message, then the verifier decides."""

from nip_fn.params import HyperParameters
from nip_fn.protocols.common import in_turn, make_protocol
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER
from nip_fn.protocols.protocol import AgentSpec, Move, Protocol


def adp(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    return make_protocol(
        params,
        name="adp",
        agents=(
            AgentSpec("prover", "prover", "Expert"),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        channels=("main",),
        visibility=((True,), (True,)),
        schedule=in_turn((Move(PROVER, (MAIN,)),), (Move(VERIFIER, (MAIN,)),)),
        max_message_rounds=2,
    )
