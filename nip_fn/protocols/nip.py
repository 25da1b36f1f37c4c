"""nip: one prover, one verifier, one channel; they take turns until the verifier decides."""

from functools import cache

from nip_fn.keys import Key
from nip_fn.params import HyperParameters
from nip_fn.protocols import rewards
from nip_fn.protocols.protocol import AgentSpec, Move, Outcome, Protocol

PROVER, VERIFIER = 0, 1
MAIN = 0


@cache
def nip(params: HyperParameters) -> Protocol:
    """The protocol under these parameters."""
    common, length = params.protocol_common, params.nip_protocol
    first, second = (VERIFIER, PROVER) if common.verifier_first else (PROVER, VERIFIER)

    def schedule(round: int, key: Key) -> tuple[Move, ...]:
        return (Move(second if round % 2 else first, (MAIN,)),)

    def stance(agent: int, datapoint_stance: int) -> int:
        return datapoint_stance if common.randomize_prover_stance else 1

    def reward(outcome: Outcome) -> tuple[float, ...]:
        verifier = rewards.verifier_reward(common, outcome)
        prover = rewards.prover_reward(common, outcome, stance(PROVER, outcome.stance))
        if common.shared_reward:
            prover = verifier
        if outcome.invalid[PROVER] and common.prover_invalid_response_penalty is not None:
            prover = common.prover_invalid_response_penalty
        return prover, verifier

    num_turns = (length.max_message_rounds + common.verifier_first) // 2

    def bounds(agent: int) -> tuple[float, float]:
        of_role = rewards.verifier_bounds if agent == VERIFIER else rewards.prover_bounds
        return of_role(common, num_turns)

    return Protocol(
        name="nip",
        agents=(
            AgentSpec("prover", "prover", "Expert"),
            AgentSpec("verifier", "verifier", "Verifier"),
        ),
        channels=("main",),
        visibility=((True,), (True,)),
        max_message_rounds=length.max_message_rounds,
        min_message_rounds=length.min_message_rounds,
        schedule=schedule,
        rewards=reward,
        reward_bounds=bounds,
        stance=stance,
        invalid_ends=common.prover_invalid_response_penalty is not None,
    )
