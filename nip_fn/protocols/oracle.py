"""oracle: a prover writes an answer, and the verifier may ask an oracle so many questions about it.

The oracle is a tool: it sees the questions alone, argues for nothing and is paid nothing.  By
default it is the script that tells the truth.
"""

from nip_fn.game.protocol import AgentSpec, Move, Outcome, Protocol
from nip_fn.keys import Key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import make_protocol

PROVER, VERIFIER, ORACLE = 0, 1, 2
MAIN, QUERIES = 0, 1


def oracle(params: HyperParameters) -> Protocol:
    """The protocol under these parameters; `oracle_protocol.max_queries` is the budget."""
    queries = params.oracle_protocol.max_queries

    def schedule(round_id: int, key: Key) -> tuple[Move, ...]:
        if round_id == 0:
            return (Move(PROVER, (MAIN,), answers=True),)
        return (Move(VERIFIER if round_id % 2 else ORACLE, (QUERIES,)),)

    paid = make_protocol(
        common=params.protocol_common,
        name="oracle",
        agents=(
            AgentSpec("prover", "prover", "Expert"),
            AgentSpec("verifier", "verifier", "Verifier"),
            AgentSpec("oracle", "tool", "Oracle"),
        ),
        channels=("main", "queries"),
        visibility=((True, False), (True, True), (False, True)),
        schedule=schedule,
        max_message_rounds=2 + 2 * queries,
        min_message_rounds=2,
        fixed_sides=True,
    )

    def rewards(outcome: Outcome) -> tuple[float, ...]:
        prover, verifier, _ = paid.rewards(outcome)
        return prover, verifier, 0.0

    return paid._replace(rewards=rewards)
