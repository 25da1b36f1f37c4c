"""solo_judge: a prover writes an answer, and the verifier judges it without a word of anybody else.

The baseline of games with written answers, as solo_verifier is that of the others.
"""

from nip_fn.game.protocol import AgentSpec, Move, Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import in_turn, make_protocol

PROVER, VERIFIER = 0, 1
MAIN = 0


def solo_judge(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    return make_protocol(
        common=params.protocol_common,
        name="solo_judge",
        agents=(
            AgentSpec("prover", "prover", "Expert"),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        schedule=in_turn((Move(PROVER, (MAIN,), answers=True),), (Move(VERIFIER, (MAIN,)),)),
        max_message_rounds=2,
        min_message_rounds=2,
        fixed_sides=True,
    )
