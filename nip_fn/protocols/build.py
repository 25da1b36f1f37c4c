"""Building blocks of the built-in protocols, and of your own."""

from collections.abc import Callable
from functools import lru_cache

from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.protocol import AgentSpec, Move, Outcome, Protocol
from nip_fn.keys import Key
from nip_fn.params.protocol import CommonProtocolParameters
from nip_fn.protocols.rewards import rewards_of

MoveSchedule = Callable[[int, Key], tuple[Move, ...]]
Rewards = Callable[[Outcome], tuple[float, ...]]

DEFAULTS = CommonProtocolParameters()


def make_protocol(
    *,
    name: str,
    agents: tuple[AgentSpec, ...],
    schedule: MoveSchedule,
    max_message_rounds: int,
    min_message_rounds: int = 1,
    channels: tuple[str, ...] = ("main",),
    visibility: tuple[tuple[bool, ...], ...] | None = None,
    common: CommonProtocolParameters = DEFAULTS,
    rewards: Rewards | None = None,
    fixed_sides: bool = False,
    random_sides: bool = False,
    channel_order: Callable[[int, int, Key], tuple[int, ...]] | None = None,
) -> Protocol:
    """A protocol; by default, of agents that all hear each other in one channel.

    Args:
        name: The protocol's name, and the folder of its prompts.
        agents: The agents; everywhere else an agent is its index here.
        schedule: The moves of a round, given the game's key.
        max_message_rounds: Rounds of the longest game.
        min_message_rounds: The first round (counted from 1) in which a decision counts.
        channels: The channels; everywhere else a channel is its index here.
        visibility: `[A, C]` True if the agent sees the channel; by default everywhere.
        common: The amounts of rewards, and the rules that protocols share: a run's are
            `params.protocol_common`.
        rewards: `[A]` on arriving at a node, given the result of the round; by default by the
            amounts of `common` (see `protocols.rewards`).
        fixed_sides: Provers always argue for the verdict of their spec; otherwise for the one that
            `prover_stance` or `randomize_prover_stance` asks for.
        random_sides: Provers always argue for the verdict of the datapoint, which is a coin's.
        channel_order: The channels in the order in which an agent reads them in a round, given the
            game's key; by default in their own order.
    """
    preset = "random" if common.randomize_prover_stance else common.prover_stance
    side = "random" if random_sides else None if fixed_sides else preset
    is_verifier = tuple(agent.role == "verifier" for agent in agents)

    def stance(agent: int, datapoint_stance: int) -> int:
        if side is None or is_verifier[agent]:
            return agents[agent].default_stance
        return datapoint_stance if side == "random" else {"accept": ACCEPT, "reject": REJECT}[side]

    # `Outcome` holds what a round led to and nothing of what was said: rewards can depend on the
    # result alone, so that a recorded game is paid the same whoever derives it.  Few differ among
    # the rounds of a million games.
    @lru_cache(maxsize=4096)
    def by_amounts(outcome: Outcome) -> tuple[float, ...]:
        sides = (stance(agent, outcome.stance) for agent in range(len(agents)))
        stances = tuple(None if v else side for v, side in zip(is_verifier, sides, strict=True))
        return rewards_of(common, outcome, stances)

    return Protocol(
        name=name,
        agents=agents,
        channels=channels,
        visibility=visibility or ((True,) * len(channels),) * len(agents),
        max_message_rounds=max_message_rounds,
        min_message_rounds=min_message_rounds,
        schedule=schedule,
        rewards=rewards or by_amounts,
        stance=stance,
        invalid_ends=common.prover_invalid_response_penalty is not None,
        spectrum=common.verifier_decision_spectrum,
        force_guess=common.force_guess,
        channel_order=channel_order,
    )


def in_turn(*turns: tuple[Move, ...]) -> MoveSchedule:
    """A schedule that repeats these rounds in their order."""

    def schedule(round_id: int, key: Key) -> tuple[Move, ...]:
        # The key is left alone: only merlin_arthur leaves it to chance who speaks.
        return turns[round_id % len(turns)]

    return schedule
