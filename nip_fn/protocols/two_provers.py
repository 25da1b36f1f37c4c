"""The common part of debate and mnip: two provers, a channel for each, and the order of moves."""

from nip_fn.game.decision import ACCEPT
from nip_fn.game.protocol import AgentSpec, Move
from nip_fn.keys import Key, fold_in, permutation
from nip_fn.params.protocol import TwoProverParameters
from nip_fn.protocols.build import MoveSchedule, in_turn

PROVER0, PROVER1, VERIFIER = 0, 1, 2
CHANNELS = ("prover0_channel", "prover1_channel")


def make_agents(stance0: int = ACCEPT, stance1: int = ACCEPT) -> tuple[AgentSpec, ...]:
    """Two experts who argue for these verdicts, and a verifier who asks each of them something."""
    headers = ((0, "Question for Expert_1:"), (1, "Question for Expert_2:"))
    return (
        AgentSpec("prover0", "prover", "Expert_1", default_stance=stance0),
        AgentSpec("prover1", "prover", "Expert_2", default_stance=stance1),
        AgentSpec("verifier", "verifier", "Verifier", headers=headers),
    )


def make_schedule(length: TwoProverParameters, *, verifier_first: bool) -> MoveSchedule:
    """The schedule: the verifier in both channels, the provers in their own, at once or in turn."""
    verifier = (Move(VERIFIER, (0, 1)),)
    provers = (Move(PROVER0, (0,)), Move(PROVER1, (1,)))
    # One after the other each prover has a round of its own, so the second one has read the first.
    answers = tuple((move,) for move in provers) if length.sequential else (provers,)
    if not length.prover0_first:
        answers = answers[::-1]
    return in_turn(verifier, *answers) if verifier_first else in_turn(*answers, verifier)


def reading_order(
    length: TwoProverParameters, agent: int, round_id: int, key: Key
) -> tuple[int, ...]:
    """The channels in the order in which an agent reads them in a round.

    A prover reads its own channel last.  The verifier's order is drawn, so that neither prover
    always has the last word with it.

    Args:
        length: The protocol's own parameters.
        agent: The reader.
        round_id: The round, counted from 0.
        key: The game's key.
    """
    if agent == PROVER0:
        return 1, 0
    if agent == VERIFIER and length.randomize_channel_order:
        return permutation(fold_in(key, "channel_order", round_id), 2)
    return 0, 1
