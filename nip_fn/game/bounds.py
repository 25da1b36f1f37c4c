"""The least and the most that an agent can receive in a game, from the game's own rules."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, combinations, product

from nip_fn.game.decision import SPECTRA, Decision, combined
from nip_fn.game.episode import Episode, forced_decision, may_decide, outcome_of
from nip_fn.game.protocol import Outcome, Protocol, verifier_rounds
from nip_fn.keys import fold_in, key

Range = tuple[float, float]  # the least and the most


def reward_bounds(protocol: Protocol, agent: int) -> Range:
    """The least and the most that the agent can receive in a game, over all labels and stances."""
    return _bounds(protocol)[agent]


def reward_mid_point(protocol: Protocol, agent: int) -> float:
    """Half-way between the least and the most that the agent can receive in a game."""
    return sum(reward_bounds(protocol, agent)) / 2


# Derived and not a field of the protocol: beside `rewards` it could contradict them, as after
# `protocol._replace(rewards=...)`.
@lru_cache(maxsize=256)
def _bounds(protocol: Protocol) -> tuple[Range, ...]:
    return _union(_totals(protocol, episode) for episode in _openings(protocol))


def _openings(protocol: Protocol) -> Iterator[Episode]:
    """A game of each label, stance and order of speakers."""
    # A schedule may leave it to chance who speaks; so many games are enough to meet each case.
    keys = [fold_in(key(0), game) for game in range(16)]
    rounds = range(protocol.max_message_rounds)
    orders = {tuple(protocol.schedule(r, game) for r in rounds): game for game in keys}
    for game, label, stance in product(orders.values(), (0, 1), (0, 1)):
        yield Episode(game, label, stance)


def _totals(protocol: Protocol, episode: Episode) -> tuple[Range, ...]:
    """`[A]` ranges of the sums of rewards, by induction from the last round to the first."""
    nothing = ((0.0, 0.0),) * len(protocol.agents)
    later = nothing
    for round in reversed(range(verifier_rounds(protocol, episode.key)[-1] + 1)):
        later = _union(
            tuple(
                (reward + least, reward + most)
                for reward, (least, most) in zip(
                    protocol.rewards(outcome),
                    later if outcome.status == "open" else nothing,
                    strict=True,
                )
            )
            for outcome in set(_outcomes(protocol, episode, round))
        )
    return later


def _outcomes(protocol: Protocol, episode: Episode, round: int) -> Iterator[Outcome]:
    """The results that a round of the game can have."""
    movers = tuple(move.agent for move in protocol.schedule(round, episode.key))
    deciders = {agent for agent in movers if may_decide(protocol, round, agent)}
    forced = forced_decision(protocol, episode) if deciders else None
    # A verifier whose decision is forced is never invalid.
    fallible = [agent for agent in movers if forced is None or agent not in deciders]
    subsets = (combinations(fallible, size) for size in range(len(fallible) + 1))
    for unusable in chain.from_iterable(subsets):
        if forced is not None:
            decisions: tuple[Decision | None, ...] = (forced,)
        elif not deciders & set(unusable) and deciders:
            spectrum = SPECTRA[protocol.spectrum]
            together = product(spectrum, repeat=len(deciders)) if len(deciders) > 1 else ()
            decisions = (None, *spectrum, *map(combined, together))
        else:
            decisions = (None,)
        for decision in decisions:
            yield outcome_of(protocol, episode, round, movers, decision, unusable)
    if any(move.answers for move in protocol.schedule(round, episode.key)):
        yield outcome_of(protocol, episode, round, movers, None, (), is_unchecked=True)


def _union(ranges: Iterable[tuple[Range, ...]]) -> tuple[Range, ...]:
    """For each agent the range of all its ranges."""
    return tuple(
        (min(least for least, _ in of_agent), max(most for _, most in of_agent))
        for of_agent in zip(*ranges, strict=True)
    )
