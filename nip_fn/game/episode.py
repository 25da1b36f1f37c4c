"""The environment: `reset`, `movers`, `play_round`, pure functions over a frozen `Episode`."""

from collections.abc import Collection, Iterable, Sequence
from math import fsum

import msgspec
from msgspec.structs import replace

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import SPECTRA, Decision, combined, strongest
from nip_fn.game.protocol import Move, Outcome, Protocol, Status, verifier_rounds
from nip_fn.game.reply import ReplyError
from nip_fn.game.tokens import SampledTokens
from nip_fn.keys import Key


class Utterance(msgspec.Struct, frozen=True, array_like=True):
    """The reply of one agent in one round, as it was written and as it was understood."""

    agent: int
    raw: str  # the model's text, untouched
    messages: tuple[tuple[int, str], ...] = ()  # (channel, text)
    decision: Decision | None = None
    error: ReplyError | None = None  # the reason why the last attempt was unusable
    attempts: int = 1
    token_limit: bool = False
    model: str = ""  # the model or adapter that wrote it
    prompt_tokens: int = 0  # of all attempts together
    completion_tokens: int = 0
    cached_tokens: int = 0
    tokens: SampledTokens | None = None  # of the last attempt, where the provider gave them
    verdict_probabilities: tuple[float, ...] = ()  # [D] of the spectrum's decisions, where known
    answer: str | None = None  # that it states, where its move is to state one
    label: int | None = None  # of the answer: 1 right, 0 wrong or none stated, None not checked

    @property
    def is_unchecked(self) -> bool:
        """True if it states an answer that has no label."""
        return self.answer is not None and self.label is None


def was_empty_at_limit(utterance: Utterance) -> bool:
    """True if the agent wrote nothing before its token limit, as often as it was asked."""
    return utterance.token_limit and utterance.error == "no_content"


Round = tuple[Utterance, ...]  # the utterances of one round, in the schedule's order


# Of the datapoint only what rewards depend on.  Its texts are for chats, which are given the
# datapoint itself.
class Episode(msgspec.Struct, frozen=True):
    """A game so far.

    key: of the game; decides whatever the protocol leaves to chance.
    label: that of the last answer, or of the datapoint; None before there is an answer.
    stance: that of the datapoint.
    rounds: the utterances of each round that was played, in the schedule's order.
    status: "open" while it goes on.
    """

    key: Key
    label: int | None
    stance: int
    rounds: tuple[Round, ...] = ()
    status: Status = "open"


def reset(datapoint: Datapoint, key: Key) -> Episode:
    """A new game about the datapoint; `key` is consumed by the game's schedule."""
    return Episode(key=key, label=datapoint.label, stance=datapoint.stance)


def label_after(label: int | None, rounds: Iterable[Round]) -> int | None:
    """The label after these rounds: of the last answer in them, or else `label`."""
    for turn in rounds:
        for utterance in turn:
            if utterance.answer is not None or utterance.label is not None:
                label = utterance.label
    return label


def final_verdict(status: Status, rounds: Sequence[Round]) -> Utterance | None:
    """The reply whose decision ended a game; None if it ended otherwise, or several decided."""
    if status != "decided":
        return None
    deciding = [u for turn in rounds[-1:] for u in turn if u.decision is not None]
    return deciding[0] if len(deciding) == 1 else None


def final_decision(status: Status, rounds: Sequence[Round]) -> Decision | None:
    """The decision that ended a game; None if it ended otherwise."""
    return decision_of(rounds[-1]) if status == "decided" and rounds else None


def decision_of(turn: Round) -> Decision | None:
    """The decision of a round; None if nobody decided."""
    decisions = [utterance.decision for utterance in turn if utterance.decision is not None]
    return combined(decisions) if decisions else None


def movers(protocol: Protocol, episode: Episode) -> tuple[Move, ...]:
    """The agents that speak next; nobody once the game is over."""
    if episode.status != "open":
        return ()
    return protocol.schedule(len(episode.rounds), episode.key)


def may_decide(protocol: Protocol, round: int, agent: int) -> bool:
    """True if a decision of the agent counts in that round."""
    # Only verifiers are searched for a decision: a prover that quotes the marker would otherwise
    # lose its message, as it does in the *nip* library.
    return protocol.is_verifier(agent) and round >= protocol.min_message_rounds - 1


def forced_decision(protocol: Protocol, episode: Episode) -> Decision | None:
    """The verifier's decision under `force_guess`, whatever it says; None if it is free."""
    # "y" is a verifier that is always right, the constants are verifiers that never listen:
    # controls, against which provers can be compared.
    match protocol.force_guess:
        case "zero":
            return strongest(protocol.spectrum, 0)
        case "one":
            return strongest(protocol.spectrum, 1)
        case "y" if episode.label is not None:
            return strongest(protocol.spectrum, episode.label)
    return None


