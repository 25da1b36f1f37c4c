"""Protocols: agents, channels, visibility, schedule and rewards of a game."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

from nip_fn.game.decision import ACCEPT, Decision, SpectrumName
from nip_fn.keys import Key, fold_in, key, seed_of

Role = Literal["prover", "verifier", "tool"]

# How a game stands: still open, or the four ways in which it ends, which are never confused.
Status = Literal["open", "decided", "truncated", "aborted", "unchecked"]

# What the verifier decides at its first turn that counts, whatever it says.
ForceGuess = Literal["zero", "one", "y"]

# What an anonymous agent is called.
NAME_OF_ROLE: dict[Role, str] = {"prover": "Expert", "verifier": "Verifier", "tool": "Tool"}


class AgentSpec(NamedTuple):
    """An agent's part in a protocol.

    name: in parameters and recordings.
    role: "prover", "verifier", or "tool" of whoever argues for nothing, such as an oracle.
    human_name: in prompts.
    default_stance: the verdict that a prover argues for.
    headers: (channel, the beginning of its part of a message) for an agent that speaks to several
        channels at once.
    anonymous: True if the others are told its role only.
    """

    name: str
    role: Role
    human_name: str
    default_stance: int = ACCEPT
    headers: tuple[tuple[int, str], ...] = ()
    anonymous: bool = False

    @property
    def shown_name(self) -> str:
        """The name by which the other agents know it."""
        return NAME_OF_ROLE[self.role] if self.anonymous else self.human_name


class Move(NamedTuple):
    """One agent's turn to speak in a round.

    agent: its index.
    channels: those that its words go to.
    answers: True if its words state an answer (see `game.answer`), whose label a checker says.
    """

    agent: int
    channels: tuple[int, ...]
    answers: bool = False


class Outcome(NamedTuple):
    """The result of a round; the input of a protocol's rewards.

    status: "open", or how the game has ended: "decided", "truncated", "aborted", or "unchecked" if
        no checker could say if an answer is right.
    label: 1 if the solution, or the last answer that was written, is right, 0 if it is wrong; None
        before there is an answer, and of one that could not be checked.
    stance: the side of a prover whose stance is randomised.
    decision: the verifier's; None in a round without one.
    verifier_moved: True if the verifier spoke.
    invalid: `[A]` true if the agent's reply could not be used.
    """

    status: Status
    label: int | None
    stance: int
    decision: Decision | None
    verifier_moved: bool
    invalid: tuple[bool, ...]


# Data and functions in a tuple, so that a protocol can be hashed: caches throughout the core are
# keyed by it, and `_replace` makes a variant of any game.
class Protocol(NamedTuple):
    """A game as data and small pure functions; `make_protocol` makes one.

    name: of the game, and of the folder of its prompts.
    agents: the agents; an agent is its index here.
    channels: the channels, likewise.
    visibility: `[A, C]` true if the agent sees the channel.
    max_message_rounds: rounds of the longest game.
    min_message_rounds: the first round (counted from 1) in which a decision counts.
    schedule: (round, the game's key) -> who speaks.
    rewards: result of a round -> `[A]` rewards on arriving at a node.
    stance: (agent, the datapoint's stance) -> the verdict that it argues for.
    invalid_ends: True if an invalid reply of a prover ends the game.
    spectrum: the words in which the verifier decides.
    force_guess: what it decides whatever it says; None if it is free.
    channel_order: (agent, round, the game's key) -> the channels in the order in which the agent
        reads them.
    """

    name: str
    agents: tuple[AgentSpec, ...]
    channels: tuple[str, ...]
    visibility: tuple[tuple[bool, ...], ...]
    max_message_rounds: int
    min_message_rounds: int
    schedule: Callable[[int, Key], tuple[Move, ...]]
    rewards: Callable[[Outcome], tuple[float, ...]]
    stance: Callable[[int, int], int]
    invalid_ends: bool = False
    spectrum: SpectrumName = "accept_reject"
    force_guess: ForceGuess | None = None
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


# Asked for by each reply of a run.
@lru_cache(maxsize=256)
def has_answers(protocol: Protocol) -> bool:
    """True if an agent states an answer in some game."""
    games = [fold_in(key(0), game) for game in range(16)]  # a lot may decide who speaks
    rounds = range(protocol.max_message_rounds)
    return any(m.answers for game in games for r in rounds for m in protocol.schedule(r, game))


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
