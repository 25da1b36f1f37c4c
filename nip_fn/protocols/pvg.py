"""pvg: a helpful or a sneaky prover, drawn by lot, answers; a verifier that knows not which judges.

After Kirchner et al., "Prover-verifier games improve legibility of LLM outputs", 2024: the helpful
prover is paid for right answers that convince, the sneaky one for wrong ones.
"""

from nip_fn.game.protocol import AgentSpec, Move, Outcome, Protocol, game_seed
from nip_fn.keys import Key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import make_protocol

HELPFUL, SNEAKY, VERIFIER = 0, 1, 2
MAIN = 0


def writer(key: Key) -> int:
    """The prover that answers in the game: the helpful one if the game's seed is even."""
    return (HELPFUL, SNEAKY)[game_seed(key) % 2]


def schedule(round_id: int, key: Key) -> tuple[Move, ...]:
    """The moves of a round: the answer, then the verdict."""
    if round_id == 0:
        return (Move(writer(key), (MAIN,), answers=True),)
    return (Move(VERIFIER, (MAIN,)),)


def pvg(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    paid = make_protocol(
        common=params.protocol_common,
        name="pvg",
        agents=(
            # Both argue for acceptance, and are anonymous: whoever knew which of them had written
            # the answer could decide unread.
            AgentSpec("helpful", "prover", "Expert_1", anonymous=True),
            AgentSpec("sneaky", "prover", "Expert_2", anonymous=True),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        schedule=schedule,
        max_message_rounds=2,
        min_message_rounds=2,
        fixed_sides=True,
    )

    def rewards(outcome: Outcome) -> tuple[float, ...]:
        helpful, sneaky, verifier = paid.rewards(outcome)
        # A prover that leaves its part gains nothing by convincing; a penalty stays one.
        return (
            helpful if outcome.label == 1 or outcome.invalid[HELPFUL] else 0.0,
            sneaky if outcome.label == 0 or outcome.invalid[SNEAKY] else 0.0,
            verifier,
        )

    return paid._replace(rewards=rewards)
