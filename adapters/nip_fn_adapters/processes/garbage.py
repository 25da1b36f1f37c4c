"""The garbage collector of this process."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rare_collections() -> Iterator[None]:
    """Run the garbage collector less often, and exclude all objects that exist already."""
    # It took a quarter of a fast run's time: states and trees are many, and live long.
    threshold = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
