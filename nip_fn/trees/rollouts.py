"""The complete games of a grown tree."""

from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Round
from nip_fn.game.protocol import End
from nip_fn.keys import Key
from nip_fn.trees.grow import Node


class Rollout(NamedTuple):
    """One game, from the root of a tree to one of its leaves."""

    datapoint: Datapoint
    key: Key  # of the game
    turns: tuple[Round, ...]  # round by round
    rewards: tuple[tuple[float, ...], ...]  # [A] for each round
    end: End


def leaf_games(root: Node, datapoint: Datapoint, key: Key) -> tuple[Rollout, ...]:
    """All games of a grown tree, left to right; `key` is that of the game at its root.

    Where the tree still waits for replies a game is cut short, and its end is "open".
    """
    if not root.children:
        return (Rollout(datapoint, key, turns=(), rewards=(), end=root.end),)
    return tuple(
        game._replace(turns=(child.turn, *game.turns), rewards=(child.reward, *game.rewards))
        for child in root.children
        for game in leaf_games(child, datapoint, key)
    )
