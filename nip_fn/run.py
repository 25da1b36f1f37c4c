"""A run is a scan over recorded events.

    step : (RunState, Event) -> (RunState, tuple[Effect, ...])

Training feeds `step` with what live adapters answer, resuming with what was recorded and then live,
replaying with what was recorded alone.  An iteration is

    test   dialogues about held-out problems, with the models as they are
    sample trees of replies about training problems; selection
    train  a job for each trained group that has enough examples
    publish  the new adapters

and after the last iteration one more test.  The state is a function of the *set* of events, not of
the order in which the answers to concurrent effects came in.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nip_fn.data import Datapoint, Split
from nip_fn.episode import reset
from nip_fn.events import (
    AskTree,
    CreateJob,
    DatasetInfo,
    Draw,
    Drawn,
    Effect,
    Event,
    JobCreated,
    JobFinished,
    Publish,
    Published,
    Replied,
    RunStarted,
    Seal,
    StageDone,
    Train,
)
from nip_fn.finetune import MIN_EXAMPLES, Adapter, Job, is_due, make_groups, make_job
from nip_fn.growth import Given, answer, plant, waiting
from nip_fn.keys import fold_in, key, permutation
from nip_fn.metrics import Metrics, effort_metrics, outcome_metrics, pair_metrics
from nip_fn.params import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.state import (
    EMPTY,
    JobState,
    Row,
    RunState,
    Stage,
    digest,
    episode_of,
    is_tested,
    rules,
    stage_key,
    tree_key,
)
from nip_fn.trainers.registry import trainer_of


def step(state: RunState, event: Event) -> tuple[RunState, tuple[Effect, ...]]:
    """The state after one more event, and what it asks of the world.

    Raises `ValueError` for an event that answers nothing that the state has asked for.
    """
    match event:
        case RunStarted():
            return _enter_iteration(_start(state, event))
        case Drawn():
            return _entered(_plant(state, event.datapoints))
        case Replied():
            return _reply(state, event)
        case StageDone():
            return _advance(_check(state, event))
        case JobCreated() | JobFinished() | Published():
            return _job(state, event)


def scan(events: Iterable[Event], state: RunState = EMPTY) -> Iterator[RunState]:
    """The state after each of the events, starting from `state`."""
    for event in events:
        state, _ = step(state, event)
        yield state


def pending(state: RunState) -> tuple[Effect, ...]:
    """Everything that the state waits for: what is to be done when a run is resumed."""
    if _is_over(state):
        return (Seal(state.iteration, state.stage, digest(state)),)
    match state.stage:
        case "test" | "sample" if not state.forest:
            return (_draw(state),)
        case "test" | "sample":
            return tuple(
                AskTree(index, ask)
                for index, root in enumerate(state.forest)
                for ask in waiting(root)
            )
        case "train":
            return tuple(
                Train(under_way.job) if under_way.created else CreateJob(under_way.job)
                for under_way in state.jobs
                if under_way.adapter is None
            )
        case "publish":
            return tuple(
                Publish(under_way.job.group, under_way.adapter)
                for under_way in state.jobs
                if under_way.adapter is not None and not under_way.published
            )
    return ()


def _is_over(state: RunState) -> bool:
    """Whether the stage under way waits for nothing but its seal."""
    match state.stage:
        case "test" | "sample":
            return bool(state.forest) and not state.num_waiting
        case "train":
            return all(job.adapter is not None for job in state.jobs)
        case "publish":
            return all(job.published for job in state.jobs)
    return False


# ------------------------------------------------------------------------------ the cases of `step`


def _start(state: RunState, event: RunStarted) -> RunState:
    if state.stage != "start":
        raise ValueError("the run has started already")
    problem = data_problem(event.params, event.dataset)
    if problem:
        raise ValueError(problem)
    return RunState(params=event.params, dataset=event.dataset, groups=make_groups(event.params))


def data_problem(params: HyperParameters, dataset: DatasetInfo) -> str | None:
    """Why a run with these parameters cannot use that data; None where it can."""
    needed: list[Split] = ["train"]
    if params.text_rl.test_scheme != "none":
        needed.append(params.test_dataset_split)
    empty = [split for split in needed if not dataset.size(split)]
    return f"dataset: {dataset.name} has no datapoints in {empty[0]!r}" if empty else None


def _enter_iteration(state: RunState) -> tuple[RunState, tuple[Effect, ...]]:
    over = state.iteration == state.params.rl.num_iterations
    if is_tested(state.params, state.iteration):
        return _entered(replace(state, stage="test"))
    return _entered(replace(state, stage="done" if over else "sample"))


def _entered(state: RunState) -> tuple[RunState, tuple[Effect, ...]]:
    return state, pending(state)


def _draw(state: RunState) -> Draw:
    """Which datapoints the stage is about.

    Training goes through permutations of the train split keyed by (seed, epoch), one after the
    other: place n of the run is place n modulo size of epoch n // size, so it never runs out.
    """
    params, root = state.params, key(state.params.seed)
    if state.stage == "test":
        split = params.test_dataset_split
        limit = params.dataset_options.max_test_size
        return Draw(split, tuple(range(state.dataset.size(split)))[:limit])
    size = min(state.dataset.train_size, params.dataset_options.max_train_size or 2**62)
    count = params.rl.rollouts_per_iteration or size
    start = state.iteration * count
    epochs = range(start // size, (start + count - 1) // size + 1)
    orders = {epoch: permutation(fold_in(root, "epoch", epoch), size) for epoch in epochs}
    return Draw(
        "train", tuple(int(orders[n // size][n % size]) for n in range(start, start + count))
    )


def _plant(state: RunState, datapoints: tuple[Datapoint, ...]) -> RunState:
    if pending(state) != (_draw(state),) or len(datapoints) != len(_draw(state).indices):
        raise ValueError(f"stage {state.stage!r} has not asked for {len(datapoints)} datapoints")
    repeats = state.params.rl.num_test_iterations if state.stage == "test" else 1
    how = rules(state)
    forest = tuple(
        plant(how, reset(datapoint, tree_key(state, index)))
        for index, datapoint in enumerate(datapoints * repeats)
    )
    num_waiting = sum(len(root.slots) for root in forest)
    return replace(state, datapoints=datapoints, forest=forest, num_waiting=num_waiting)


def _reply(state: RunState, event: Replied) -> tuple[RunState, tuple[Effect, ...]]:
    index = event.tree
    if not 0 <= index < len(state.forest):
        raise ValueError(f"no tree {index} grows in stage {state.stage!r}")
    given = Given(event.path, event.agent, event.index, event.attempt, event.completion)
    root, asks = answer(rules(state), state.forest[index], episode_of(state, index), given)
    forest = (*state.forest[:index], root, *state.forest[index + 1 :])
    opened = sum(len(ask.indices) for ask in asks)
    state = replace(state, forest=forest, num_waiting=state.num_waiting - 1 + opened)
    if state.num_waiting:
        return state, tuple(AskTree(index, ask) for ask in asks)
    return _entered(_harvest(state))


def _harvest(state: RunState) -> RunState:
    """What the grown forest of a stage comes to."""
    protocol = protocol_of(state.params)
    metrics = (
        *outcome_metrics(state.datapoints, state.forest),
        *effort_metrics(protocol, state.forest),
    )
    if state.stage == "sample":
        selection = trainer_of(state.params).select(
            state.params, state.forest, fold_in(stage_key(state), "select")
        )
        state = replace(state, selection=selection)
        metrics = (*metrics, *pair_metrics(protocol, selection))
    return _with_row(state, metrics)


def _with_row(state: RunState, metrics: Metrics) -> RunState:
    return replace(state, rows=(*state.rows, Row(state.iteration, state.stage, metrics)))


def _check(state: RunState, event: StageDone) -> RunState:
    """The state sealed: its digest becomes its past, and must be the recorded one."""
    if not _is_over(state):
        raise ValueError(f"stage {state.stage!r} is not over")
    derived = digest(state)
    fault = (
        f"iteration {event.iteration}, stage {event.stage}: recorded digest {event.digest}, "
        f"derived {derived} in iteration {state.iteration}, stage {state.stage}"
    )
    same = (event.iteration, event.stage, event.digest) == (state.iteration, state.stage, derived)
    return replace(
        state,
        past=derived,
        seconds=(*state.seconds, (state.iteration, state.stage, event.seconds)),
        faults=state.faults if same else (*state.faults, fault),
    )


def _advance(state: RunState) -> tuple[RunState, tuple[Effect, ...]]:
    """From a sealed stage into the next one."""
    match state.stage:
        case "test":
            over = state.iteration == state.params.rl.num_iterations
            cleared = replace(state, datapoints=(), forest=())
            return _entered(replace(cleared, stage="done" if over else "sample"))
        case "sample":
            jobs = tuple(JobState(job) for job in _plan(state))
            return _entered(_trained(replace(state, stage="train", jobs=jobs)))
        case "train":
            cleared = replace(state, datapoints=(), forest=(), selection=())
            jobs = state.jobs if state.params.text_rl.switch_adapters else ()
            return _entered(_published(replace(cleared, stage="publish", jobs=jobs)))
        case "publish":
            return _enter_iteration(replace(state, iteration=state.iteration + 1, jobs=()))
    raise ValueError(f"stage {state.stage!r} cannot be sealed")


def _plan(state: RunState) -> tuple[Job, ...]:
    """The trainings after sampling: one for each trained group with enough examples."""
    keys = tuple(tree_key(state, index) for index in range(len(state.forest)))
    trainer = trainer_of(state.params)
    jobs = []
    for group in state.groups:
        rows = trainer.rows(
            state.params, state.datapoints, state.forest, keys, state.selection, group
        )
        if is_due(state.params, group, state.iteration) and len(rows) >= MIN_EXAMPLES:
            jobs.append(make_job(state.params, group, state.iteration, rows, stage_key(state)))
    return tuple(jobs)


def _job(
    state: RunState, event: JobCreated | JobFinished | Published
) -> tuple[RunState, tuple[Effect, ...]]:
    at = next((i for i, job in enumerate(state.jobs) if _is_awaited(state.stage, job, event)), None)
    if at is None:
        raise ValueError(f"stage {state.stage!r} waits for no such thing: {event}")
    under_way = state.jobs[at]
    match event:
        case JobCreated():
            state = _with_job(state, at, replace(under_way, created=True))
            return state, (Train(under_way.job),)
        case JobFinished():
            ended = replace(under_way, adapter=event.adapter, report=event.report)
            done = _trained(_with_job(state, at, ended))
            return done, pending(done) if _is_over(done) else ()
        case Published():
            done = _published(_with_job(state, at, replace(under_way, published=True)))
            return done, pending(done) if _is_over(done) else ()


def _is_awaited(
    stage: Stage, under_way: JobState, event: JobCreated | JobFinished | Published
) -> bool:
    """Whether the event is the next one in the life of that job."""
    job = under_way.job
    match event:
        case JobCreated():
            new = (event.job, event.data_hash) == (job.name, job.data_hash)
            return new and stage == "train" and not under_way.created
        case JobFinished():
            running = under_way.created and under_way.adapter is None
            return event.job == job.name and stage == "train" and running
        case Published():
            ready = (event.group, event.adapter) == (job.group, under_way.adapter)
            return ready and stage == "publish" and not under_way.published


def _with_job(state: RunState, at: int, job: JobState) -> RunState:
    return replace(state, jobs=(*state.jobs[:at], job, *state.jobs[at + 1 :]))


def _trained(state: RunState) -> RunState:
    """Once every job has ended: the lineages grow, and what the jobs reported is a row."""
    if not _is_over(state):
        return state
    adapters = {under_way.job.group: _adapter(under_way) for under_way in state.jobs}
    groups = tuple(
        replace(group, lineage=(*group.lineage, adapters[group.name]))
        if group.name in adapters
        else group
        for group in state.groups
    )
    due = sum(is_due(state.params, group, state.iteration) for group in groups)
    reports = tuple(
        (f"{under_way.job.group}.{name}", value)
        for under_way in state.jobs
        for name, value in under_way.report
    )
    counts = (("jobs", float(len(state.jobs))), ("jobs_skipped", float(due - len(state.jobs))))
    return _with_row(replace(state, groups=groups), (*counts, *reports))


def _adapter(under_way: JobState) -> Adapter:
    job = under_way.job
    return Adapter(
        name=under_way.adapter or "",
        iteration=job.iteration,
        parent=job.start,
        reference=job.reference,
        data_hash=job.data_hash,
    )


def _published(state: RunState) -> RunState:
    """Once every adapter is served: the groups sample with it."""
    if not _is_over(state):
        return state
    served = {under_way.job.group: under_way.adapter for under_way in state.jobs}
    groups = tuple(
        replace(group, serving=served.get(group.name, group.serving)) for group in state.groups
    )
    return replace(state, groups=groups)
