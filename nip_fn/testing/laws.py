"""The laws of protocols, which `check_protocol` looks through.

A law is a generator function: its name says what must hold, what it yields is where it does not.

    LAWS       look at the protocol itself: its agents, channels, schedule, bounds
    GAME_LAWS  look at one game of random play at a time
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations, product
from math import isfinite
from re import findall
from typing import NamedTuple

import msgspec

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.episode import Episode, movers, play_round
from nip_fn.game.protocol import Move, Protocol, channels_seen, has_answers, verifier_rounds
from nip_fn.keys import Key
from nip_fn.params.run import DEFAULT_AGENT
from nip_fn.prompts.chat import history
from nip_fn.trees.node import Node

# Bounds are sums of the same amounts in another order than a game's.
# Unlike a random word, it says by itself who should have heard it.
WORD = r"\[r\d+ a\d+ c\d+\]"  # said in random play: its round, agent and channel


class Violation(NamedTuple):
    """A place at which a law does not hold."""

    where: str  # the round, agent, channel
    problem: str
    remedy: str


class Subject(NamedTuple):
    """A protocol under scrutiny."""

    protocol: Protocol
    again: Protocol  # made afresh from the same parameters
    keys: tuple[Key, ...]  # of the games
    rounds: tuple[tuple[int, tuple[Move, ...]], ...]  # every (round, who speaks) in them

    @property
    def agents(self) -> range:
        """The indices of the agents."""
        return range(len(self.protocol.agents))

    def at(self, round: int | None, agent: int | None = None, channel: int | None = None) -> str:
        """A place by its names."""
        return ", ".join(
            [
                *([] if round is None else [f"round {round}"]),
                *([] if agent is None else [f"agent {self.protocol.agents[agent].name!r}"]),
                *([] if channel is None else [f"channel {self.protocol.channels[channel]!r}"]),
            ]
        )


class PlayedGame(NamedTuple):
    """One game of random play."""

    start: Episode
    root: Node  # a tree with one branch
    nodes: tuple[Node, ...]  # [R] after each round
    episode: Episode  # at its end


Law = Callable[[Subject], Iterator[Violation]]
GameLaw = Callable[[Subject, PlayedGame], Iterator[Violation]]


# ----------------------------------------------------------------------- laws of a protocol itself


# Many caches of the core are keyed by protocols, so this law comes first: where it fails, the
# others may raise.
def fields_are_immutable(subject: Subject) -> Iterator[Violation]:
    """A protocol can be hashed."""
    try:
        frozenset([subject.protocol])
    except TypeError as error:
        yield Violation("protocol", str(error), "write tuples, not lists")


def names_are_unique(subject: Subject) -> Iterator[Violation]:
    """Agents and channels can be told apart by name, and agents configured by it."""
    agents = tuple(agent.name for agent in subject.protocol.agents)
    named = {"agent": agents, "channel": subject.protocol.channels}
    for noun, names in {"protocol": (subject.protocol.name,), **named}.items():
        for index, name in enumerate(names):
            if not name.strip():
                yield Violation(f"{noun} {index}", "it has no name", "give it one")
            elif name in names[:index]:
                yield Violation(f"{noun} {index}", f"there is {name!r} already", "rename it")
            # A dot would make the address of the agent's parameters ambiguous.
            elif noun == "agent" and (name == DEFAULT_AGENT or "." in name):
                problem = f"{name!r} cannot stand in `agents.NAME.FIELD`"
                yield Violation(f"{noun} {index}", problem, "rename it")


def verifiers_decide_together(subject: Subject) -> Iterator[Violation]:
    """An agent decides, or several that move in the same rounds."""
    roles = [agent.role for agent in subject.protocol.agents]
    verifiers = {agent for agent, role in enumerate(roles) if role == "verifier"}
    if not verifiers:
        yield Violation("agents", f"none of {len(roles)} is a verifier", "have one that decides")
    # A game comes to one decision: that of one verifier, or the mean of all of them.
    for round, moves in subject.rounds:
        moving = verifiers & {move.agent for move in moves}
        if moving and moving != verifiers:
            problem = f"{len(moving)} of {len(verifiers)} verifiers move"
            remedy = "have exactly one verifier, or let all move in the same rounds"
            yield Violation(subject.at(round), problem, remedy)


def answers_are_written_before_they_are_judged(subject: Subject) -> Iterator[Violation]:
    """In a round one prover at most writes an answer, and no decision counts before the first."""
    protocol = subject.protocol
    for round, moves in subject.rounds:
        writers = [move.agent for move in moves if move.answers]
        if len(writers) > 1:
            remedy = "let one prover answer in a round; the label is that of the last answer"
            yield Violation(subject.at(round), f"{len(writers)} answers at once", remedy)
        for agent in writers:
            if protocol.agents[agent].role != "prover":
                remedy = "let a prover answer"
                yield Violation(subject.at(round, agent), "it answers, and is no prover", remedy)
    for game_key in subject.keys if has_answers(protocol) else ():
        rounds = range(protocol.max_message_rounds)
        answered = [r for r in rounds if any(m.answers for m in protocol.schedule(r, game_key))]
        if not answered or protocol.min_message_rounds - 1 <= answered[0]:
            problem = f"answers are written in rounds {answered}, and decisions count from "
            remedy = "let an answer be written first, and raise min_message_rounds"
            at = f"{protocol.min_message_rounds - 1} on"
            yield Violation("a game", problem + at, remedy)
            return


def visibility_is_a_table(subject: Subject) -> Iterator[Violation]:
    """It says of every agent and channel who sees what."""
    num_channels = len(subject.protocol.channels)
    lengths = [len(row) for row in subject.protocol.visibility]
    if lengths != [num_channels for _ in subject.agents]:
        remedy = f"make it {len(subject.agents)} rows (agents) of {num_channels} (channels)"
        yield Violation("visibility", f"the lengths of its rows are {lengths}", remedy)


def stances_are_verdicts(subject: Subject) -> Iterator[Violation]:
    """An agent argues for acceptance (1) or rejection (0)."""
    for agent, side in product(subject.agents, (REJECT, ACCEPT)):
        stance = subject.protocol.stance(agent, side)
        if stance not in (REJECT, ACCEPT):
            problem = f"its stance is {stance!r} where the datapoint's is {side}"
            yield Violation(subject.at(None, agent), problem, "let `stance` return 0 or 1")


def headers_tell_channels_apart(subject: Subject) -> Iterator[Violation]:
    """Who speaks in several channels at once begins each part with a header of its own."""
    for agent, channels, _ in {move for _, moves in subject.rounds for move in moves}:
        headers = dict(subject.protocol.agents[agent].headers) if len(channels) > 1 else {}
        for channel in channels if len(channels) > 1 else ():
            if not headers.get(channel, "").strip():
                remedy = f"add ({channel}, 'Message to ...:') to the headers of its AgentSpec"
                problem = "it speaks here and elsewhere at once, and has no header"
                yield Violation(subject.at(None, agent, channel), problem, remedy)
        # A header inside another one would be found at the same place, and a part of the message be
        # lost.
        for inner, outer in permutations(filter(headers.get, channels), 2):
            if _searched(headers[inner]) in _searched(headers[outer]):
                problem = f"its header {headers[inner]!r} is found in {headers[outer]!r}"
                remedy = "let no header be the beginning or a part of another"
                yield Violation(subject.at(None, agent, inner), problem, remedy)


def agents_speak_where_they_see(subject: Subject) -> Iterator[Violation]:
    """Those who move exist, and so do their channels, of which they see every one."""
    for round, (agent, channels, _) in _moves(subject):
        if agent not in subject.agents:
            yield Violation(f"round {round}", f"there is no agent {agent}", "correct `schedule`")
        elif not channels:
            remedy = "name its channels in the Move"
            yield Violation(subject.at(round, agent), "it speaks in no channel", remedy)
        for channel in channels if agent in subject.agents else ():
            if channel not in range(len(subject.protocol.channels)):
                problem = f"there is no channel {channel}"
                yield Violation(subject.at(round, agent), problem, "correct `schedule`")
            elif not subject.protocol.visibility[agent][channel]:
                remedy = "let it see the channel, or not speak there"
                where = subject.at(round, agent, channel)
                yield Violation(where, "it speaks where it cannot see", remedy)


def nobody_speaks_over_another(subject: Subject) -> Iterator[Violation]:
    """In one round an agent moves once at most, and a channel carries one message at most."""
    for round, moves in subject.rounds:
        for agent, times in Counter(move.agent for move in moves).items():
            if times > 1:
                remedy = "give it one Move with all its channels"
                yield Violation(subject.at(round, agent), f"it moves {times} times", remedy)
        for channel, times in Counter(c for move in moves for c in move.channels).items():
            if times > 1:
                remedy = "let one speak in another round or channel, or its message is lost"
                where = subject.at(round, channel=channel)
                yield Violation(where, f"{times} messages at once", remedy)


def somebody_speaks_in_every_round(subject: Subject) -> Iterator[Violation]:
    """A game does not stop for want of a speaker."""
    for round, moves in subject.rounds:
        if not moves:
            remedy = "let `schedule` return a Move in every round up to the verifier's last"
            yield Violation(subject.at(round), "nobody speaks, so the game cannot go on", remedy)


def every_agent_speaks(subject: Subject) -> Iterator[Violation]:
    """No agent is idle under every key."""
    speakers = {move.agent for _, move in _moves(subject)}
    for agent in subject.agents:
        if agent not in speakers:
            problem = f"it has no turn in any of {len(subject.keys)} games"
            remedy = "give it one before the verifier's last, or leave it out"
            yield Violation(subject.at(None, agent), problem, remedy)


def the_verifier_can_decide(subject: Subject) -> Iterator[Violation]:
    """Under every key the verifier has a turn in which its decision counts."""
    least, most = subject.protocol.min_message_rounds, subject.protocol.max_message_rounds
    for game_key in subject.keys:
        turns = verifier_rounds(subject.protocol, game_key)
        if not turns or turns[-1] < least - 1:
            problem = (
                f"it speaks in rounds {turns} of {most}, and decisions count from {least - 1} on"
            )
            remedy = "correct `schedule`, lower min_message_rounds or raise max_message_rounds"
            yield Violation("the verifier", problem, remedy)


def chance_comes_from_the_key(subject: Subject) -> Iterator[Violation]:
    """Asked again, and made again, a protocol says the same."""
    # Twice by one protocol, which finds a generator that moves on, and once by another, which finds
    # chance that was drawn when the protocol was made.
    protocol, thrice = subject.protocol, (subject.protocol, subject.protocol, subject.again)
    remedy = "draw from the key and nothing else, as `choice(fold_in(key, 'speaker', round), 2)`"
    for game_key, round in product(subject.keys, range(protocol.max_message_rounds)):
        if _differ(repeat.schedule(round, game_key) for repeat in thrice):
            yield Violation(subject.at(round), "the schedule of one key varies", remedy)
    for agent, round, game_key in _readings(subject):
        if _differ(channels_seen(repeat, agent, round, game_key) for repeat in thrice):
            problem = "the channel order of one key varies"
            yield Violation(subject.at(round, agent), problem, remedy)


def channel_orders_are_complete(subject: Subject) -> Iterator[Violation]:
    """An agent reads each channel that it sees, once."""
    order, channels = subject.protocol.channel_order, range(len(subject.protocol.channels))
    for agent, round, game_key in _readings(subject):
        read = order(agent, round, game_key) if order else channels
        seen = {channel for channel in channels if subject.protocol.visibility[agent][channel]}
        if len(set(read)) != len(read) or not seen <= set(read) <= set(channels):
            remedy = "let `channel_order` return a permutation of the channels"
            problem = f"it reads {read}, and sees {sorted(seen)}"
            yield Violation(subject.at(round, agent), problem, remedy)


LAWS: tuple[Law, ...] = (
    fields_are_immutable,
    names_are_unique,
    verifiers_decide_together,
    answers_are_written_before_they_are_judged,
    visibility_is_a_table,
    stances_are_verdicts,
    headers_tell_channels_apart,
    agents_speak_where_they_see,
    nobody_speaks_over_another,
    somebody_speaks_in_every_round,
    every_agent_speaks,
    the_verifier_can_decide,
    chance_comes_from_the_key,
    channel_orders_are_complete,
)


# ------------------------------------------------------------------------------- laws of its games


def games_end(subject: Subject, game: PlayedGame) -> Iterator[Violation]:
    """Every game ends, within `max_message_rounds`."""
    num, most = len(game.nodes), subject.protocol.max_message_rounds
    if game.episode.status == "open" or num > most:
        problem = f"it is {game.episode.status} after {num} of {most} rounds"
        yield Violation("a game", problem, "let somebody speak in every round, and last a verifier")


def the_end_is_final(subject: Subject, game: PlayedGame) -> Iterator[Violation]:
    """Once a game is over nobody moves, and `play_round` refuses a turn."""
    where, remedy = subject.at(len(game.nodes)), "let no round follow the end"
    if game.episode.status != "open":
        if movers(subject.protocol, game.episode):
            yield Violation(where, "somebody moves after the end", remedy)
        try:
            play_round(subject.protocol, game.episode, game.nodes[-1].utterances)
        except ValueError:
            return
        yield Violation(where, "`play_round` goes on after the end", remedy)


def the_four_ends_are_told_apart(subject: Subject, game: PlayedGame) -> Iterator[Violation]:
    """Decided, broken off by an invalid reply, out of rounds, and not checked are four things."""
    protocol = subject.protocol
    for round, node in enumerate(game.nodes):
        verdicts = [u for u in node.utterances if protocol.is_verifier(u.agent)]
        decided = bool(verdicts) and all(verdict.decision is not None for verdict in verdicts)
        unchecked = any(utterance.is_unchecked for utterance in node.utterances)
        broken = protocol.invalid_ends and any(
            utterance.error is not None and not protocol.is_verifier(utterance.agent)
            for utterance in node.utterances
        )
        last = round == verifier_rounds(protocol, game.start.key)[-1]
        end = "decided" if decided else "truncated" if last else "aborted" if broken else "open"
        end = "unchecked" if unchecked else end
        if node.status != end:
            problem = f"the game is {node.status!r} where it should be {end!r}: {node.utterances}"
            yield Violation(subject.at(round), problem, f"end it as {end!r}")


def rewards_are_finite(subject: Subject, game: PlayedGame) -> Iterator[Violation]:
    """A round pays each agent a finite amount."""
    for round, node in enumerate(game.nodes):
        if len(node.reward) != len(subject.agents) or not all(map(isfinite, node.reward)):
            problem = f"{len(subject.agents)} agents get {node.reward}"
            remedy = "let `rewards` return a finite number for each"
            yield Violation(subject.at(round), problem, remedy)
            return


def agents_hear_what_they_see(subject: Subject, game: PlayedGame) -> Iterator[Violation]:
    """An agent's chat holds its own words, and those of others where it can see, once each."""
    for agent in subject.agents:
        chat = history(subject.protocol, game.episode, agent, named=False)
        heard = Counter(word for message in chat for word in findall(WORD, message.content))
        audible = Counter(_audible(subject.protocol, game, agent))
        lost = "it does not hear what is said here"
        for words, problem in ((audible - heard, lost), (heard - audible, "it hears too much")):
            for word in words:
                round, _, channel = map(int, findall(r"\d+", word))
                remedy = "correct `visibility`, `channel_order` or headers"
                yield Violation(subject.at(round, agent, channel), problem, remedy)


