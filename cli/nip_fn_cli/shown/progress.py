"""The display of a run: a live line on a terminal, a line for each stage elsewhere."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from nip_fn.config.groups import is_due
from nip_fn.metrics.waste import ENOUGH, Waste, alarming_waste, metrics_so_far
from nip_fn.run.events import BatchFetched, Event, JobFinished, Published, Replied, StageEnded
from nip_fn.run.ports import Progress
from nip_fn.run.stages import Growing, NotStarted
from nip_fn.run.state import RunState, is_tested
from nip_fn.training.rows import MIN_EXAMPLES
from nip_fn.training.tuning import fall_of_a_chosen_reply
from nip_fn.trees.node import Node
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.exits import command
from nip_fn_cli.shown.table import accuracy_cell

REFRESH_SECONDS = 0.1  # a run without a model has about a thousand replies a second


class Display:
    """An observer of a run that shows its progress on standard error."""

    def __init__(
        self, state: RunState, spent: Callable[[], str] = str, folder: Path = Path()
    ) -> None:
        """Start at `state`, which may be in mid-run.

        Args:
            state: The state of the run.
            spent: Gives the cost so far in words.
            folder: That of the run, for commands that look at it.
        """
        self._spent, self._folder = spent, folder
        self._state = state
        self._done, self._asked = count_replies(state)
        self._trainings: dict[str, Progress] = {}  # of the stage, by job
        self._tokens = 0
        self._surveyed = 0  # replies of the stage when waste was last looked for
        self._warned: set[tuple[str, str]] = set()  # (kind, agent) of the waste that was warned of
        self._began = self._stage_began = self._drawn = time.monotonic()
        self._console = Console(stderr=True)
        self._progress = Bars(
            TextColumn("{task.fields[place]}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[doing]}", markup=False),
            TextColumn("{task.fields[spent]}", markup=False),
            TextColumn("{task.fields[left]}", markup=False),
            console=self._console,
            # In a file, every refresh of a bar would be a line.
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, **self._fields())

    def __enter__(self) -> "Display":
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        self._progress.stop()

    def __call__(self, state: RunState, event: Event) -> None:
        """Show an event; `state` is the one after it."""
        self._state = state
        if isinstance(event, Replied):
            self._done += len(event.completions)
            self._asked = self._done + num_waiting(state)
            self._tokens += sum(reply.completion_tokens for _, reply in event.completions)
            # A look at all trees, so at times that are ever further apart.
            if self._done >= max(ENOUGH, 2 * self._surveyed):
                self._surveyed = self._done
                agents = state.params.agents
                wastes = alarming_waste(metrics_so_far(state.forest, agents), agents, enough=ENOUGH)
                self._warn(wastes, state.stage.name)
        elif isinstance(event, StageEnded):
            self._end_stage(event)
        elif isinstance(event, JobFinished):
            self._end_training(event)
        elif isinstance(event, Published) and event.problem:
            self._say(refusal(state, event))
        elif isinstance(event, BatchFetched):
            self._asked = num_waiting(state)
        if time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._draw()

    def _say(self, line: str) -> None:
        # Unwrapped, so that a line stays one in a log.
        self._console.print(line, soft_wrap=True)

    def follow(self, job: str, progress: Progress) -> None:
        """Show the progress of a training."""
        self._trainings[job] = progress
        self._draw()

    def _warn(self, wastes: tuple[Waste, ...], stage: str) -> None:
        """Warn of waste in a stage, of each kind and agent once."""
        for waste in wastes:
            name = (waste.kind, waste.agent.name if waste.agent else "")
            if name not in self._warned:
                self._warned.add(name)
                remedy = waste.remedy
                if waste.kind == "undecided":
                    sampled = ("--sampled",) if stage == "sample" else ()
                    show = command("nip-fn", "show", self._folder, "--undecided", *sampled)
                    remedy = f"{remedy} with: {show}"
                self._say(f"nip-fn: warning: {waste}; {remedy}")

    def _end_stage(self, event: StageEnded) -> None:
        if event.stage in ("test", "sample") and self._state.rows:
            wastes = alarming_waste(dict(self._state.rows[-1].metrics), self._state.params.agents)
            self._warn(wastes, event.stage)
        # On a terminal the live line has told all but what a test came to.
        if event.stage == "test" or (self._done and not sys.stderr.isatty()):
            self._say(ended(self._state, event, self._done, self._spent()))
        for note in notes(self._state, event):
            self._say(note)
        self._done = self._asked = self._surveyed = 0
        self._stage_began = time.monotonic()

    def _end_training(self, event: JobFinished) -> None:
        last = self._trainings.pop(event.job, None)
        if event.problem:
            self._say(f"training {event.job} failed, its group keeps its model: {event.problem}")
        elif last is not None and not sys.stderr.isatty():
            self._say(training(event.job, replace(last, seconds_left=None)))
        if warning := fall_of_a_chosen_reply(dict(event.report)):
            self._say(f"nip-fn: warning: training {event.job}: {warning}")

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        completed, total = self._done, self._asked
        if self._trainings:
            completed = sum(progress.step for progress in self._trainings.values())
            total = sum(progress.steps for progress in self._trainings.values())
        self._progress.update(
            self._task, completed=completed, total=total or None, **self._fields()
        )

    def _fields(self) -> dict[str, Any]:
        state, elapsed = self._state, time.monotonic() - self._began
        seconds = seconds_left(state, time.monotonic() - self._stage_began)
        rate = self._tokens / elapsed if elapsed > 0 else 0.0
        replies = f"{self._done:,}/{self._asked:,} replies" if self._asked else ""
        speed = f"  {rate:,.0f} tokens/s" if self._tokens else ""
        trainings = "; ".join(training(job, progress) for job, progress in self._trainings.items())
        return {
            "place": place(state),
            "doing": trainings or f"{replies}{speed}",
            "spent": self._spent(),
            "left": ""
            if seconds is None
            else f"about {seconds // 60:.0f} min {seconds % 60:02.0f} s left",
        }


def place(state: RunState) -> str:
    """The iteration, counted as tables count, and the stage that a run is in.

    >>> place(RunState())
    'start'
    """
    if isinstance(state.stage, NotStarted):  # the number of its iterations is not known yet
        return state.stage.name
    last = state.params.rl.num_iterations
    return f"iteration {state.iteration} of {last}  {state.stage.name:<7}"


def ended(state: RunState, event: StageEnded, replies: int, spent: str) -> str:
    """A line about a stage that has ended; `state` is the one after it."""
    stage = (event.iteration, event.stage)
    metrics = next(
        (dict(row.metrics) for row in state.rows if (row.iteration, row.stage) == stage), {}
    )
    estimate = (
        f"{event.stage} done",
        f"accuracy {accuracy_cell(metrics)}" if event.stage == "test" else "",
        f"{replies:,} replies" if replies else "",
        f"{event.seconds:.1f} s",
        spent,
    )
    return f"iteration {event.iteration}: {', '.join(filter(None, estimate))}"


def training(job: str, progress: Progress) -> str:
    """The progress of a training, as a line.

    >>> training("verifier-0", Progress(3, 10, 0.614, 12.2))
    'training verifier-0: step 3/10, loss 0.614, about 12 s left'
    """
    loss = "" if progress.loss is None else f", loss {progress.loss:.3g}"
    remaining = f", about {progress.seconds_left:.0f} s left" if progress.seconds_left else ""
    return f"training {job}: step {progress.step}/{progress.steps}{loss}{remaining}"


def refusal(state: RunState, event: Published) -> str:
    """The consequence of a refused adapter for its group, as a line."""
    group = next(group for group in state.groups if group.name == event.group)
    kept = group.serving or f"the base model {group.model}"
    return f"{event.adapter} is refused, {event.group} keeps {kept}: {event.problem}"


def notes(state: RunState, event: StageEnded) -> tuple[str, ...]:
    """Lines to print after a stage: the groups that will not be trained, and why."""
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
    """The replies that the stage has, and those plus the ones that it waits for now."""
    filled = sum(_filled(game.root) for game in state.forest)
    return filled, filled + num_waiting(state)


def num_waiting(state: RunState) -> int:
    """The replies that the stage waits for now."""
    return state.stage.num_waiting if isinstance(state.stage, Growing) else 0


def _filled(node: Node) -> int:
    filled = sum(slot.said is not None for slot in node.slots)
    return filled + sum(_filled(child) for child in node.children)


def seconds_left(state: RunState, elapsed: float) -> float | None:
    """An estimate from the mean duration of the stages that ended; None before there is one.

    A kind of stage that has not ended yet counts as 0 s, so the first iteration underestimates.
    """
    ended: dict[str, list[float]] = {}
    for _, stage, seconds in state.seconds:
        ended.setdefault(stage, []).append(seconds)
    # Nothing tells how long a training takes before one has ended.
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
            and (iteration > state.iteration or order.index(stage) >= order.index(state.stage.name))
        ]
        if state.stage.name in order
        else []
    )
    total = sum(mean.get(stage, 0.0) for _, stage in ahead)
    return max(total - elapsed, 0.0)
