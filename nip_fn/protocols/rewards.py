"""Rewards that protocols share.  `f` is a decision from -1 (reject) to 1 (accept), `y` the label.

verifier   x = f(2y - 1);  piecewise linear through (-1, incorrect), (0, neither), (1, correct)
prover     a R  when it argues for accept,  (1 - a) R  for reject,  a = (f + 1) / 2
"""

from nip_fn.params import CommonProtocolParameters
from nip_fn.protocols.protocol import Outcome


def neither_reward(common: CommonProtocolParameters) -> float:
    """For a decision that is neither: given, or half-way between right and wrong."""
    given = common.verifier_neither_accept_nor_reject_reward
    half_way = (common.verifier_reward + common.verifier_incorrect_penalty) / 2
    return half_way if given is None else given


def verifier_reward(common: CommonProtocolParameters, outcome: Outcome) -> float:
    """The verifier's reward on arriving at a node."""
    if outcome.end == "decided" and outcome.decision is not None:
        x = outcome.decision.continuous * (2 * outcome.label - 1)
        neither = neither_reward(common)
        full = common.verifier_reward if x > 0 else common.verifier_incorrect_penalty
        return neither + abs(x) * (full - neither)
    if outcome.end == "rounds":
        return common.verifier_terminated_penalty
    return common.verifier_no_guess_reward if outcome.verifier_moved else 0.0


def prover_reward(common: CommonProtocolParameters, outcome: Outcome, stance: int) -> float:
    """The reward of a prover that argues for `stance` (1 accept, 0 reject)."""
    if outcome.end != "decided" or outcome.decision is None:
        return 0.0
    acceptance = (outcome.decision.continuous + 1) / 2
    return common.prover_reward * (acceptance if stance else 1 - acceptance)


def verifier_bounds(
    common: CommonProtocolParameters, num_verifier_rounds: int
) -> tuple[float, float]:
    """The least and the most a verifier can get in a game, with every reward it can meet."""
    broken_off = () if common.prover_invalid_response_penalty is None else (0.0,)
    return _bounds(common, num_verifier_rounds, (*_verifier_ends(common), *broken_off))


def prover_bounds(
    common: CommonProtocolParameters, num_verifier_rounds: int
) -> tuple[float, float]:
    """The least and the most a prover can get in a game, with every reward it can meet."""
    penalty = common.prover_invalid_response_penalty
    broken_off = () if penalty is None else (penalty,)
    if common.shared_reward:
        return _bounds(common, num_verifier_rounds, (*_verifier_ends(common), *broken_off))
    ends = (0.0, common.prover_reward, *broken_off)
    return min(ends), max(ends)


def _verifier_ends(common: CommonProtocolParameters) -> tuple[float, ...]:
    """What a verifier gets for its last turn."""
    return (
        common.verifier_reward,
        common.verifier_incorrect_penalty,
        neither_reward(common),
        common.verifier_terminated_penalty,
    )


def _bounds(
    common: CommonProtocolParameters, num_verifier_rounds: int, ends: tuple[float, ...]
) -> tuple[float, float]:
    """The ends, after as many turns without a decision as there can be."""
    waiting = common.verifier_no_guess_reward * (num_verifier_rounds - 1)
    return min(ends) + min(0.0, waiting), max(ends) + max(0.0, waiting)
