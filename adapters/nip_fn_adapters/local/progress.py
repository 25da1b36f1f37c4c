"""The progress of a training: its child writes it down, the parent reads it."""

import math
import time
from typing import Any

import msgspec

from nip_fn.run.ports import Progress
from nip_fn_adapters.local.jobs import JobFiles
from nip_fn_adapters.store import replace_file

WRITE_SECONDS = 0.5


def read_progress(files: JobFiles) -> Progress | None:
    """The progress of the job's training; None until it begins."""
    try:
        return msgspec.json.decode(files.progress.read_bytes(), type=Progress)
    except FileNotFoundError:
        return None


def progress_callback(files: JobFiles) -> Any:
    """A callback for a trainer that logs each step.

    It writes at the beginning, after the first and the last step, and at most every half second.
    """
    from transformers import TrainerCallback

    class Writer(TrainerCallback):  # type: ignore[misc]
        began = written = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.monotonic()
            self._write(state, Progress(0, state.max_steps))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            step, steps, now = state.global_step, state.max_steps, time.monotonic()
            if "loss" not in logs:  # the summary at the end
                return
            if step in (1, steps) or now - self.written >= WRITE_SECONDS:
                loss = float(logs["loss"]) if math.isfinite(logs["loss"]) else None
                left = (now - self.began) / step * (steps - step)
                self._write(state, Progress(step, steps, loss, round(left, 1)))

        def _write(self, state: Any, progress: Progress) -> None:
            if state.is_world_process_zero:
                replace_file(files.progress, msgspec.json.encode(progress))
                self.written = time.monotonic()

    return Writer()
