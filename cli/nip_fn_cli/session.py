"""A session of a run: it is started or resumed, then runs until it is done or stopped."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn import __version__
from nip_fn.config.checks import warnings
from nip_fn.config.codec import differences, flatten, get, merge, spread, to_dict
from nip_fn.config.presets import model_problems, with_preset
from nip_fn.config.spelling import PROVIDERS
from nip_fn.config.toml import to_toml
from nip_fn.config.unused import unused
from nip_fn.errors import Problem
from nip_fn.params.names import is_reference
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.params.training import TextRlParameters, grace_seconds
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.checkpoint import Recording, frame
from nip_fn.run.events import Event, Extended, Replied, RunStarted, StageEnded
from nip_fn.run.fork import fork_point
from nip_fn.run.ports import World
from nip_fn.run.reuse import fork_problem, may_resume
from nip_fn.run.state import EMPTY, RunState
from nip_fn.run.step import step
from nip_fn.testing.check import ProtocolError, check_protocol
from nip_fn.training.groups import Adapter
from nip_fn_adapters import extensions
from nip_fn_adapters.costs.note import keep_prices
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.extensions import Sources
from nip_fn_adapters.interpreter import Observer, interpret
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.runs import changed_sources, checkpoint_file
from nip_fn_adapters.recording.store import CHECKPOINT, AppendStore, replace_file
from nip_fn_adapters.recording.tracker import JsonLines
from nip_fn_adapters.recording.transcripts import TranscriptFiles
from nip_fn_cli.config import resolve, with_base_url, with_provider
from nip_fn_cli.datasets import open_or_die, suitable_or_die
from nip_fn_cli.loading import Loaded, copy_adapters, first_adapters, load_agents, with_loaded
from nip_fn_cli.money import (
    Money,
    RunningCost,
    lost_line,
    money_of_run,
    with_budget,
)
from nip_fn_cli.recordings import rare_collections, read_recording, replay_recording
from nip_fn_cli.shown.exits import Exit, die, die_of_system, or_exit, say
from nip_fn_cli.shown.progress import Display
from nip_fn_cli.templates import with_templates
from nip_fn_cli.wiring import Models, wire

CONFIG = "config.toml"  # the run's parameters, in its folder; nip-fn train takes it


class Session(NamedTuple):
    """A run that is ready to be started or resumed.

    store: its checkpoint, open at its end.
    models: the adapters that sample and train.
    state: the state to begin in.
    data: its data set.
    first: the event to record before anything else, if there is one.
    changes: the parameters that are others than those recorded, in this session alone.
    """

    store: AppendStore
    models: Models
    state: RunState
    data: Data
    first: tuple[RunStarted | Extended, ...]
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def text_rl(self) -> TextRlParameters:
        """The parameters by which this session waits, and goes on after failures."""
        prefix = "text_rl."
        changed = {
            address.removeprefix(prefix): value
            for address, value in self.changes
            if address.startswith(prefix)
        }
        return replace(self.params.text_rl, **changed)

    @property
    def params(self) -> HyperParameters:
        """The run's parameters, after the first event."""
        return reduce(lambda state, event: step(state, event)[0], self.first, self.state).params


@dataclass(frozen=True)
class Fork:
    """The part of an earlier run that a new one begins with (see `nip_fn.run.fork`)."""

    events: tuple[Event, ...]
    folder: Path
    """Of the earlier run."""
    iteration: int
    """The iteration whose replies they are."""

    # Only a run that begins derives it, not each plan of a study.
    @cached_property
    def state(self) -> RunState:
        """The state that the events lead to; ends the command if that is not as recorded."""
        state = replay_recording(self.folder / CHECKPOINT, Recording(self.events, 0, 0)).state
        if state.faults:
            die(Exit.MISMATCH, f"{self.folder / CHECKPOINT}: {state.faults[0]}")
        return state


class New(NamedTuple):
    """The plan of a new run.

    params: its parameters.
    loaded: the agents that continue from earlier runs.
    lineages: the (group, adapter) that its model groups begin with, if they do.
    sources: the sources of the user's own values that it refers to.
    fork: what it takes over from an earlier run; None if it begins with nothing.
    """

    params: HyperParameters
    loaded: tuple[Loaded, ...]
    lineages: tuple[tuple[str, Adapter], ...]
    sources: Sources = ()
    fork: Fork | None = None


