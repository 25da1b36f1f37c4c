"""proposer_critic: one prover writes an answer, another criticises it once, the verifier decides.

After Elasky et al., 2026: one critique of an answer does as well as several rounds of rebuttals.
"""

from nip_fn.game.decision import REJECT
from nip_fn.game.protocol import AgentSpec, Move, Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import in_turn, make_protocol

PROPOSER, CRITIC, VERIFIER = 0, 1, 2
MAIN = 0


def proposer_critic(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    return make_protocol(
        common=params.protocol_common,
        name="proposer_critic",
        agents=(
            AgentSpec("proposer", "prover", "Expert_1"),
            AgentSpec("critic", "prover", "Expert_2", default_stance=REJECT),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        schedule=in_turn(
            (Move(PROPOSER, (MAIN,), answers=True),),
            (Move(CRITIC, (MAIN,)),),
            (Move(VERIFIER, (MAIN,)),),
        ),
        max_message_rounds=3,
        min_message_rounds=3,
        fixed_sides=True,
    )
