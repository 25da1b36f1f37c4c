"""A run as a scan over recorded events.

`step`, `scan`, `pending`, `simulate`, `replay` and `digest` are functions of `nip_fn` itself.  Here
are

    the state        RunState, EMPTY, StageMetrics
    events           Event, RunStarted, DatasetInfo, Effect, Request
    a pure world     started, pure_world
    replayed runs    Replayed, StageForest, annotate, reselect, summary
    forks            fork_point, ForkPoint
"""

from nip_fn.run.events import DatasetInfo, Effect, Event, RunStarted
from nip_fn.run.fork import ForkPoint, fork_point
from nip_fn.run.replay import Replayed, StageForest, annotate, reselect, summary
from nip_fn.run.request import Request
from nip_fn.run.simulate import pure_world, started
from nip_fn.run.state import EMPTY, RunState, StageMetrics

__all__ = [
    "EMPTY",
    "DatasetInfo",
    "Effect",
    "Event",
    "ForkPoint",
    "Replayed",
    "Request",
    "RunStarted",
    "RunState",
    "StageForest",
    "StageMetrics",
    "annotate",
    "fork_point",
    "pure_world",
    "reselect",
    "started",
    "summary",
]