def plan(given: dict[str, Any], provider: str | None, runs: Path) -> New:
    """The plan of the run that a written configuration describes.

    Args:
        given: The configuration; what it leaves out is as `with_preset` has it for its models.
        provider: The provider of all agents, whatever the configuration says of them.
        runs: The folder of the earlier runs that agents may continue from.

    Returns:
        The plan; nothing has been created.  Ends the command if there is a problem with it.
    """
    # References first: the protocol says which agents there are, and so which fields are right.
    or_exit(extensions.register(given))
    loaded = or_exit(load_agents(given, runs))
    # An agent that is loaded brings its model, on which the settings depend.
    table = with_provider(with_preset(with_loaded(given, loaded)), provider)
    # Strategies of agents that are loaded, or scripted because the provider is.
    or_exit(extensions.register({"agents": table.get("agents", {})}))
    params = with_base_url(resolve(with_templates(table)))
    for problem in (*model_problems(params), *_broken_laws(params)):
        die(Exit.USAGE, problem)
    for problem in warnings(params):
        say(f"nip-fn: warning: {problem}")
    sources = or_exit(extensions.sources(table))
    return New(params, loaded, or_exit(first_adapters(loaded, params)), sources)


def plan_fork(
    run: str, iteration: int | None, given: dict[str, Any], provider: str | None, runs: Path
) -> New:
    """The plan of a run that selects and trains again from the replies of an earlier one.

    Args:
        run: The earlier run, its folder or its name.
        iteration: Of that run; None: the last that it has sampled.
        given: A written configuration; what it leaves out is as in the earlier run, except that
            the iteration is the last one.
        provider: The provider of all agents, which must be that of the earlier run.
        runs: The folder of the runs.

    Returns:
        The plan; nothing has been created.  Ends the command if there is a problem with it.
    """
    path = or_exit(checkpoint_file(Path(run), runs).alt(lambda problem: problem.at("--from")))
    recording = read_recording(path)
    for problem in changed_sources(recording):
        die(Exit.USAGE, problem)
    name = path.resolve().parent.name
    at = or_exit(fork_point(recording.events, iteration).alt(lambda problem: problem.at(str(path))))
    or_exit(extensions.register(to_dict(at.params)))
    or_exit(extensions.register(given))
    rl = replace(at.params.rl, num_iterations=at.iteration + 1)
    params = _requested(replace(at.params, rl=rl), given, provider)
    if refused := fork_problem(at.params, params):
        die(Exit.USAGE, refused)
    if params.rl.num_iterations <= at.iteration:
        problem = Problem(
            f"the run ends before iteration {at.iteration} of {name} would be trained on",
            "rl.num_iterations",
            f"ask for at least {at.iteration + 1}, or leave it out",
        )
        die(Exit.USAGE, problem)
    sources = or_exit(extensions.sources(to_dict(params)))
    events = at.fork(params, run=name, version=__version__, sources=sources)
    return New(params, (), (), sources, Fork(events, path.parent, at.iteration))


def _broken_laws(params: HyperParameters) -> Iterator[Problem]:
    """A problem if the run's game is the user's own and no protocol: its first broken law."""
    name = params.interaction_protocol
    if not is_reference(name):
        return
    try:
        check_protocol(PROTOCOLS[name], params, num_games=20)
    except ProtocolError as error:
        first, *others = str(error).splitlines()
        more = f" ({len(others)} more: nip_fn.check_protocol lists them)" if others else ""
        yield Problem(f"{first}{more}", name)


def warn_of_unused(given: dict[str, Any], provider: str | None, planned: Iterable[New]) -> None:
    """Tell of what was written and has no effect in any of the runs that were planned of it."""
    before, after = flatten(given), flatten(with_provider(given, provider))
    sources = (".model_provider", ".use_dummy_api")
    for address in sorted(name for name in before if name.endswith(sources)):
        # That no random replies were asked for is what most files say, and all that are completed
        # by the defaults.
        values = {PROVIDERS.get(table[address], table[address]) for table in (before, after)}
        if len(values) > 1 and before[address] is not False:
            say(f"nip-fn: warning: without effect, since --provider goes before it: {address}")
    for line in unused(given, [new.params for new in planned]):
        say(f"nip-fn: warning: {line}")


