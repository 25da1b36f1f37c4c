"""Expert Iteration's choice: which dialogues an agent should imitate."""

from collections.abc import Sequence
from math import fsum
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, generator, permutation

if TYPE_CHECKING:
    from nip_fn.params.training import PureTextEiParameters, TextRlParameters


RolloutSelection = Literal["threshold", "weighted_sampling"]
Annealing = Literal["none", "linear", "exponential"]


class SelectedRollout(msgspec.Struct, frozen=True, array_like=True):
    """A dialogue that an agent is to learn from."""

    tree: int
    agent: int
    reward: float  # of the agent, in all
    replaced: bool = False  # its last message is to be the true label


def above_threshold(rewards_D: Sequence[float], threshold: float) -> tuple[int, ...]:
    """The dialogues whose reward is at least the threshold, in their order."""
    return tuple(i for i, reward in enumerate(rewards_D) if reward >= threshold)


def sampling_weights(
    rewards_D: Sequence[float], *, minimum: float | None, epsilon: float
) -> NDArray[np.float64]:
    """`[D]` probabilities: w = max(r, m) - m over their sum, plus ε/D, over the sum of that.

    m is the minimum given, or the least reward.  Equal rewards get equal probabilities.

    >>> sampling_weights([0.0, 1.0, 3.0], minimum=None, epsilon=0.0).tolist()
    [0.0, 0.25, 0.75]
    """
    num = len(rewards_D)
    least = min(rewards_D) if minimum is None else minimum
    weights = [max(reward, least) - least for reward in rewards_D]
    total = fsum(weights)
    shares = [weight / total for weight in weights] if total > 0 else [1 / num] * num
    smoothed = [share + epsilon / num for share in shares]
    return np.array(smoothed) / fsum(smoothed)


def weighted_sample(
    rewards_D: Sequence[float], ei: "PureTextEiParameters", key: Key
) -> tuple[int, ...]:
    """A draw of round(factor D) dialogues by weight, in their order; `key` is consumed.

    Without replacement a dialogue of weight 0 is never drawn, so there may be fewer.
    """
    if not rewards_D:
        return ()
    weights = sampling_weights(
        rewards_D, minimum=ei.weighting_minimum, epsilon=ei.weighting_epsilon
    )
    size = round(ei.weighting_sample_size_factor * len(rewards_D))
    if not ei.weighting_use_replacement:
        size = min(size, int(np.count_nonzero(weights)))
    replace = ei.weighting_use_replacement
    drawn = generator(key).choice(len(rewards_D), size, replace=replace, p=weights)
    return tuple(sorted(int(index) for index in drawn))


def select_rollouts(
    rewards_D: Sequence[float], ei: "PureTextEiParameters", key: Key
) -> tuple[int, ...]:
    """The dialogues to learn from, by index; `key` is consumed by a weighted draw."""
    if ei.rollout_selection_method == "threshold":
        return above_threshold(rewards_D, ei.reward_threshold)
    return weighted_sample(rewards_D, ei, key)


def replacement_share(text_rl: "TextRlParameters", iteration: int) -> float:
    """The share p of rollouts whose verdict is replaced, annealed at rate r in iteration i.

    none  p        linear  max(p - i r, 0)        exponential  p (1 - r)^i
    """
    share = text_rl.verifier_guess_replacement_proportion
    rate = text_rl.verifier_guess_replacement_annealing_rate
    match text_rl.verifier_guess_replacement_annealing:
        case "linear":
            return max(share - iteration * rate, 0.0)
        case "exponential":
            return float(share * (1 - rate) ** iteration)
    return share


def selected_rollout_metrics(
    protocol: Protocol, chosen: Sequence[SelectedRollout]
) -> tuple[tuple[str, float], ...]:
    """AGENT.chosen: dialogues to learn from;  AGENT.replaced: of these, with the true label."""
    return tuple(
        (f"{agent.name}.{name}", float(count))
        for index, agent in enumerate(protocol.agents)
        for own in [[one for one in chosen if one.agent == index]]
        for name, count in (("chosen", len(own)), ("replaced", sum(one.replaced for one in own)))
    )


def select_for_agent(
    rewards_D: Sequence[float],
    *,
    agent: int,
    is_verifier: bool,
    ei: "PureTextEiParameters",
    share: float,
    key: Key,
) -> tuple[SelectedRollout, ...]:
    """What one agent is to learn from; `key` is consumed.

    A verifier learns the true label from a share of all dialogues, drawn uniformly, and imitates
    what is selected from the others.
    """
    num_replaced = int(share * len(rewards_D)) if is_verifier else 0
    order = permutation(fold_in(key, "replace"), len(rewards_D)).tolist() if num_replaced else []
    replaced = set(order[:num_replaced])
    others = [tree for tree in range(len(rewards_D)) if tree not in replaced]
    picked = select_rollouts([rewards_D[tree] for tree in others], ei, fold_in(key, "select"))
    return (
        *(SelectedRollout(others[index], agent, rewards_D[others[index]]) for index in picked),
        *(
            SelectedRollout(tree, agent, rewards_D[tree], replaced=True)
            for tree in sorted(replaced)
        ),
    )
