"""Everything that touches the world: files, models, processes, clocks.

`load_run` is the door to a recorded run; `cancel` ends the paid trainings of one that is abandoned.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_fn_adapters.experiments.cancelling import cancel
    from nip_fn_adapters.recording.runs import Run, load_run

__all__ = ["Run", "cancel", "load_run"]

_MODULES = {
    "Run": "recording.runs",
    "cancel": "experiments.cancelling",
    "load_run": "recording.runs",
}


def __getattr__(name: str) -> Any:
    """Import the door when it is first used."""
    # Small child processes, such as the sandbox's, live below this package; importing the door
    # here would cost each of them NumPy and the whole core.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
