"""Plans of runs, made of written settings: nothing is created before a plan is right."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from msgspec.structs import replace

from nip_fn import __version__
from nip_fn.config.checks import warnings
from nip_fn.config.codec import by_address, merge, params_hash, spread, to_dict
from nip_fn.config.presets import model_problems, with_preset
from nip_fn.config.spelling import PROVIDERS
from nip_fn.config.trainers import trainer_of
from nip_fn.config.unused import unused
from nip_fn.errors import Problem, one_line
from nip_fn.params.names import is_plain_name, is_reference
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.checkpoint import Recording
from nip_fn.run.events import Event
from nip_fn.run.fork import fork_point
from nip_fn.run.reuse import fork_problem
from nip_fn.run.state import RunState
from nip_fn.testing.check import ProtocolError, check_protocol
from nip_fn.testing.trainers import TrainerError, check_trainer
from nip_fn.training.groups import Adapter
from nip_fn_adapters import extensions
from nip_fn_adapters.experiments.loading import Loaded, first_adapters, load_agents, with_loaded
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.prompt_files import with_templates
from nip_fn_adapters.experiments.recordings import open_recording, replay_recording
from nip_fn_adapters.experiments.settings import resolve, with_base_url, with_provider
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.extensions import Sources
from nip_fn_adapters.recording.runs import changed_sources, checkpoint_file
from nip_fn_adapters.recording.store import CHECKPOINT


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
        """The state that the events lead to; refuses one that is not as recorded."""
        state = replay_recording(self.folder / CHECKPOINT, Recording(self.events, 0, 0)).state
        if state.faults:
            refuse(mismatch(self.folder, state))
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


def mismatch(folder: Path, state: RunState) -> Problem:
    """The problem of a recording that leads to something else than was recorded."""
    return Problem(state.faults[0], str(folder / CHECKPOINT), kind="mismatch")


def plan(settings: dict[str, Any], provider: str | None, runs: Path, watch: Watch = NOBODY) -> New:
    """The plan of the run that a written configuration describes.

    Args:
        settings: The configuration; what it leaves out is as `with_preset` has it for its models.
        provider: The provider of all agents, whatever the configuration says of them.
        runs: The folder of the earlier runs that agents may continue from.
        watch: Told of warnings.

    Returns:
        The plan; nothing has been created.  Refuses if there is a problem with it.
    """
    # References first: the protocol says which agents there are, and so which fields are right.
    extensions.register(settings).unwrap()
    loaded = load_agents(settings, runs).unwrap()
    # An agent that is loaded brings its model, on which the settings depend.
    table = with_provider(with_preset(with_loaded(settings, loaded)), provider)
    # Strategies of agents that are loaded, or scripted because the provider is.
    extensions.register({"agents": table.get("agents", {})}).unwrap()
    params = with_base_url(resolve(with_templates(table)), watch)
    for problem in (*model_problems(params), *_broken_laws(params)):
        refuse(problem)
    for problem in warnings(params):
        watch.warn(problem)
    sources = extensions.sources(table).unwrap()
    return New(params, loaded, first_adapters(loaded, params).unwrap(), sources)


def plan_fork(
    run: str, iteration: int | None, table: dict[str, Any], provider: str | None, runs: Path
) -> New:
    """The plan of a run that selects and trains again from the replies of an earlier one.

    Args:
        run: The earlier run, its folder or its name.
        iteration: Of that run; None: the last that it has sampled.
        table: A written configuration; what it leaves out is as in the earlier run, except that
            the iteration is the last one.
        provider: The provider of all agents, which must be that of the earlier run.
        runs: The folder of the runs.

    Returns:
        The plan; nothing has been created.  Refuses if there is a problem with it.
    """
    path = checkpoint_file(Path(run), runs).alt(lambda problem: problem.at("`forest`")).unwrap()
    recording = open_recording(path)
    for problem in changed_sources(recording):
        refuse(problem)
    name = path.resolve().parent.name
    point = (
        fork_point(recording.events, iteration).alt(lambda problem: problem.at(str(path))).unwrap()
    )
    extensions.register(to_dict(point.params)).unwrap()
    extensions.register(table).unwrap()
    rl = replace(point.params.rl, num_iterations=point.iteration + 1)
    params = requested(replace(point.params, rl=rl), table, provider)
    if refused := fork_problem(point.params, params):
        refuse(refused)
    if params.rl.num_iterations <= point.iteration:
        problem = Problem(
            f"the run ends before iteration {point.iteration} of {name} would be trained on",
            "rl.num_iterations",
            f"ask for at least {point.iteration + 1}, or leave it out",
        )
        refuse(problem)
    sources = extensions.sources(to_dict(params)).unwrap()
    events = point.fork(params, run=name, version=__version__, sources=sources)
    return New(params, (), (), sources, Fork(events, path.parent, point.iteration))


def _broken_laws(params: HyperParameters) -> Iterator[Problem]:
    """The first law that the run's game or its trainer breaks, where these are the user's own."""
    game, trainer = params.interaction_protocol, params.trainer
    if is_reference(game):
        check = partial(check_protocol, PROTOCOLS[game], params, num_games=20)
        yield from _violations(check, game, "check_protocol")
    if is_reference(trainer) and params.rl.num_iterations:
        # Before a reply is paid for, which the trainer would then make nothing of.  Of two replies
        # to a prompt: a game of many rounds would take hours with more.
        made = trainer_of(params)
        narrow = made._replace(branching=lambda *turns: min(2, made.branching(*turns)))
        check = partial(check_trainer, narrow, params, iterations=2, num_trees=12)
        yield from _violations(check, trainer, "check_trainer")


def _violations(check: Callable[[], None], reference: str, suite: str) -> Iterator[Problem]:
    try:
        check()
    except (ProtocolError, TrainerError) as error:
        first, *further = str(error).splitlines()
        more = f" ({len(further)} more: nip_fn.{suite} lists them)" if further else ""
        yield Problem(f"{first}{more}", reference)
    except Exception as error:  # whatever a user's own code raises
        why = f"{type(error).__name__}: {one_line(error)}"
        yield Problem(why, reference, f"correct it; nip_fn.{suite} tests it")


def warn_of_unused(
    settings: dict[str, Any], provider: str | None, planned: Iterable[New], watch: Watch
) -> None:
    """Tell of what was written and has no effect in any of the runs that were planned of it."""
    before, after = by_address(settings), by_address(with_provider(settings, provider))
    sources = (".model_provider", ".use_dummy_api")
    for address in sorted(name for name in before if name.endswith(sources)):
        # That no random replies were asked for is what most files say, and all that are completed
        # by the defaults.
        values = {PROVIDERS.get(table[address], table[address]) for table in (before, after)}
        if len(values) > 1 and before[address] is not False:
            watch.warn(f"without effect, since `provider` goes before it: {address}")
    for line in unused(settings, [new.params for new in planned]):
        watch.warn(line)


def requested(
    recorded: HyperParameters, table: dict[str, Any], provider: str | None
) -> HyperParameters:
    """The recorded parameters with the given ones laid over them, agent by agent."""
    table = with_provider(table, provider)
    agents = table.get("agents", {})
    single = spread(agents, tuple(agent.name for agent in recorded.agents))
    unknown = {name: fields for name, fields in agents.items() if name != DEFAULT_AGENT}
    return resolve(merge(to_dict(recorded), {**table, "agents": {**unknown, **single}}))


def checked_name(name: str | None) -> str | None:
    """The name, if it can be that of a folder in the folder of all runs; refuses any other.

    Otherwise `../x` would write beside that folder, and no list of runs would show it.
    """
    if name is not None and not is_plain_name(name):
        last = name.rstrip("/").rpartition("/")[2]
        advice = f"`name` {quote(last)}" if last.strip(".") else "a word"
        problem = "a name is that of a folder in the folder of all runs, and cannot be a path"
        refuse(Problem(problem, f"`name` {quote(name)}", f"write {advice}"))
    return name


def usual_name(params: HyperParameters) -> str:
    """TRAINER-PROTOCOL-HASH, the name of a run that is given none."""
    base = f"{params.trainer}-{params.interaction_protocol}-{params_hash(params)[:8]}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", base)  # a reference to one's own has / and :


def free_name(runs: Path, params: HyperParameters) -> str:
    """The usual name, with a number if that run exists already."""
    plain = usual_name(params)
    names = chain((plain,), (f"{plain}-{number}" for number in count(2)))
    return next(name for name in names if not (runs / name).exists())
