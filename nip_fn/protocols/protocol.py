"""What a protocol is: agents, channels, who sees what, who speaks when, and what it is worth."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

from nip_fn.keys import Key
from nip_fn.spectra import Decision

Role = Literal["prover", "verifier"]

# How a game stands: still open, or the three ways in which it ends, which are never confused.
End = Literal["open", "decided", "rounds", "invalid"]

ACCEPT, REJECT = 1, 0


class AgentSpec(NamedTuple):
    """An agent's part in a protocol."""

    name: str
    role: Role
    human_name: str  # what the other agents call it
    default_stance: int = ACCEPT  # the verdict that a prover argues for


class Move(NamedTuple):
    """One agent's turn to speak in a round."""

    agent: int
    channels: tuple[int, ...]  # where its words go


class Outcome(NamedTuple):
    """What a round came to; the input of a protocol's rewards."""

    end: End
    label: int  # 1 the solution is right, 0 it has a bug
    stance: int  # the side of a prover whose stance is randomised
    decision: Decision | None  # the verifier's, where it counts
    verifier_moved: bool
    invalid: tuple[bool, ...]  # [A] whose reply could not be used


class Protocol(NamedTuple):
    """A game as data and small pure functions.  Agents and channels are indices from here on."""

    name: str
    agents: tuple[AgentSpec, ...]
    channels: tuple[str, ...]
    visibility: tuple[tuple[bool, ...], ...]  # [A, C] who sees which channel
    max_message_rounds: int
    min_message_rounds: int
    schedule: Callable[[int, Key], tuple[Move, ...]]  # (round, the episode's key) -> who speaks
    rewards: Callable[[Outcome], tuple[float, ...]]  # [A] on arriving at a node
    reward_bounds: Callable[[int], tuple[float, float]]  # (agent) -> least and most in all
    stance: Callable[[int, int], int]  # (agent, the datapoint's stance) -> verdict argued for
    invalid_ends: bool = False  # an invalid reply of a prover ends the game

    def is_verifier(self, agent: int) -> bool:
        """Whether the agent decides."""
        return self.agents[agent].role == "verifier"


@lru_cache(maxsize=1024)
def verifier_rounds(protocol: Protocol, key: Key) -> tuple[int, ...]:
    """The rounds in which a verifier speaks; the game is over after the last of them."""
    return tuple(
        r
        for r in range(protocol.max_message_rounds)
        if any(protocol.is_verifier(move.agent) for move in protocol.schedule(r, key))
    )


def reward_mid_point(protocol: Protocol, agent: int) -> float:
    """Half-way between the least and the most that the agent can get in a game."""
    least, most = protocol.reward_bounds(agent)
    return (least + most) / 2
