"""Rewards that protocols share.  `f` is a decision from -1 (reject) to 1 (accept), `y` the label.

verifier   x = f(2y - 1);  piecewise linear through (-1, incorrect), (0, neither), (1, correct)
prover     a R  when it argues for accept,  (1 - a) R  for reject,  a = (f + 1) / 2
"""

from nip_fn.game.protocol import Outcome
from nip_fn.params.protocol import CommonProtocolParameters


def _neither_reward(common: CommonProtocolParameters) -> float:
    """The verifier's reward for an undecided verdict: given, or half-way between the others."""
    # The mid-point keeps the interpolation a straight line from wrong to right, so that by default
    # a verifier gains nothing by hedging.
    amount = common.verifier_neither_accept_nor_reject_reward
    half_way = (common.verifier_reward + common.verifier_incorrect_penalty) / 2
    return half_way if amount is None else amount


def decision_reward(common: CommonProtocolParameters, x: float) -> float:
    """The verifier's reward for a decision that is right (x = 1), wrong (-1), or in between.

    (1 - |x|) neither + |x| full, which is exactly `full` where |x| is 1, and `neither` where it is
    0.
    """
    # Not neither + |x| (full - neither), by which a sure decision that should earn 0.9 earns
    # 0.8999999999999999: less than a threshold of 0.9 asks for.
    full = common.verifier_reward if x > 0 else common.verifier_incorrect_penalty
    return (1 - abs(x)) * _neither_reward(common) + abs(x) * full


def verifier_reward(common: CommonProtocolParameters, outcome: Outcome) -> float:
    """The verifier's reward on arriving at a node; nothing while no label is known."""
    if outcome.status == "unchecked":
        return 0.0
    if outcome.status == "decided" and outcome.decision is not None:
        label = outcome.label
        confidence = outcome.decision.continuous
        return 0.0 if label is None else decision_reward(common, confidence * (2 * label - 1))
    if outcome.status == "truncated":
        return common.verifier_terminated_penalty
    return common.verifier_no_guess_reward if outcome.verifier_moved else 0.0


def prover_reward(common: CommonProtocolParameters, outcome: Outcome, stance: int) -> float:
    """The reward of a prover that argues for `stance` (1 accept, 0 reject)."""
    if outcome.status != "decided" or outcome.decision is None:
        return 0.0
    # Symmetric, so that every prover gets between 0 and `prover_reward`.  The *nip* library pays
    # -aR for rejection, or pays the two provers of a debate each other's share.
    acceptance = (outcome.decision.continuous + 1) / 2
    return common.prover_reward * (acceptance if stance else 1 - acceptance)


def rewards_of(
    common: CommonProtocolParameters, outcome: Outcome, stances: tuple[int | None, ...]
) -> tuple[float, ...]:
    """`[A]` on arriving at a node; `stances[a]` is the side of a prover, None for a verifier.

    With `shared_reward` a prover gets what the verifier gets.  The penalty for an invalid reply, if
    there is one, replaces the reward of the prover who gave it.

    Args:
        common: The amounts.
        outcome: The result of the round.
        stances: The agents' sides.
    """
    verifier = verifier_reward(common, outcome)
    penalty = common.prover_invalid_response_penalty

    def reward(stance: int | None, invalid: bool) -> float:
        if stance is None:
            return verifier
        # Before `shared_reward`: otherwise a penalty would be without effect on provers that share.
        if invalid and penalty is not None:
            return penalty
        return verifier if common.shared_reward else prover_reward(common, outcome, stance)

    return tuple(
        reward(stance, invalid) for stance, invalid in zip(stances, outcome.invalid, strict=True)
    )
