"""Everything that touches the world: files, models, processes, clocks.

The door from Python to what the commands do is in its functions, each with a twin to be awaited:

    train, resume    a run, done and recorded
    forecast         the requests, tokens and cost of a run, before anything is sent
    evaluate         protocols and models, tested without being trained
    card             a verifier, tested with honest, lying, silent and other provers
    retest           the models of every iteration of a run, tested again
    relabel          the share of a run's preference labels that are true
    load_run         a recorded run
    cancel           the end of the paid trainings of a run that is abandoned

They return a `Result` that holds a `Problem` if they fail, and print nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_fn_adapters.experiments.cancelling import cancel, cancel_async
    from nip_fn_adapters.experiments.cards import card, card_async
    from nip_fn_adapters.experiments.evaluating import evaluate, evaluate_async
    from nip_fn_adapters.experiments.forecasting import forecast, forecast_async
    from nip_fn_adapters.experiments.relabelling import relabel, relabel_async
    from nip_fn_adapters.experiments.retesting import retest, retest_async
    from nip_fn_adapters.experiments.training import resume, resume_async, train, train_async
    from nip_fn_adapters.recording.runs import Run, load_run

__all__ = [
    "Run",
    "cancel",
    "cancel_async",
    "card",
    "card_async",
    "evaluate",
    "evaluate_async",
    "forecast",
    "forecast_async",
    "load_run",
    "relabel",
    "relabel_async",
    "resume",
    "resume_async",
    "retest",
    "retest_async",
    "train",
    "train_async",
]

_MODULES = {
    "Run": "recording.runs",
    "cancel": "experiments.cancelling",
    "card": "experiments.cards",
    "evaluate": "experiments.evaluating",
    "forecast": "experiments.forecasting",
    "load_run": "recording.runs",
    "relabel": "experiments.relabelling",
    "resume": "experiments.training",
    "retest": "experiments.retesting",
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