def games_can_be_replayed(subject: Subject, game: PlayedGame) -> Iterator[Violation]:
    """The same turns have the same rewards and end under a protocol that is made afresh."""
    episode = game.start
    for round, node in enumerate(game.nodes):
        episode, reward = play_round(subject.again, episode, node.utterances)
        if (reward, episode.status) != (node.reward, node.status):
            problem = (
                f"it comes to {node.reward}, {node.status}, then to {reward}, {episode.status}"
            )
            remedy = "let `rewards` depend on its outcome and nothing else"
            yield Violation(subject.at(round), problem, remedy)
            return


def games_can_be_recorded(subject: Subject, game: PlayedGame) -> Iterator[Violation]:
    """A game and its tree are the same after a round trip through MessagePack."""
    # A reward of a NumPy type compares and adds like any other, and fails only when it is hashed,
    # at the end of a stage.
    for name, record in (("an episode", game.episode), ("a tree", game.root)):
        problem = "it does not come back as it was"
        try:
            recorded = msgspec.msgpack.encode(record)
            if msgspec.msgpack.decode(recorded, type=type(record)) == record:
                continue
        except (TypeError, msgspec.MsgspecError) as error:
            problem = str(error)
        yield Violation(name, problem, "use Python's own numbers, `int(...)` or `float(...)`")


