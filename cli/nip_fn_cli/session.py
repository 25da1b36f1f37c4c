"""A sitting of a run: it is started or gone on with, until it is done or stopped."""

import asyncio
import gc
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from returns.result import Failure

from nip_fn.config.codec import differences, merge, spread, to_dict
from nip_fn.config.presets import EMBEDDED
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.run.events import Event, Extended, RunStarted
from nip_fn.run.ports import World
from nip_fn.run.state import EMPTY, RunState
from nip_fn.run.step import data_problem
from nip_fn.training.groups import Adapter
from nip_fn_adapters import store
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.interpreter import Observer, interpret
from nip_fn_adapters.store import CHECKPOINT, AppendStore
from nip_fn_adapters.tracker import JsonLines
from nip_fn_adapters.transcripts import TranscriptFiles
from nip_fn_cli.config import resolve, with_provider
from nip_fn_cli.datasets import open_or_die
from nip_fn_cli.exits import Exit, die, say
from nip_fn_cli.loading import Loaded, copy_adapters, lineages, with_loaded
from nip_fn_cli.money import Money, Tally, with_purse
from nip_fn_cli.progress import Display
from nip_fn_cli.recordings import refuse, replay_recording
from nip_fn_cli.templates import with_templates
from nip_fn_cli.wiring import Models, wire


class Start(NamedTuple):
    """Where a run goes on from."""

    store: AppendStore
    models: Models
    state: RunState
    data: Data
    first: tuple[RunStarted | Extended, ...]  # to be recorded before anything else

    @property
    def params(self) -> HyperParameters:
        """The run's."""
        starts = (event for event in self.first if isinstance(event, RunStarted))
        return next((event.params for event in starts), self.state.params)


class New(NamedTuple):
    """What a new run is to be."""

    params: HyperParameters
    loaded: tuple[Loaded, ...]  # what its agents go on from
    lineages: tuple[tuple[str, Adapter], ...]  # and so its groups


def plan(given: dict[str, Any], provider: str | None, runs: Path) -> New:
    """The new run that a table describes; `runs` holds those that its agents may go on from."""
    table, loaded = with_loaded(merge(EMBEDDED, given), runs)
    params = resolve(with_templates(with_provider(table, provider)))
    return New(params, loaded, lineages(loaded, params))


def create(folder: Path, new: New) -> Start:
    """The start of a new run in a folder of its own."""
    data, models = open_or_die(new.params), wire(new.params, folder)
    problem = data_problem(new.params, data.info)
    if problem:
        die(Exit.USAGE, problem)
    opened = store.create(folder)
    if isinstance(opened, Failure):
        die(Exit.RUN, opened.failure())
    return _first(opened.unwrap(), models, new, data, folder)


def _first(appending: AppendStore, models: Models, new: New, data: Data, folder: Path) -> Start:
    copy_adapters(new.loaded, folder)
    event = RunStarted(new.params, data.info, version("nip-fn"), new.lineages)
    return Start(appending, models, EMPTY, data, (event,))


def reopen(folder: Path, given: dict[str, Any], provider: str | None) -> Start:
    """The start of another sitting of a run; what is given may repeat its parameters only."""
    opened = store.reopen(folder)
    if isinstance(opened, Failure):
        problem = opened.failure()
        if isinstance(problem, str):
            die(Exit.RUN, problem)
        refuse(folder / CHECKPOINT, problem)
    appending, recording = opened.unwrap()
    if recording.torn:
        say(f"cut {recording.torn} bytes of an unfinished event off {folder / CHECKPOINT}")
    if not recording.events:  # died before it began
        new = plan(given, provider, folder.parent)
        return _first(appending, wire(new.params, folder), new, open_or_die(new.params), folder)
    state = replay_recording(folder / CHECKPOINT, recording).state
    if state.faults:
        die(Exit.MISMATCH, f"{folder / CHECKPOINT}: {state.faults[0]}")
    changed = differences(state.params, _wanted(state.params, given, provider))
    if changed:
        die(Exit.USAGE, f"{changed[0]} differs from the run's; a resumed run keeps its parameters")
    data = open_or_die(state.params)
    if data.info != state.dataset:
        die(Exit.RUN, f"{state.dataset.name}: not the data that {folder} was started with")
    return Start(appending, wire(state.params, folder), state, data, ())


def _wanted(
    recorded: HyperParameters, given: dict[str, Any], provider: str | None
) -> HyperParameters:
    """The recorded parameters with the given ones laid over them, agent by agent."""
    given = with_provider(given, provider)
    agents = given.get("agents", {})
    single = spread(agents, tuple(agent.name for agent in recorded.agents))
    unknown = {name: fields for name, fields in agents.items() if name != DEFAULT_AGENT}
    return resolve(merge(to_dict(recorded), {**given, "agents": {**unknown, **single}}))


def go_on(start: Start, folder: Path, again: str, money: Money) -> RunState:
    """The state in which the run is done; `again` is the command that goes on when it is not."""
    models, purse = with_purse(start.models, start.params, start.state, money)
    tally = Tally(start.state, money.prices)
    world = World(
        sampler=models.sampler,
        tuner=models.tuner,
        publisher=models.publisher,
        source=start.data.source,
        store=start.store,
        tracker=JsonLines(folder, start.params, start.state, money.prices),
        drain=models.drain,
    )
    with _rare_collections(), Display(start.state, lambda: str(tally)) as display:
        followers: list[Observer] = [tally, display]
        if models.relay is not None:
            models.relay.follow = display.follow
        if start.params.text_rl.save_transcripts:
            followers.append(TranscriptFiles(folder))
        result = asyncio.run(_interpret(start, world, followers))
    start.store.close()
    if isinstance(result, Failure) and purse and result.failure() == purse.refusal:
        die(Exit.BUDGET, f"{purse.refusal}; go on with: {again} --budget MORE")
    if isinstance(result, Failure):
        die(Exit.ADAPTER, f"{result.failure()}; all replies so far are kept, go on with: {again}")
    state: RunState = result.unwrap()
    if state.stage != "done":
        die(Exit.INTERRUPTED, f"stopped; nothing is lost, go on with: {again}")
    return state


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Keep the garbage collector from looking at what is loaded again and again."""
    # It took a quarter of a fast run's time: states and trees are many, and live long.
    threshold = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


async def _interpret(start: Start, world: World, followers: Iterable[Observer]) -> Any:
    """The run under the first Ctrl-C's protection: it stops cleanly, the second kills."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell(state: RunState, event: Event) -> None:
        for follower in followers:
            follower(state, event)

    def on_signal() -> None:
        say("stopping after the replies that are under way; again to stop at once")
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return await interpret(start.state, world, first=start.first, stop=stop, observe=tell)
