"""Written answers: any game, with a round in front of it in which a prover writes the answer."""

from nip_fn.game.decision import ACCEPT
from nip_fn.game.protocol import Move, Protocol
from nip_fn.keys import Key

CHANNEL = "answer"  # in which it is written, and which everybody sees


def writer_of(protocol: Protocol) -> int | None:
    """The first prover that always argues for acceptance, and would stand by its answer."""
    agents = range(len(protocol.agents))
    return next(
        (
            agent
            for agent in agents
            if protocol.agents[agent].role == "prover"
            and protocol.stance(agent, 0) == protocol.stance(agent, 1) == ACCEPT
        ),
        None,
    )


def with_answers(protocol: Protocol) -> Protocol:
    """The game about an answer that its first prover for acceptance writes in a round of its own.

    No decision counts in that round, and the others follow as they were.

    Raises:
        ValueError: No prover always argues for acceptance.
    """
    writer = writer_of(protocol)
    if writer is None:
        raise ValueError(f"in {protocol.name} no prover always argues for acceptance")
    # A channel of its own: in mnip the provers do not hear each other, and all have to know what
    # is judged.
    answer = len(protocol.channels)
    order = protocol.channel_order

    def schedule(round_id: int, key: Key) -> tuple[Move, ...]:
        if round_id == 0:
            return (Move(writer, (answer,), answers=True),)
        return protocol.schedule(round_id - 1, key)

    def channel_order(agent: int, round_id: int, key: Key) -> tuple[int, ...]:
        others = order(agent, round_id - 1, key) if order else tuple(range(answer))
        return answer, *others

    return protocol._replace(
        channels=(*protocol.channels, CHANNEL),
        visibility=tuple((*seen, True) for seen in protocol.visibility),
        max_message_rounds=protocol.max_message_rounds + 1,
        min_message_rounds=protocol.min_message_rounds + 1,
        schedule=schedule,
        channel_order=channel_order,
    )
