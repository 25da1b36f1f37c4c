"""adp, the adapted proof protocol: the prover sends one message, then the verifier decides."""

from nip_fn.game.protocol import AgentSpec, Move, Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import in_turn, make_protocol
from nip_fn.protocols.nip import MAIN, PROVER, VERIFIER


def adp(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    return make_protocol(
        common=params.protocol_common,
        name="adp",
        agents=(
            AgentSpec("prover", "prover", "Expert"),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        # `verifier_first` is not asked: a verifier without a question would have nothing to say
        # first.
        schedule=in_turn((Move(PROVER, (MAIN,)),), (Move(VERIFIER, (MAIN,)),)),
        max_message_rounds=2,
    )
