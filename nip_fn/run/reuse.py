"""Changes of parameters that a resumed run, a replay and a fork allow.

Each allows those that its recorded replies do not depend on, by the stage of the parameter.
"""

from nip_fn.config.codec import differences
from nip_fn.config.hosting import is_hosted
from nip_fn.config.schema import parameter_at
from nip_fn.errors import Problem
from nip_fn.params.base import ParameterStage
from nip_fn.params.names import TREE_TRAINERS
from nip_fn.params.run import HyperParameters


def may_resume(recorded: HyperParameters, requested: HyperParameters, address: str) -> bool:
    """True if a run may be resumed with the requested value at the address."""
    # An agent stays at the kind of server that its adapters were trained by.
    same_hosts = [*map(is_hosted, recorded.agents)] == [*map(is_hosted, requested.agents)]
    return stage_of(recorded, address) == "session" and same_hosts


def reselect_problem(recorded: HyperParameters, requested: HyperParameters) -> Problem | None:
    """The first changed parameter that does more than select; None if there is none."""
    for address in differences(recorded, requested):
        if stage_of(recorded, address) != "selection":
            return Problem(
                "the recorded replies cannot tell what it would have changed",
                address,
                "only parameters that select from recorded replies can be changed in a replay, "
                "such as malt.pair_selection_method or ei.reward_threshold",
            )
    return None


def fork_problem(recorded: HyperParameters, requested: HyperParameters) -> Problem | None:
    """The first changed parameter that the recorded replies depend on; None if there is none."""
    for address in differences(recorded, requested):
        stage = stage_of(recorded, address)
        if address == "trainer" and _grow_alike(recorded, requested):
            continue
        moved = stage == "session" and not may_resume(recorded, requested, address)
        if stage == "sampling" or moved:
            return Problem(
                "the recorded replies depend on it",
                address,
                "leave it as it was, or start a new run without --from",
            )
    return None


def _grow_alike(recorded: HyperParameters, requested: HyperParameters) -> bool:
    """True if the trainers of both grow the same trees from the first iteration on."""
    trainers = {recorded.trainer, requested.trainer}
    return trainers <= TREE_TRAINERS and not requested.malt.num_initial_ei_iterations


def stage_of(params: HyperParameters, address: str) -> ParameterStage:
    """The stage that the parameter at an address acts on first."""
    parameter = parameter_at(address, type(params))
    return parameter.meaning.stage if parameter else "sampling"
