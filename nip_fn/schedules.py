"""Schedules: functions of the number of an iteration.

constant, linear, exponential, periodic     numbers that an iteration has
join                                        one after another
Schedule                                    their type
"""

from nip_fn.training.schedules import Schedule, constant, exponential, join, linear, periodic

__all__ = [
    "Schedule",
    "constant",
    "exponential",
    "join",
    "linear",
    "periodic",
]
