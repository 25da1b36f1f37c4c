"""From a trainer's id to the trainer of an iteration."""

from collections.abc import Callable
from typing import Any

from nip_fn.params.run import HyperParameters
from nip_fn.training.ei import ei
from nip_fn.training.malt import malt
from nip_fn.training.trainer import Schedule, Trainer, sequence

TRAINERS: dict[str, Callable[[HyperParameters], Schedule]] = {
    "ei": lambda params: sequence(ei, 0, ei),
    "malt": lambda params: sequence(ei, params.malt.num_initial_ei_iterations, malt),
}

SELECTORS: dict[str, Callable[..., Any]] = {}  # of the user's own, by reference


def trainer_of(params: HyperParameters, iteration: int) -> Trainer:
    """Who trains in that iteration."""
    return TRAINERS[params.trainer](params)(iteration)
