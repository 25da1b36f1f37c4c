"""From a trainer's id to the trainer."""

from nip_fn.params import HyperParameters, TrainerName
from nip_fn.trainers.malt import malt
from nip_fn.trainers.trainer import Trainer

TRAINERS: dict[TrainerName, Trainer] = {"malt": malt}


def trainer_of(params: HyperParameters) -> Trainer:
    """The trainer that the parameters ask for."""
    return TRAINERS[params.trainer]
