"""Iterations in which an agent is trained."""

from nip_fn.params.base import Count, Natural, Record


class ConstantUpdateSchedule(Record, frozen=True, tag_field="_type", tag="ConstantUpdateSchedule"):
    """An agent that is trained in every iteration."""


class ContiguousPeriodicUpdateSchedule(
    Record, frozen=True, tag_field="_type", tag="ContiguousPeriodicUpdateSchedule"
):
    """An agent that is trained in iterations `start` to `stop - 1` of every `period`."""

    period: Count
    start: Natural
    stop: Natural


class AlternatingPeriodicUpdateSchedule(
    Record, frozen=True, tag_field="_type", tag="AlternatingPeriodicUpdateSchedule"
):
    """One of two agents that alternate: the first is trained at the start of every `period`."""

    period: Count
    first_agent_num_rounds: Natural
    first_agent: bool = True


UpdateSchedule = (
    ConstantUpdateSchedule | ContiguousPeriodicUpdateSchedule | AlternatingPeriodicUpdateSchedule
)


def is_updated(schedule: UpdateSchedule, iteration: int) -> bool:
    """True if an agent with this schedule is trained in that iteration.

    >>> schedule = AlternatingPeriodicUpdateSchedule(period=3, first_agent_num_rounds=2)
    >>> [is_updated(schedule, iteration) for iteration in range(6)]
    [True, True, False, True, True, False]
    """
    match schedule:
        case ContiguousPeriodicUpdateSchedule(period=period, start=start, stop=stop):
            return start <= iteration % period < stop
        case AlternatingPeriodicUpdateSchedule(period=period, first_agent_num_rounds=rounds):
            return (iteration % period < rounds) == schedule.first_agent
    return True