def create(folder: Path, new: New, data: Data | None = None) -> Session:
    """The session of a new run in a folder of its own; `data` goes before the named data set."""
    # Whatever may fail comes before the store: a run that is refused leaves no checkpoint behind,
    # and its name stays free.
    data, models = suitable_or_die(new.params, data), wire(new.params, folder)
    if new.fork:
        _same_or_die(data, new.fork.state, new.fork.folder)
    return _new_session(or_exit(store.create(folder), Exit.RUN), models, new, data, folder)


def _new_session(
    appending: AppendStore, models: Models, new: New, data: Data, folder: Path
) -> Session:
    if new.fork:
        return _forked(appending, models, new.fork, data, folder)
    for one in new.loaded:
        copy_adapters([one.adapter.name] if one.adapter else [], one.folder, folder)
    start = RunStarted(new.params, data.info, __version__, new.lineages, sources=new.sources)
    return Session(appending, models, EMPTY, data, (start,))


def _forked(
    appending: AppendStore, models: Models, fork: Fork, data: Data, folder: Path
) -> Session:
    adapters = (adapter.name for group in fork.state.groups for adapter in group.lineage)
    copy_adapters(adapters, fork.folder, folder)
    appending.begin(b"".join(map(frame, fork.events)))
    replies = sum(len(event.completions) for event in fork.events if isinstance(event, Replied))
    say(f"from {fork.folder}, iteration {fork.iteration}: {replies:,} replies are used again")
    return Session(appending, models, fork.state, data, ())


def reopen(
    folder: Path,
    given: dict[str, Any],
    provider: str | None,
    *,
    data: Data | None = None,
    new: New | None = None,
) -> Session:
    """The session that resumes the run in a folder.

    Args:
        folder: The run's folder.
        given: A written configuration; it may only repeat the run's parameters.
        provider: The provider that was given for all agents, likewise.
        data: The data that the run was created with, if not the data set of its parameters.
        new: The plan of the run, in case it died before its start was recorded; None: as given.

    Returns:
        The session, in the state in which the recording ends.  Ends the command if the run cannot
        be resumed as it was: it is damaged or in use, or its data, its parameters or the source of
        its own protocol, trainer, selector or data set are others.
    """
    appending, recording = or_exit(store.reopen(folder), Exit.RUN)
    # A refusal gives the file back: whoever asked again in the same process would find it in use.
    with ExitStack() as on_refusal:
        on_refusal.callback(appending.close)
        session = _reopened(folder, appending, recording, given, provider, data, new)
        on_refusal.pop_all()
    return session


def _reopened(
    folder: Path,
    appending: AppendStore,
    recording: Recording,
    given: dict[str, Any],
    provider: str | None,
    data: Data | None,
    new: New | None,
) -> Session:
    if recording.torn:
        say(f"cut {recording.torn} bytes of an unfinished event off {folder / CHECKPOINT}")
    if not recording.events:  # its writer died before it could record the start
        new = new or plan(given, provider, folder.parent)
        models, data = wire(new.params, folder), suitable_or_die(new.params, data)
        return _new_session(appending, models, new, data, folder)
    # Before the replay: another source may fail to derive the run at all, in less helpful words.
    for problem in changed_sources(recording):
        die(Exit.USAGE, problem)
    state = replay_recording(folder / CHECKPOINT, recording).state
    if state.faults:
        die(Exit.MISMATCH, f"{folder / CHECKPOINT}: {state.faults[0]}")
    # Compared as parameters rather than as options: to repeat one is no change.
    requested = _requested(state.params, given, provider)
    changed = differences(state.params, requested)
    recorded = [address for address in changed if not may_resume(state.params, requested, address)]
    if recorded:
        problem = Problem(
            f"{recorded[0]} differs from the run's",
            remedy="a resumed run keeps its parameters, but for its servers, keys, limits and what "
            "it does about failures: leave the option out, or start a new run",
        )
        die(Exit.USAGE, problem)
    data = data or open_or_die(state.params)
    _same_or_die(data, state, folder)
    changes = tuple((address, get(requested, address)) for address in changed)
    return Session(appending, wire(requested, folder), state, data, (), changes)


def _same_or_die(data: Data, state: RunState, folder: Path) -> None:
    """End the command if the data are others than those of the run in a folder."""
    # The datapoints of earlier stages are in the recording; those of later ones would come from
    # other data.
    if data.info != state.dataset:
        problem = Problem(
            f"not the data that {folder} was started with",
            state.dataset.name,
            "restore the data, or start a new run",
        )
        die(Exit.RUN, problem)


