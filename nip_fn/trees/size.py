"""The size of a tree before it has grown: its positions, round by round."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from nip_fn.game.episode import may_decide
from nip_fn.game.protocol import Move, verifier_rounds
from nip_fn.keys import Key
from nip_fn.trees.grow import Rules, Turn


class RoundPositions(NamedTuple):
    """The positions of a tree from which the same round is played.

    moves: of the round.
    number: of these positions; a fraction in an expectation.
    k: replies of each mover at each of them.
    """

    moves: tuple[Move, ...]
    number: float
    k: int


def levels(rules: Rules, game: Key, decides: float = 0.0) -> Iterator[RoundPositions]:
    """The levels of a tree, from its root to the last round.

    Args:
        rules: The rules by which it would grow.
        game: The key of its game.
        decides: The share of positions at which a verifier that may decide does; with 0 the counts
            are those of the largest tree.
    """
    protocol, spoken, number = rules.protocol, Counter[int](), 1.0
    for round_id in range(max(verifier_rounds(protocol, game), default=-1) + 1):
        moves = protocol.schedule(round_id, game)
        k = rules.num_replies(tuple(Turn(move.agent, spoken[move.agent], game) for move in moves))
        yield RoundPositions(moves, number, k)
        # As in `node.reply_combinations`.
        number *= k ** len(moves) if rules.simultaneous_branching == "product" else k
        if any(may_decide(protocol, round_id, move.agent) for move in moves):
            if protocol.force_guess is not None:
                return
            number *= 1 - decides
        spoken.update(move.agent for move in moves)
