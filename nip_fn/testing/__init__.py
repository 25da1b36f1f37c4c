"""Conformance tests for protocols, trainers and losses, and parameters for tests.

`check_protocol` and `check_trainer` are functions of `nip_fn` itself.  Here are

    check_loss, check_checker     those of losses, and of checkers of answers
    ProtocolError, TrainerError,  raised by them: the law that does not hold
    LossError, CheckerError
    construct_test_params         parameters of a run that trains in a moment
"""

from nip_fn.testing.check import ProtocolError
from nip_fn.testing.checkers import CheckerError, check_checker
from nip_fn.testing.losses import LossError, check_loss
from nip_fn.testing.params import construct_test_params
from nip_fn.testing.trainers import TrainerError

__all__ = [
    "CheckerError",
    "LossError",
    "ProtocolError",
    "TrainerError",
    "check_checker",
    "check_loss",
    "construct_test_params",
]
