"""What a person sees while a run goes on: a live line on a terminal, a line a stage elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from nip_fn.events import Drawn, Event, JobFinished, Replied, StageDone
from nip_fn.finetune import MIN_EXAMPLES, is_due
from nip_fn.growth import Node, waiting
from nip_fn.state import RunState, is_tested

LINE = "iteration {task.fields[iteration]}/{task.fields[iterations]}  {task.fields[stage]:<7}"
COUNTS = "{task.fields[done]:,}/{task.fields[asked]:,} replies  {task.fields[rate]:,.0f} tokens/s"


REFRESH_SECONDS = 0.1


class Display:
    """Follows a run; feed it each event and the state after it."""

    def __init__(self, state: RunState, spent: Callable[[], str] = str) -> None:
        """Start at `state`, which may be the middle of a run; `spent` tells what it has cost."""
        self._spent = spent
        self._done, self._asked = count_replies(state)
        self._tokens = 0
        self._began = self._stage_began = self._drawn = time.monotonic()
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn(LINE),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn(COUNTS),
            TextColumn("{task.fields[spent]}"),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, **self._fields(state))

    def __enter__(self) -> "Display":
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        self._progress.stop()

    def __call__(self, state: RunState, event: Event) -> None:
        """Take note of one event."""
        if isinstance(event, Replied):
            self._done += 1
            self._asked = self._done + state.num_waiting
            self._tokens += event.completion.completion_tokens
        elif isinstance(event, StageDone):
            if not sys.stderr.isatty() and self._done:
                self._console.print(
                    f"iteration {event.iteration}: {event.stage} done, {self._done:,} replies, "
                    f"{event.seconds:.1f} s{self._spent() and ', '}{self._spent()}"
                )
            for note in notes(state, event):
                self._console.print(note)
            self._done = self._asked = 0
            self._stage_began = time.monotonic()
        elif isinstance(event, JobFinished) and event.problem:
            self._console.print(f"training {event.job} failed, nothing changes: {event.problem}")
        elif isinstance(event, Drawn):
            self._asked = state.num_waiting
        if time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._draw(state)

    def _draw(self, state: RunState) -> None:
        self._drawn = time.monotonic()
        self._progress.update(
            self._task, completed=self._done, total=self._asked or None, **self._fields(state)
        )

    def _fields(self, state: RunState) -> dict[str, Any]:
        elapsed = time.monotonic() - self._began
        left = seconds_left(state, time.monotonic() - self._stage_began)
        return {
            "iteration": min(state.iteration + 1, state.params.rl.num_iterations),
            "iterations": state.params.rl.num_iterations,
            "stage": state.stage,
            "done": self._done,
            "asked": self._asked,
            "rate": self._tokens / elapsed if elapsed > 0 else 0.0,
            "spent": self._spent(),
            "left": "" if left is None else f"about {left // 60:.0f} min {left % 60:02.0f} s left",
        }


def notes(state: RunState, event: StageDone) -> tuple[str, ...]:
    """What a person should know when a stage has ended, besides that it has."""
    if event.stage != "sample":
        return ()
    trained = {under_way.job.group for under_way in state.jobs}
    return tuple(
        f"iteration {event.iteration}: {group.name} is not trained, fewer than {MIN_EXAMPLES} "
        "examples were selected"
        for group in state.groups
        if is_due(state.params, group, event.iteration) and group.name not in trained
    )


def count_replies(state: RunState) -> tuple[int, int]:
    """How many replies the stage has, and how many it knows that it will have."""
    filled = sum(_filled(root) for root in state.forest)
    return filled, filled + sum(len(ask.indices) for root in state.forest for ask in waiting(root))


def _filled(node: Node) -> int:
    own = sum(slot.said is not None for slot in node.slots)
    return own + sum(_filled(child) for child in node.children)


def seconds_left(state: RunState, elapsed: float) -> float | None:
    """An estimate from the mean duration of the stages that ended; None before there is one.

    A stage kind that has not ended yet counts as nothing, so the first iteration underestimates.
    """
    ended: dict[str, list[float]] = {}
    for _, stage, seconds in state.seconds:
        ended.setdefault(stage, []).append(seconds)
    if "train" not in ended:
        return None
    mean = {stage: sum(times) / len(times) for stage, times in ended.items()}
    order = ("test", "sample", "train", "publish")
    last = state.params.rl.num_iterations
    ahead = (
        [
            (iteration, stage)
            for iteration in range(state.iteration, last + 1)
            for stage in order
            if (iteration < last or stage == "test")
            and (stage != "test" or is_tested(state.params, iteration))
            and (iteration > state.iteration or order.index(stage) >= order.index(state.stage))
        ]
        if state.stage in order
        else []
    )
    total = sum(mean.get(stage, 0.0) for _, stage in ahead)
    return max(total - elapsed, 0.0)
