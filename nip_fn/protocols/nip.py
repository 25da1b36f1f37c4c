"""nip: one prover, one verifier, one channel; they take turns until the verifier decides."""

from nip_fn.game.protocol import AgentSpec, Move, Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import in_turn, make_protocol

PROVER, VERIFIER = 0, 1
MAIN = 0


def nip(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    prover, verifier = (Move(PROVER, (MAIN,)),), (Move(VERIFIER, (MAIN,)),)
    verifier_first = params.protocol_common.verifier_first
    return make_protocol(
        common=params.protocol_common,
        name="nip",
        agents=(
            AgentSpec("prover", "prover", "Expert"),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        schedule=in_turn(verifier, prover) if verifier_first else in_turn(prover, verifier),
        max_message_rounds=params.nip_protocol.max_message_rounds,
        min_message_rounds=params.nip_protocol.min_message_rounds,
    )
