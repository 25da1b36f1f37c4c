"""Policy gradients: every reply weighed by its advantage, from the same trees as preference pairs.

The replies that an agent gave at one node share their prompt, so the mean of their values is a
baseline that takes no model: A(reply) = V(its child) − mean V(its siblings).
"""

from collections.abc import Callable, Sequence
from math import fsum, sqrt
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from nip_fn.keys import Key
from nip_fn.select.pairs import Candidates, DecisionPoint, candidates
from nip_fn.training.losses import PolicyGradient
from nip_fn.training.trainer import (
    Groups,
    Losses,
    SampleBatch,
    Trainer,
    Update,
    branching_of,
    trained_agents,
)
from nip_fn.trees.backup import Backup, mean_children
from nip_fn.trees.grow import Turn

S = TypeVar("S")

Advantages = tuple[tuple[float, ...], ...]  # `[C]` of each decision point
NormalisedBy = Literal["agent", "position"]


class Advantage(NamedTuple, Generic[S]):
    """A way to weigh the replies at decision points.

    init: the state before the first iteration.
    weigh: (candidates, state) -> the advantages of each point's replies, and the next state.
    """

    init: S
    weigh: Callable[[Candidates, S], tuple[Advantages, S]]


class PolicyGradientState(NamedTuple):
    """The state of `policy_gradient`.

    agents: those that are trained.
    advantage: the state of the advantage.
    """

    agents: tuple[int, ...]
    advantage: Any


def tree_advantage() -> Advantage[None]:
    """A(reply) = V(reply) − mean V of the replies to the same prompt, itself included."""

    def weigh(among: Candidates, state: None) -> tuple[Advantages, None]:
        return tuple(_less(point, _mean(point.value_C)) for point in among.points), state

    return Advantage(None, weigh)


OVER_SIBLINGS, BY_REINFORCE = tree_advantage(), PolicyGradient()


def running_baseline(decay: float = 0.95) -> Advantage[tuple[tuple[int, float], ...]]:
    """A(reply) = V(reply) − b, with a moving average b of each agent's values.

    Role-conditioned advantage estimation (Liu et al. 2025, SPIRAL, arXiv:2506.24119): it needs no
    second reply to a prompt.  b ← decay · b + (1 − decay) · mean V, before it is subtracted; the
    first b is the first mean.
    """

    def weigh(
        among: Candidates, state: tuple[tuple[int, float], ...]
    ) -> tuple[Advantages, tuple[tuple[int, float], ...]]:
        baselines = dict(state)
        for agent, values in _by_agent(among.points).items():
            mean = _mean(values)
            baselines[agent] = decay * baselines.get(agent, mean) + (1 - decay) * mean
        advantages = tuple(_less(point, baselines[point.agent]) for point in among.points)
        return advantages, tuple(sorted(baselines.items()))

    return Advantage((), weigh)


def normalised(advantage: Advantage[S], by: NormalisedBy = "agent") -> Advantage[S]:
    """`advantage` over its root mean square among the replies of an agent, or of its position.

    A position is an agent's turn in a round.  Without it, turns at which more is at stake, or of
    which there are more, would take the whole of a training.
    """

    def group(among: Candidates, point: DecisionPoint) -> tuple[int, int]:
        depth = int(among.trees[point.tree].depth_N[point.parent]) if by == "position" else 0
        return point.agent, depth

    def weigh(among: Candidates, state: S) -> tuple[Advantages, S]:
        advantages, state = advantage.weigh(among, state)
        groups = [group(among, point) for point in among.points]
        members: dict[tuple[int, int], list[float]] = {}
        for name, weights in zip(groups, advantages, strict=True):
            members.setdefault(name, []).extend(weights)
        scales = {name: root_mean_square(weights) or 1.0 for name, weights in members.items()}
        scaled = (
            tuple(weight / scales[name] for weight in weights)
            for name, weights in zip(groups, advantages, strict=True)
        )
        return tuple(scaled), state

    return advantage._replace(weigh=weigh)


def policy_gradient(
    advantage: Advantage[Any] = OVER_SIBLINGS,
    loss: Losses = BY_REINFORCE,
    backup: Backup = mean_children,
    *,
    k: int | Callable[[Turn], int] = 4,
    frozen_k: int = 1,
) -> Trainer[PolicyGradientState]:
    """Rows of all replies to a prompt, weighed by their advantages.

    Args:
        advantage: The weights of the replies.
        loss: Of the rows: any that takes weights of both signs.
        backup: The values that advantages are differences of.
        k: Replies of an agent at a node, as in `malt`.
        frozen_k: With a number, those of frozen agents.
    """

    def init(groups: Groups) -> PolicyGradientState:
        return PolicyGradientState(trained_agents(groups), advantage.init)

    def update(
        batch: SampleBatch, state: PolicyGradientState, key: Key
    ) -> Update[PolicyGradientState]:
        among = candidates(
            *(batch.trees, batch.protocol, backup),
            agents=state.agents,
            excluded=batch.off_policy,
            least=1,
        )
        advantages, advantage_state = advantage.weigh(among, state.advantage)
        weighed = [
            (point, weights)
            for point, weights in zip(among.points, advantages, strict=True)
            # Where all replies are worth the same there is nothing to learn.
            if max(map(abs, weights)) > point.slack
        ]
        rows = {
            group.name: tuple(
                batch.sibling_row(point, weights)
                for point, weights in weighed
                if point.agent in group.agents
            )
            for group in batch.groups
        }
        metrics = advantage_metrics(among, advantages)
        return Update(rows, state._replace(advantage=advantage_state), loss, metrics)

    return Trainer(
        init, lambda state, turns: branching_of(k, frozen_k, state.agents, turns), update
    )


def advantage_metrics(among: Candidates, advantages: Advantages) -> tuple[tuple[str, float], ...]:
    """The size of an agent's advantages.

    AGENT.advantage: their root mean square
    AGENT.advantage_share: share of its decision points at which any of them is not 0
    """
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(among.protocol.agents):
        weighed = [
            weights
            for point, weights in zip(among.points, advantages, strict=True)
            if point.agent == index
        ]
        if weighed:
            slack = among.equal_within(index)
            used = sum(max(map(abs, weights)) > slack for weights in weighed)
            size = root_mean_square([weight for weights in weighed for weight in weights])
            metrics += (
                (f"{agent.name}.advantage", size),
                (f"{agent.name}.advantage_share", used / len(weighed)),
            )
    return tuple(metrics)


def root_mean_square(values: Sequence[float]) -> float:
    """√(mean of squares); exactly rounded sums, so that no order of the values shows."""
    return sqrt(fsum(value * value for value in values) / len(values))


def _less(point: DecisionPoint, baseline: float) -> tuple[float, ...]:
    """The values of a point's replies less a baseline; what differs by rounding alone is 0."""
    gaps = (value - baseline for value in point.value_C)
    return tuple(0.0 if abs(gap) <= point.slack else gap for gap in gaps)


def _by_agent(points: Sequence[DecisionPoint]) -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for point in points:
        values.setdefault(point.agent, []).extend(point.value_C)
    return values


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
