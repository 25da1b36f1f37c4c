"""Building blocks of the built-in protocols, and of your own."""

from collections.abc import Callable
from functools import cache, lru_cache

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.protocol import AgentSpec, Move, Outcome, Protocol, verifier_rounds
from nip_fn.keys import Key, key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols import rewards

Schedule = Callable[[int, Key], tuple[Move, ...]]


def make_protocol(
    params: HyperParameters,
    *,
    name: str,
    agents: tuple[AgentSpec, ...],
    channels: tuple[str, ...],
    visibility: tuple[tuple[bool, ...], ...],
    schedule: Schedule,
    max_message_rounds: int,
    min_message_rounds: int = 1,
    fixed_sides: bool = False,
    random_sides: bool = False,
    channel_order: Callable[[int, int, Key], tuple[int, ...]] | None = None,
) -> Protocol:
    """A protocol with the rewards and rules of `params.protocol_common`.

    The verifier's turns, and with them the bounds of rewards, follow from the schedule.

    Args:
        params: The run's parameters.
        name: The protocol's name, and the folder of its prompts.
        agents: The agents; everywhere else an agent is its index here.
        channels: The channels; everywhere else a channel is its index here.
        visibility: `[A, C]` True if the agent sees the channel.
        schedule: The moves of a round, given the game's key.
        max_message_rounds: Rounds of the longest game.
        min_message_rounds: The first round (counted from 1) in which a decision counts.
        fixed_sides: Provers always argue for the verdict of their spec; otherwise for the one that
            `prover_stance` or `randomize_prover_stance` asks for.
        random_sides: Provers always argue for the verdict of the datapoint, which is a coin's.
        channel_order: The channels in the order in which an agent reads them in a round, given the
            game's key; by default in their own order.
    """
    common = params.protocol_common
    asked = "random" if common.randomize_prover_stance else common.prover_stance
    side = "random" if random_sides else None if fixed_sides else asked
    is_verifier = tuple(agent.role == "verifier" for agent in agents)

    def stance(agent: int, datapoint_stance: int) -> int:
        if side is None or is_verifier[agent]:
            return agents[agent].default_stance
        return datapoint_stance if side == "random" else {"accept": ACCEPT, "reject": REJECT}[side]

    # `Outcome` holds what a round led to and nothing of what was said: rewards can depend on the
    # result alone, so that a recorded game is paid the same whoever derives it.  Few differ among
    # the rounds of a million games.
    @lru_cache(maxsize=4096)
    def reward(outcome: Outcome) -> tuple[float, ...]:
        sides = (stance(agent, outcome.stance) for agent in range(len(agents)))
        known = tuple(None if v else side for v, side in zip(is_verifier, sides, strict=True))
        return rewards.rewards(common, outcome, known)

    @cache
    def bounds(agent: int) -> tuple[float, float]:
        # Under one key: a schedule draws who else speaks, never when the verifier does.
        of_role = rewards.verifier_bounds if is_verifier[agent] else rewards.prover_bounds
        return of_role(common, _turns_of(protocol, key(0)))

    # The functions above refer to this name before it is bound; none is called until it is.  Bounds
    # are derived from the finished schedule, because a table of turns beside it could contradict
    # it.
    protocol = Protocol(
        name=name,
        agents=agents,
        channels=channels,
        visibility=visibility,
        max_message_rounds=max_message_rounds,
        min_message_rounds=min_message_rounds,
        schedule=schedule,
        rewards=reward,
        reward_bounds=bounds,
        stance=stance,
        invalid_ends=common.prover_invalid_response_penalty is not None,
        spectrum=common.verifier_decision_spectrum,
        force_guess=common.force_guess,
        channel_order=channel_order,
    )
    return protocol


def _turns_of(protocol: Protocol, key: Key) -> rewards.Turns:
    """The verifier's turns before each possible end of the game of that key."""
    rounds = verifier_rounds(protocol, key)
    counts_from = protocol.min_message_rounds - 1
    prover_rounds = tuple(
        round_id
        for round_id in range(max(rounds, default=-1) + 1)
        if any(not protocol.is_verifier(m.agent) for m in protocol.schedule(round_id, key))
    )
    return rewards.Turns(
        # A verifier that has waited through w of its turns has been paid for w turns without a
        # decision.
        decided=tuple(wait for wait, turn in enumerate(rounds) if turn >= counts_from),
        rounds=len(rounds) - 1,
        broken_off=tuple(
            sum(turn <= round_id for turn in rounds)
            for round_id in prover_rounds
            if round_id < rounds[-1]
        ),
        penalised=tuple(sum(turn < round_id for turn in rounds) for round_id in prover_rounds),
    )


def in_turn(*turns: tuple[Move, ...]) -> Schedule:
    """A schedule that repeats these rounds in their order."""

    def schedule(round_id: int, key: Key) -> tuple[Move, ...]:
        # The key is left alone: only merlin_arthur leaves it to chance who speaks.
        return turns[round_id % len(turns)]

    return schedule
