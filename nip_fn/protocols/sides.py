"""Sides: the provers of a game that argue for the same verdict, and attack together."""

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import ACCEPT
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, key

Attackers = tuple[int, ...]  # provers that argue for the same side


def sides(protocol: Protocol) -> tuple[Attackers, ...]:
    """The provers, those together that argue for the same side."""
    # Two sides are the same if they are so on every datapoint: a randomised stance is one of its
    # own.
    provers: dict[tuple[int, int], list[int]] = {}
    for index, agent in enumerate(protocol.agents):
        if agent.role == "prover":
            stances = protocol.stance(index, 0), protocol.stance(index, 1)
            provers.setdefault(stances, []).append(index)
    return tuple(map(tuple, provers.values()))


def aim(protocol: Protocol, attackers: Attackers, datapoint: Datapoint) -> int:
    """The verdict that the attackers want for the datapoint."""
    return protocol.stance(attackers[0], datapoint.stance)


def is_attacked(protocol: Protocol, attackers: Attackers, datapoint: Datapoint, key: Key) -> bool:
    """True if their verdict would be wrong, and one of them has a turn in the game of that key."""
    rounds = range(protocol.max_message_rounds)
    has_turn = any(
        move.agent in attackers for number in rounds for move in protocol.schedule(number, key)
    )
    return has_turn and aim(protocol, attackers, datapoint) != datapoint.label


def only_label(protocol: Protocol, attackers: Attackers) -> int | None:
    """The label of all datapoints on which the attackers' verdict is wrong; None if either is."""
    verdicts = {protocol.stance(attackers[0], stance) for stance in (0, 1)}
    return None if len(verdicts) > 1 else int(verdicts != {ACCEPT})


def speakers(protocol: Protocol) -> tuple[frozenset[int], ...]:
    """The agents that may speak in each round; a lot may leave some of them out of a game."""
    games = tuple(fold_in(key(0), draw) for draw in range(16))
    return tuple(
        frozenset(move.agent for game in games for move in protocol.schedule(number, game))
        for number in range(protocol.max_message_rounds)
    )


def speak_alone(protocol: Protocol, attackers: Attackers) -> bool:
    """True if nobody else speaks in the rounds in which the attackers do."""
    speaking = set(attackers)
    games = (fold_in(key(0), draw) for draw in range(16))
    turns = (
        {move.agent for move in protocol.schedule(number, game)}
        for game in games
        for number in range(protocol.max_message_rounds)
    )
    return all(movers <= speaking or not movers & speaking for movers in turns)


def sees_everything(protocol: Protocol, attackers: Attackers, datapoint: Datapoint) -> bool:
    """True if each attacker sees all channels and all that anybody is shown of the datapoint.

    Otherwise other agents act on what an attacker cannot know.
    """
    views = [datapoint.view(agent.name, agent.role) for agent in protocol.agents]
    return all(
        all(protocol.visibility[attacker]) and all(view in views[attacker] for view in views)
        for attacker in attackers
    )
