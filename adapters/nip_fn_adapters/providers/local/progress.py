"""The progress of a training: its child writes it down, the parent reads it."""

import math
import time
from collections.abc import Callable

import msgspec

from nip_fn.run.ports import Progress
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.providers.local.jobs import JobFiles

WRITE_SECONDS = 0.5


def read_progress(files: JobFiles) -> Progress | None:
    """The progress of the job's training; None until it begins."""
    try:
        return msgspec.json.decode(files.progress.read_bytes(), type=Progress)
    except FileNotFoundError:
        return None


def progress_writer(files: JobFiles, steps: int) -> Callable[[int, float], None]:
    """A function to be called after each of so many steps, with its number (from 1) and its loss.

    It writes at the beginning, after the first and the last step, and at most every half second.
    """
    began = written = time.monotonic()

    def write(step: int, loss: float) -> None:
        nonlocal written
        now = time.monotonic()
        if step in (1, steps) or now - written >= WRITE_SECONDS:
            seconds_left = (now - began) / step * (steps - step)
            progress = Progress(
                step, steps, loss if math.isfinite(loss) else None, round(seconds_left, 1)
            )
            replace_file(files.progress, msgspec.json.encode(progress))
            written = now

    replace_file(files.progress, msgspec.json.encode(Progress(0, steps)))
    return write
