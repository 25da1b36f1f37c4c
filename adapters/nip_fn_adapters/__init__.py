"""Everything that touches the world: files, models, processes, clocks.

The door from Python to what the commands do is in its functions, each with a twin to be awaited:

    train, resume    a run, done and recorded
    forecast         the requests, tokens and cost of a run, before anything is sent
    load_run         a recorded run
    cancel           the end of the paid trainings of a run that is abandoned

They return a `Result` that holds a `Problem` if they fail, and print nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_fn_adapters.experiments.cancelling import cancel, cancel_async
    from nip_fn_adapters.experiments.forecasting import forecast, forecast_async
    from nip_fn_adapters.experiments.training import resume, resume_async, train, train_async
    from nip_fn_adapters.recording.runs import Run, load_run

__all__ = [
    "Run",
    "cancel",
    "cancel_async",
    "forecast",
    "forecast_async",
    "load_run",
    "resume",
    "resume_async",
    "train",
    "train_async",
]

_MODULES = {
    "Run": "recording.runs",
    "cancel": "experiments.cancelling",
    "forecast": "experiments.forecasting",
    "load_run": "recording.runs",
    "resume": "experiments.training",
    "train": "experiments.training",
}


def __getattr__(name: str) -> Any:
    """Import the door when it is first used."""
    # Small child processes, such as the sandbox's, live below this package; importing the door
    # here would cost each of them NumPy and the whole core.
    if name in __all__:
        module = _MODULES[name.removesuffix("_async")]
        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
