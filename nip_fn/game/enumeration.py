"""Enumerated replies: what an agent may say in a position, with exact probabilities."""

from math import fsum
from typing import NamedTuple

from nip_fn.game.reply import FinishReason
from nip_fn.keys import Key


class LikelyReply(NamedTuple):
    """A reply and its probability.

    text: the words.
    finish_reason: "stop", or "length" at the token limit.
    probability: of the reply in its position.
    keys: of a script, the keys by which it says this; () of a model.
    """

    text: str
    finish_reason: FinishReason
    probability: float
    keys: tuple[Key, ...] = ()


class Enumeration(NamedTuple):
    """The likely replies of an agent in a position."""

    replies: tuple[LikelyReply, ...]

    @property
    def rest(self) -> float:
        """The probability of all replies that were not enumerated."""
        return max(0.0, 1 - fsum(reply.probability for reply in self.replies))
