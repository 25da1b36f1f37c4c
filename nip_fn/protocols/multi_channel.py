"""multi_channel_test: three provers without rewards, a verifier and three channels; for tests."""

from nip_fn.game.protocol import AgentSpec, Move, Outcome, Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import in_turn, make_protocol

PROVER0, PROVER1, PROVER2, VERIFIER = 0, 1, 2, 3
MAIN, PROVER0_VERIFIER, PROVER_CHAT = 0, 1, 2


def multi_channel_test(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    # A game for tests: several agents at once, an agent in several channels, channels that some do
    # not see, and a round in which three agents speak.
    headers = ((MAIN, "Message to everyone:"), (PROVER0_VERIFIER, "Message to Expert_0:"))
    paid = make_protocol(
        common=params.protocol_common,
        name="multi_channel_test",
        agents=(
            AgentSpec("prover0", "prover", "Expert_0"),
            AgentSpec("prover1", "prover", "Expert_1"),
            AgentSpec("prover2", "prover", "Expert_2"),
            AgentSpec("verifier", "verifier", "Verifier", headers=headers),
        ),
        channels=("main", "prover0_verifier", "prover_chat"),
        visibility=(
            (True, True, True),
            (True, False, True),
            (True, False, True),
            (True, True, False),
        ),
        schedule=in_turn(
            (Move(PROVER0, (PROVER_CHAT,)), Move(PROVER1, (MAIN,))),
            (
                Move(PROVER0, (PROVER0_VERIFIER,)),
                Move(PROVER1, (PROVER_CHAT,)),
                Move(PROVER2, (MAIN,)),
            ),
            (Move(PROVER2, (PROVER_CHAT,)), Move(VERIFIER, (MAIN, PROVER0_VERIFIER))),
        ),
        max_message_rounds=8,
        min_message_rounds=2,
    )

    # Not through the parameters, which would pay each of three provers for the same verdict: the
    # game is about who hears whom.
    def rewards(outcome: Outcome) -> tuple[float, ...]:
        return 0.0, 0.0, 0.0, paid.rewards(outcome)[VERIFIER]

    return paid._replace(rewards=rewards)
