"""The beginning of a session: a new run, or one that is resumed."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nip_fn import __version__
from nip_fn.config.codec import differences, get
from nip_fn.errors import Problem
from nip_fn.run.checkpoint import Recording, frame
from nip_fn.run.events import Replied, RunStarted
from nip_fn.run.reuse import may_resume
from nip_fn.run.state import EMPTY, RunState
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.experiments.datasets import opened_data, suitable_data
from nip_fn_adapters.experiments.loading import copy_adapters
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.plans import Fork, New, mismatch, plan, requested
from nip_fn_adapters.experiments.recordings import replay_recording
from nip_fn_adapters.experiments.session import Session
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.experiments.wiring import Models, wire
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.runs import changed_sources
from nip_fn_adapters.recording.store import CHECKPOINT, AppendStore


def create(folder: Path, new: New, data: Data | None = None, watch: Watch = NOBODY) -> Session:
    """The session of a new run in a folder of its own; `data` goes before the named data set."""
    # Whatever may fail comes before the store: a run that is refused leaves no checkpoint behind,
    # and its name stays free.
    data, models = suitable_data(new.params, watch, data), wire(new.params, folder, watch)
    if new.fork:
        _check_same_data(data, new.fork.state, new.fork.folder)
    return _new_session(store.create(folder).unwrap(), models, new, data, folder, watch)


def _new_session(
    appending: AppendStore, models: Models, new: New, data: Data, folder: Path, watch: Watch
) -> Session:
    if new.fork:
        return _forked(appending, models, new.fork, data, folder, watch)
    for loaded in new.loaded:
        copy_adapters([loaded.adapter.name] if loaded.adapter else [], loaded.folder, folder)
    start = RunStarted(new.params, data.info, __version__, new.lineages, sources=new.sources)
    return Session(appending, models, EMPTY, data, (start,))


def _forked(
    appending: AppendStore, models: Models, fork: Fork, data: Data, folder: Path, watch: Watch
) -> Session:
    adapters = (adapter.name for group in fork.state.groups for adapter in group.lineage)
    copy_adapters(adapters, fork.folder, folder)
    appending.begin(b"".join(map(frame, fork.events)))
    replies = sum(len(event.completions) for event in fork.events if isinstance(event, Replied))
    watch.tell(
        f"from {fork.folder}, iteration {fork.iteration}: {replies:,} replies are used again"
    )
    return Session(appending, models, fork.state, data, ())


def reopen(
    folder: Path,
    table: dict[str, Any],
    provider: str | None,
    *,
    data: Data | None = None,
    new: New | None = None,
    watch: Watch = NOBODY,
) -> Session:
    """The session that resumes the run in a folder.

    Args:
        folder: The run's folder.
        table: A written configuration; it may only repeat the run's parameters.
        provider: The provider that was given for all agents, likewise.
        data: The data that the run was created with, if not the data set of its parameters.
        new: The plan of the run, in case it died before its start was recorded; None: as given.
        watch: Told of what is repaired.

    Returns:
        The session, in the state in which the recording ends.  Refuses a run that cannot be
        resumed as it was: it is damaged or in use, or its data, its parameters or the source of
        its own protocol, trainer, selector or data set are others.
    """
    appending, recording = store.reopen(folder).unwrap()
    # A refusal gives the file back: whoever asked again in the same process would find it in use.
    with ExitStack() as on_refusal:
        on_refusal.callback(appending.close)
        session = _reopened(folder, appending, recording, table, provider, data, new, watch)
        on_refusal.pop_all()
    return session


def _reopened(
    folder: Path,
    appending: AppendStore,
    recording: Recording,
    table: dict[str, Any],
    provider: str | None,
    data: Data | None,
    new: New | None,
    watch: Watch,
) -> Session:
    if recording.torn:
        watch.tell(f"cut {recording.torn} bytes of an unfinished event off {folder / CHECKPOINT}")
    if not recording.events:  # its writer died before it could record the start
        new = new or plan(table, provider, folder.parent, watch)
        models = wire(new.params, folder, watch)
        data = suitable_data(new.params, watch, data)
        return _new_session(appending, models, new, data, folder, watch)
    # Before the replay: another source may fail to derive the run at all, in less helpful words.
    for problem in changed_sources(recording):
        refuse(problem)
    state = replay_recording(folder / CHECKPOINT, recording, watch).state
    if state.faults:
        refuse(mismatch(folder, state))
    # Compared as parameters rather than as options: to repeat one is no change.
    params = requested(state.params, table, provider)
    changed = differences(state.params, params)
    recorded = [address for address in changed if not may_resume(state.params, params, address)]
    if recorded:
        problem = Problem(
            f"{recorded[0]} differs from the run's",
            remedy="a resumed run keeps its parameters, but for its servers, keys, limits and what "
            "it does about failures: leave the option out, or start a new run",
        )
        refuse(problem)
    data = data or opened_data(state.params, watch)
    _check_same_data(data, state, folder)
    changes = tuple((address, get(params, address)) for address in changed)
    return Session(appending, wire(params, folder, watch), state, data, (), changes)


def _check_same_data(data: Data, state: RunState, folder: Path) -> None:
    """Refuse data that are others than those of the run in a folder."""
    # The datapoints of earlier stages are in the recording; those of later ones would come from
    # other data.
    if data.info != state.dataset:
        problem = Problem(
            f"not the data that {folder} was started with",
            state.dataset.name,
            "restore the data, or start a new run",
            kind="run",
        )
        refuse(problem)
