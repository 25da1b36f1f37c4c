"""Everything that touches the world: files, models, processes, clocks.

The door from Python to what the commands do is in its functions:

    train, resume              a run, done and recorded
    evaluate                   protocols and models, tested without being trained
    card                       a verifier, tested with honest, lying, silent and other provers
    attack                     the provers that mislead the verifier of a run the most
    attack_exact               the verifier's errors against the best reply, computed
    compare                    two runs, or two sets of runs, problem by problem
    sweep                      a study: many runs, and what differs between them
    retest                     the models of every iteration of a run, tested again
    relabel                    the share of a run's preference labels that are true
    report                     runs as an HTML page
    forecast, forecast_attack, forecast_sweep
                               the requests, tokens and cost, before anything is sent
    load_run                   a recorded run
    cancel                     the end of the paid trainings of a run that is abandoned

They return a `Result` that holds a `Problem` if they fail, and print nothing.  Those that take long
have a twin to be awaited, with `_async` behind the name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_fn_adapters.experiments.attack_cases import AttackOptions
    from nip_fn_adapters.experiments.attacking import (
        attack,
        attack_async,
        forecast_attack,
        forecast_attack_async,
    )
    from nip_fn_adapters.experiments.cancelling import cancel, cancel_async
    from nip_fn_adapters.experiments.cards import card, card_async
    from nip_fn_adapters.experiments.comparing import compare
    from nip_fn_adapters.experiments.evaluating import evaluate, evaluate_async
    from nip_fn_adapters.experiments.exact import attack_exact, attack_exact_async
    from nip_fn_adapters.experiments.forecasting import forecast, forecast_async
    from nip_fn_adapters.experiments.relabelling import relabel, relabel_async
    from nip_fn_adapters.experiments.reporting import report, report_async
    from nip_fn_adapters.experiments.retesting import retest, retest_async
    from nip_fn_adapters.experiments.sweeping import (
        forecast_sweep,
        forecast_sweep_async,
        sweep,
        sweep_async,
    )
    from nip_fn_adapters.experiments.training import resume, resume_async, train, train_async
    from nip_fn_adapters.recording.runs import Run, load_run

__all__ = [
    "AttackOptions",
    "Run",
    "attack",
    "attack_async",
    "attack_exact",
    "attack_exact_async",
    "cancel",
    "cancel_async",
    "card",
    "card_async",
    "compare",
    "evaluate",
    "evaluate_async",
    "forecast",
    "forecast_async",
    "forecast_attack",
    "forecast_attack_async",
    "forecast_sweep",
    "forecast_sweep_async",
    "load_run",
    "relabel",
    "relabel_async",
    "report",
    "report_async",
    "resume",
    "resume_async",
    "retest",
    "retest_async",
    "sweep",
    "sweep_async",
    "train",
    "train_async",
]

_MODULES = {
    "AttackOptions": "experiments.attack_cases",
    "Run": "recording.runs",
    "attack": "experiments.attacking",
    "attack_exact": "experiments.exact",
    "cancel": "experiments.cancelling",
    "card": "experiments.cards",
    "compare": "experiments.comparing",
    "evaluate": "experiments.evaluating",
    "forecast": "experiments.forecasting",
    "forecast_attack": "experiments.attacking",
    "forecast_sweep": "experiments.sweeping",
    "load_run": "recording.runs",
    "relabel": "experiments.relabelling",
    "report": "experiments.reporting",
    "resume": "experiments.training",
    "retest": "experiments.retesting",
    "sweep": "experiments.sweeping",
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
