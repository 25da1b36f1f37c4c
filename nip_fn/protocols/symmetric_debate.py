"""symmetric_debate: two provers on opposite sides; two judges read them in opposite orders.

The verdict is the mean of both, so that neither prover gains by being read first or last: of two
judges that disagree the verdict is undecided.
"""

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.protocol import AgentSpec, Move, Protocol
from nip_fn.keys import Key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import make_protocol

PROVER0, PROVER1, VERIFIER, REVERSED = 0, 1, 2, 3
CHANNELS = ("prover0_channel", "prover1_channel", "notes", "reversed_notes")
NOTES, REVERSED_NOTES = 2, 3  # a judge without a verdict is heard by nobody


def symmetric_debate(params: HyperParameters) -> Protocol:
    """The protocol under these parameters: as long as debate, its last round for the verdicts."""
    last = params.debate_protocol.max_message_rounds - 1

    def schedule(round_id: int, key: Key) -> tuple[Move, ...]:
        if round_id < last:
            return Move(PROVER0, (0,)), Move(PROVER1, (1,))
        return Move(VERIFIER, (NOTES,)), Move(REVERSED, (REVERSED_NOTES,))

    def reading_order(agent: int, round_id: int, key: Key) -> tuple[int, ...]:
        provers = (1, 0) if agent in (PROVER0, REVERSED) else (0, 1)
        return *provers, NOTES, REVERSED_NOTES

    return make_protocol(
        common=params.protocol_common,
        name="symmetric_debate",
        agents=(
            AgentSpec("prover0", "prover", "Expert_1", default_stance=REJECT),
            AgentSpec("prover1", "prover", "Expert_2", default_stance=ACCEPT),
            AgentSpec("verifier", "verifier", "Verifier"),
            AgentSpec("verifier_reversed", "verifier", "Verifier"),
        ),
        channels=CHANNELS,
        visibility=(
            (True, True, False, False),
            (True, True, False, False),
            (True, True, True, False),
            (True, True, False, True),
        ),
        schedule=schedule,
        max_message_rounds=last + 1,
        min_message_rounds=last + 1,
        fixed_sides=True,
        channel_order=reading_order,
    )