def _requested(
    recorded: HyperParameters, given: dict[str, Any], provider: str | None
) -> HyperParameters:
    """The recorded parameters with the given ones laid over them, agent by agent."""
    given = with_provider(given, provider)
    agents = given.get("agents", {})
    single = spread(agents, tuple(agent.name for agent in recorded.agents))
    unknown = {name: fields for name, fields in agents.items() if name != DEFAULT_AGENT}
    return resolve(merge(to_dict(recorded), {**given, "agents": {**unknown, **single}}))


def run_session(session: Session, folder: Path, again: str, money: Money) -> RunState:
    """Run to the end.

    Args:
        session: The run.
        folder: Its folder.
        again: The command that resumes it, for the message of an early end.
        money: The prices and the budget.

    Returns:
        The state in which the run is done.  Ends the command if it is stopped before.
    """
    money = money_of_run(money, folder)
    keep_prices(folder, money.prices.own)
    # In each session: an earlier one may have been killed before it, or extended the run.
    replace_file(folder / CONFIG, to_toml(session.params).encode())
    running_cost = RunningCost(session.state, folder, money)
    budget = running_cost.budget
    models = with_budget(session.models, session.params, running_cost, money)
    world = World(
        sampler=models.sampler,
        tuner=models.tuner,
        publisher=models.publisher,
        source=session.data.source,
        store=session.store,
        tracker=JsonLines(folder, session.params, session.state, money.prices),
        drain=models.drain,
    )
    with rare_collections(), Display(session.state, lambda: str(running_cost), folder) as display:
        # In this order: the display shows the cost with that of the event included.
        observers: list[Observer] = [running_cost, display]
        if models.progress is not None:
            models.progress.follow = display.follow
        if session.params.text_rl.save_transcripts:
            observers.append(TranscriptFiles(folder))
        tidying = _Tidying(session.state, models.tidy)
        try:
            result = asyncio.run(_interpret(session, world, [*observers, tidying], tidying))
        except OSError as error:
            die_of_system(error, f"what was recorded before is kept, resume with: {again}")
        finally:
            budget.close()
    session.store.close()
    if lost := lost_line(budget.unrecorded):
        say(lost)
    match result:
        case Failure(problem) if str(problem) == str(budget.refusal):
            die(Exit.BUDGET, f"{problem}; resume with: {again} --budget MORE")
        case Failure(problem):
            # To resume a run is to keep its parameters, so it would end in the same place.
            kept = "this run keeps its parameters: start a new one that differs"
            kept = kept if problem.lasting else f"all replies so far are kept, resume with: {again}"
            die(Exit.ADAPTER, f"{problem}; {kept}")
        case Success(state) if state.stage.name != "done":
            die(Exit.INTERRUPTED, f"stopped; nothing is lost, resume with: {again}")
    return result.unwrap()


class _Tidying:
    """Deletes what was uploaded for a stage once the stage is over, as an observer of events."""

    def __init__(self, state: RunState, tidy: Callable[[RunState], Awaitable[None]]) -> None:
        self._state, self._tidy = state, tidy
        self._tasks: list[asyncio.Task[None]] = []

    def __call__(self, state: RunState, event: Event) -> None:
        self._state = state
        if isinstance(event, StageEnded):
            self._tasks.append(asyncio.ensure_future(self._try(state)))

    async def close(self) -> None:
        """Return once all is deleted that no resumed run needs."""
        await asyncio.gather(*self._tasks)
        await self._try(self._state)

    async def _try(self, state: RunState) -> None:
        try:
            await self._tidy(state)
        except OSError as error:  # of the notes about them; no run ends for files that are left
            say(f"nip-fn: warning: uploaded files may be left at the provider: {error}")


async def _interpret(
    session: Session, world: World, observers: Iterable[Observer], tidying: _Tidying
) -> Result[RunState, Problem]:
    """Interpret the run so that the first Ctrl-C stops it cleanly and the second one at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def observe(state: RunState, event: Event) -> None:
        for observer in observers:
            observer(state, event)

    def on_signal() -> None:
        seconds = grace_seconds(session.text_rl)
        say(
            f"stopping after the replies that are under way (at most {seconds:,.0f} s); press "
            "Ctrl-C again to stop at once"
        )
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    # SIGTERM, too: it is what batch systems send some seconds before they kill.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    result = await interpret(
        session.state,
        world,
        first=session.first,
        stop=stop,
        observe=observe,
        tell=say,
        text_rl=session.text_rl,
    )
    await tidying.close()
    return result
