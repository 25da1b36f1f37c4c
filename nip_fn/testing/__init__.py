"""Conformance tests for protocols and trainers, and parameters for tests.

`check_protocol` and `check_trainer` are functions of `nip_fn` itself.  Here are

    ProtocolError, TrainerError    raised by them: the law that does not hold
    construct_test_params          parameters of a run that trains in a moment
"""

from nip_fn.testing.check import ProtocolError
from nip_fn.testing.params import construct_test_params
from nip_fn.testing.trainers import TrainerError

__all__ = [
    "ProtocolError",
    "TrainerError",
    "construct_test_params",
]