GAME_LAWS: tuple[GameLaw, ...] = (
    games_end,
    the_end_is_final,
    the_four_ends_are_told_apart,
    rewards_are_finite,
    agents_hear_what_they_see,
    games_can_be_replayed,
    games_can_be_recorded,
)


# ----------------------------------------------------------------------------- what laws ask


def _moves(subject: Subject) -> Iterator[tuple[int, Move]]:
    return ((round, move) for round, moves in subject.rounds for move in moves)


def _readings(subject: Subject) -> Iterator[tuple[int, int, Key]]:
    """(agent, round, key), as many as it takes to see that an order is not kept."""
    rounds = range(subject.protocol.max_message_rounds)
    return product(subject.agents, rounds, subject.keys[:20])


def _differ(values: Iterable[object]) -> bool:
    first, *repeats = values
    return any(repeat != first for repeat in repeats)


def _searched(header: str) -> str:
    """A header as a reply is searched for it: in any case, with or without underscores."""
    return header.casefold().replace("_", " ")


def word_of(round: int, agent: int, channel: int) -> str:
    """The word of an agent in a channel in random play; `WORD` finds it."""
    return f"[r{round} a{agent} c{channel}]"


def _audible(protocol: Protocol, game: PlayedGame, agent: int) -> Iterator[str]:
    """The words that belong into the agent's chat."""
    for round, turn in enumerate(game.episode.rounds):
        channels = {move.agent: move.channels for move in protocol.schedule(round, game.start.key)}
        for utterance in turn:
            if utterance.agent == agent:
                yield from findall(WORD, utterance.raw)
            elif utterance.messages:
                # By the schedule and the visibility alone, not by the chat's own functions, which
                # are what this law holds to account.
                seen = (c for c in channels[utterance.agent] if protocol.visibility[agent][c])
                yield from (word_of(round, utterance.agent, channel) for channel in seen)
