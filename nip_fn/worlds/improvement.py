"""A measure of a game before and after a training, beside the best that theory allows."""

from typing import NamedTuple


class Improvement(NamedTuple):
    """A measure before and after a training, beside the value of optimal play.

    name: the measure, as a table shows it.
    before, after: None where there was nothing to measure.
    optimum: what perfect players reach, in words where several values are as good; None where it
      depends on what they choose to do.
    share: True if the values are shares, False if they are numbers.
    """

    name: str
    before: float | None
    after: float | None
    optimum: float | str | None
    share: bool = True