def play_round(
    protocol: Protocol, episode: Episode, turn: Round
) -> tuple[Episode, tuple[float, ...]]:
    """The game after one more round, and the reward of each agent for it (`[A]`).

    Raises:
        ValueError: The turn is not that of the agents and channels of the schedule.
    """
    round = len(episode.rounds)
    # The turns of a tree pass these tests by construction, and it calls `arrive`.
    channels = {move.agent: move.channels for move in movers(protocol, episode)}
    if episode.status != "open":
        raise ValueError(f"the game of {protocol.name} is over after {round} rounds")
    if len(turn) != len(channels) or {utterance.agent for utterance in turn} != channels.keys():
        raise ValueError(f"round {round} of {protocol.name} is not these agents' turn: {turn}")
    for utterance in turn:
        if any(channel not in channels[utterance.agent] for channel, _ in utterance.messages):
            raise ValueError(
                f"round {round} of {protocol.name}: not a channel to speak in: {utterance}"
            )
        if utterance.decision is not None and not may_decide(protocol, round, utterance.agent):
            raise ValueError(
                f"round {round} of {protocol.name}: no decision counts here: {utterance}"
            )
    return arrive(protocol, episode, turn)


def arrive(protocol: Protocol, episode: Episode, turn: Round) -> tuple[Episode, tuple[float, ...]]:
    """The result of `play_round` for a turn that is known to be of the schedule."""
    outcome = _outcome(protocol, episode, turn)
    rounds = (*episode.rounds, turn)
    arrived = Episode(episode.key, outcome.label, episode.stance, rounds, outcome.status)
    return arrived, protocol.rewards(outcome)


def expected_rewards(protocol: Protocol, episode: Episode, turn: Round) -> tuple[float, ...]:
    """`[A]` the rewards of a turn that decides the game, in expectation over its verdict.

    Σ p(d) r(d) over the decisions d of the spectrum, with the recorded probabilities p; () if the
    turn decides nothing, several decide together, or they are not known.
    """
    deciding = [utterance for utterance in turn if utterance.decision is not None]
    probability_D = deciding[0].verdict_probabilities if len(deciding) == 1 else ()
    if not probability_D:
        return ()
    outcome, spectrum = _outcome(protocol, episode, turn), SPECTRA[protocol.spectrum]
    reward_DA = [protocol.rewards(outcome._replace(decision=decision)) for decision in spectrum]
    return tuple(
        fsum(p * reward for p, reward in zip(probability_D, reward_D, strict=True))
        for reward_D in zip(*reward_DA, strict=True)
    )


def _outcome(protocol: Protocol, episode: Episode, turn: Round) -> Outcome:
    decision, speakers, unusable = decision_of(turn), [], []
    for utterance in turn:
        # Of several verifiers all have to decide: their orders of reading would not weigh alike.
        if utterance.decision is None and protocol.is_verifier(utterance.agent):
            decision = None
        speakers.append(utterance.agent)
        if utterance.error is not None:
            unusable.append(utterance.agent)
    return outcome_of(
        protocol,
        replace(episode, label=label_after(episode.label, (turn,))),
        len(episode.rounds),
        speakers,
        decision,
        unusable,
        is_unchecked=any(utterance.is_unchecked for utterance in turn),
    )


def outcome_of(
    protocol: Protocol,
    episode: Episode,
    round: int,
    speakers: Collection[int],
    decision: Decision | None,
    unusable: Collection[int],
    *,
    is_unchecked: bool = False,
) -> Outcome:
    """The result of a round.

    Args:
        protocol: The game.
        episode: The game before the round, with the label after it; its rounds are not read.
        round: Counted from 0.
        speakers: The agents that spoke.
        decision: A verifier's, if one decided where it counts.
        unusable: The agents whose reply could not be used.
        is_unchecked: True if an answer was written that could not be checked.
    """
    invalid = tuple(agent in unusable for agent in range(len(protocol.agents)))
    end = "unchecked" if is_unchecked else _end(protocol, episode.key, round, decision, invalid)
    return Outcome(
        status=end,
        label=episode.label,
        stance=episode.stance,
        decision=decision if end == "decided" else None,
        verifier_moved=any(map(protocol.is_verifier, speakers)),
        invalid=invalid,
    )


def _end(
    protocol: Protocol, key: Key, round: int, decision: Decision | None, invalid: tuple[bool, ...]
) -> Status:
    # The order matters where a round is several of these at once: a decision counts even if a
    # prover's reply was invalid, and the verifier's last turn is the end in any case.
    if decision is not None:
        return "decided"
    if round >= verifier_rounds(protocol, key)[-1]:
        return "truncated"
    broken_off = protocol.invalid_ends and any(
        bad and not protocol.is_verifier(agent) for agent, bad in enumerate(invalid)
    )
    return "aborted" if broken_off else "open"
