"""merlin_arthur: one of two provers, drawn by lot, sends one message; the verifier decides.

One argues for acceptance, the other for rejection, and the verifier is not told which one spoke.
"""

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.protocol import AgentSpec, Move, Protocol, game_seed
from nip_fn.keys import Key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import make_protocol

PROVER0, PROVER1, VERIFIER = 0, 1, 2
MAIN = 0


def schedule(round_id: int, key: Key) -> tuple[Move, ...]:
    """The moves of a round: prover0 if the game's seed is even, else prover1; then the verifier."""
    # Drawn from the game's own key, so that all branches of a tree have the same speaker: siblings
    # could not be compared otherwise.
    speaker = (PROVER0, PROVER1)[game_seed(key) % 2] if round_id % 2 == 0 else VERIFIER
    return (Move(speaker, (MAIN,)),)


def merlin_arthur(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    return make_protocol(
        common=params.protocol_common,
        name="merlin_arthur",
        agents=(
            # Anonymous, since a verifier that knew who speaks would know the side and could decide
            # unheard.
            AgentSpec("prover0", "prover", "Expert_1", default_stance=REJECT, anonymous=True),
            AgentSpec("prover1", "prover", "Expert_2", default_stance=ACCEPT, anonymous=True),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        schedule=schedule,
        max_message_rounds=2,
        fixed_sides=True,
    )
