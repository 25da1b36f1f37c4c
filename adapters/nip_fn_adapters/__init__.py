"""Everything that touches the world: files, models, processes, clocks.

`load_run` is the door to a recorded run.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_fn_adapters.recording.runs import Run, load_run

__all__ = ["Run", "load_run"]


def __getattr__(name: str) -> Any:
    """Import the door when it is first used."""
    # Small child processes, such as the sandbox's, live below this package; importing the door
    # here would cost each of them NumPy and the whole core.
    if name in __all__:
        from nip_fn_adapters.recording import runs

        return getattr(runs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
