"""Protocols: agents, channels, visibility, schedule and rewards of a game."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

from nip_fn.game.decision import ACCEPT, Decision, SpectrumName
from nip_fn.keys import Key, fold_in, seed_of

Role = Literal["prover", "verifier"]

# How a game stands: still open, or the three ways in which it ends, which are never confused.
Status = Literal["open", "decided", "truncated", "aborted"]

# What the verifier decides at its first turn that counts, whatever it says.
ForceGuess = Literal["zero", "one", "y"]

# What an anonymous agent is called.
NAME_OF_ROLE: dict[Role, str] = {"prover": "Expert", "verifier": "Verifier"}


class AgentSpec(NamedTuple):
    """An agent's part in a protocol."""

    name: str
    role: Role
    human_name: str  # what it is called in prompts
    default_stance: int = ACCEPT  # the verdict that a prover argues for
    headers: tuple[tuple[int, str], ...] = ()  # (channel, what its part of a message begins with)
    anonymous: bool = False  # the others are told its role only

    @property
    def shown_name(self) -> str:
        """The name by which the other agents know it."""
        return NAME_OF_ROLE[self.role] if self.anonymous else self.human_name


class Move(NamedTuple):
    """One agent's turn to speak in a round."""

    agent: int
    channels: tuple[int, ...]  # where its words go


class Outcome(NamedTuple):
    """The result of a round; the input of a protocol's rewards."""

    status: Status
    label: int  # 1 the solution is right, 0 it has a bug
    stance: int  # the side of a prover whose stance is randomised
    decision: Decision | None  # the verifier's, where it counts
    verifier_moved: bool
    invalid: tuple[bool, ...]  # [A] whose reply could not be used


# Data and functions in a tuple, so that a protocol can be hashed: caches throughout the core are
# keyed by it, and `_replace` makes a variant of any game.
class Protocol(NamedTuple):
    """A game as data and small pure functions.  Agents and channels are indices from here on."""

    name: str
    agents: tuple[AgentSpec, ...]
    channels: tuple[str, ...]
    visibility: tuple[tuple[bool, ...], ...]  # [A, C] who sees which channel
    max_message_rounds: int
    min_message_rounds: int
    schedule: Callable[[int, Key], tuple[Move, ...]]  # (round, the game's key) -> who speaks
    rewards: Callable[[Outcome], tuple[float, ...]]  # [A] on arriving at a node
    stance: Callable[[int, int], int]  # (agent, the datapoint's stance) -> verdict argued for
    invalid_ends: bool = False  # an invalid reply of a prover ends the game
    spectrum: SpectrumName = "accept_reject"  # the words in which the verifier decides
    force_guess: ForceGuess | None = None  # what it decides whatever it says
    # (agent, round, the game's key) -> the channels in the order in which the agent reads them
    channel_order: Callable[[int, int, Key], tuple[int, ...]] | None = None

    def is_verifier(self, agent: int) -> bool:
        """True if the agent decides."""
        return self.agents[agent].role == "verifier"

    def headers(self, move: Move) -> tuple[str, ...]:
        """The header of each part of a message to several channels; () for a single channel."""
        if len(move.channels) == 1:
            return ()
        by_channel = dict(self.agents[move.agent].headers)
        return tuple(by_channel[channel] for channel in move.channels)


def game_seed(key: Key) -> int:
    """The 16 bits of a game's key to which its schedule may look."""
    # Sixteen bits, as the seeds of the *nip* library have: exported games carry them under its
    # name.
    return seed_of(fold_in(key, "seed"), 16)


# Found by asking the schedule.  The *nip* library halves the number of rounds instead, which is
# wrong where three turns alternate, and plays on after the verifier's last turn.
@lru_cache(maxsize=1024)
def verifier_rounds(protocol: Protocol, key: Key) -> tuple[int, ...]:
    """The rounds in which a verifier speaks; the game is over after the last of them."""
    return tuple(
        r
        for r in range(protocol.max_message_rounds)
        if any(protocol.is_verifier(move.agent) for move in protocol.schedule(r, key))
    )


def channels_seen(protocol: Protocol, agent: int, round: int, key: Key) -> tuple[int, ...]:
    """The channels that the agent sees, in the order in which it reads them."""
    order = protocol.channel_order
    channels = order(agent, round, key) if order else range(len(protocol.channels))
    return tuple(channel for channel in channels if protocol.visibility[agent][channel])
