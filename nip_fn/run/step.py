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

from nip_fn.game.datapoint import Datapoint, Split
from nip_fn.game.episode import reset
from nip_fn.keys import fold_in, key, permutation
from nip_fn.metrics.formulas import Metrics
from nip_fn.metrics.stage import lineage_metrics, stage_metrics
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import (
    BatchFetched,
    CreateJob,
    DatasetInfo,
    Effect,
    EndStage,
    Event,
    Extended,
    FetchBatch,
    JobCreated,
    JobFinished,
    Publish,
    Published,
    Replied,
    RunStarted,
    SampleReplies,
    StageEnded,
    Train,
)
from nip_fn.run.state import (
    EMPTY,
    Bank,
    JobState,
    Row,
    RunState,
    Stage,
    digest,
    episode_of,
    is_tested,
    rules,
    sample_batch_of,
    stage_key,
    tree_key,
)
from nip_fn.select.pairs import Pair
from nip_fn.select.rollouts import SelectedRollout, selected_rollout_metrics
from nip_fn.training.groups import Adapter, Group, GroupState, is_due, make_groups, set_state
from nip_fn.training.jobs import MIN_EXAMPLES, Job, Score, canary_metrics, make_job, row_metrics
from nip_fn.training.registry import trainer_of
from nip_fn.training.tokens import trained_tokens
from nip_fn.trees.grow import ReplyArrival, insert, new_tree, pending_requests


def step(state: RunState, event: Event) -> tuple[RunState, tuple[Effect, ...]]:
    """The state after one more event, and what it asks of the world.

    Raises `ValueError` for an event that answers nothing that the state has asked for.
    """
    match event:
        case RunStarted():
            return _enter_iteration(_start(state, event))
        case BatchFetched():
            return _entered(_plant(state, event.datapoints))
        case Replied():
            return _reply(state, event)
        case StageEnded():
            return _advance(_check(state, event))
        case JobCreated() | JobFinished() | Published():
            return _job(state, event)
        case Extended():
            return _entered(_extend(state, event))


def scan(events: Iterable[Event], state: RunState = EMPTY) -> Iterator[RunState]:
    """The state after each of the events, starting from `state`."""
    for event in events:
        state, _ = step(state, event)
        yield state


def pending(state: RunState) -> tuple[Effect, ...]:
    """Everything that the state waits for: what is to be done when a run is resumed."""
    if _is_over(state):
        return (EndStage(state.iteration, state.stage),)
    match state.stage:
        case "test" | "sample" if not state.forest:
            return (_draw(state),)
        case "test" | "sample":
            return tuple(
                SampleReplies(index, ask)
                for index, root in enumerate(state.forest)
                for ask in pending_requests(root)
            )
        case "train":
            return tuple(
                Train(under_way.job) if under_way.created else CreateJob(under_way.job)
                for under_way in state.jobs
                if not under_way.ended
            )
        case "publish":
            return tuple(
                _publish(under_way.job, under_way.adapter, under_way.scores)
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
            return all(job.ended for job in state.jobs)
        case "publish":
            return all(job.published or job.adapter is None for job in state.jobs)
    return False


def _publish(job: Job, adapter: str, expected: tuple[Score, ...]) -> Publish:
    return Publish(job.group, job.model, adapter, job.probes if expected else (), expected)


# ------------------------------------------------------------------------------ the cases of `step`


def _start(state: RunState, event: RunStarted) -> RunState:
    if state.stage != "start":
        raise ValueError("the run has started already")
    problem = data_problem(event.params, event.dataset)
    if problem:
        raise ValueError(problem)
    loaded = dict(event.loaded)
    groups = tuple(
        set_state(group, GroupState((loaded[group.name],), loaded[group.name].name))
        if group.name in loaded
        else group
        for group in make_groups(event.params)
    )
    return RunState(params=event.params, dataset=event.dataset, groups=groups)


def _extend(state: RunState, event: Extended) -> RunState:
    """A run that was done, about to sample with the models that it ended with."""
    if state.stage != "done" or event.num_iterations <= state.params.rl.num_iterations:
        raise ValueError(f"{state.stage!r} cannot go on to {event.num_iterations} iterations")
    rl = replace(state.params.rl, num_iterations=event.num_iterations)
    return replace(state, params=replace(state.params, rl=rl), stage="sample")


def data_problem(params: HyperParameters, dataset: DatasetInfo) -> str | None:
    """Why a run with these parameters cannot use that data; None where it can."""
    needed: list[Split] = ["train"] if params.rl.num_iterations else []
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


def _draw(state: RunState) -> FetchBatch:
    """Which datapoints the stage is about.

    Training goes through permutations of the train split keyed by (seed, epoch), one after the
    other: place n of the run is place n modulo size of epoch n // size, so it never runs out.
    """
    params, root = state.params, key(state.params.seed)
    if state.stage == "test":
        split = params.test_dataset_split
        limit = params.dataset_options.max_test_size
        if not params.text_rl.test_on_whole_dataset:
            limit = min(limit or 2**62, _num_sampled(state, state.iteration))
        return FetchBatch(split, tuple(range(state.dataset.size(split)))[:limit])
    size, count = _train_size(state), _num_sampled(state, state.iteration)
    start = sum(_num_sampled(state, earlier) for earlier in range(state.iteration))
    epochs = range(start // size, (start + count - 1) // size + 1)
    orders = {epoch: permutation(fold_in(root, "epoch", epoch), size) for epoch in epochs}
    return FetchBatch(
        "train", tuple(int(orders[n // size][n % size]) for n in range(start, start + count))
    )


def _train_size(state: RunState) -> int:
    """The datapoints that are trained on at all."""
    return min(state.dataset.train_size, state.params.dataset_options.max_train_size or 2**62)


def _num_sampled(state: RunState, iteration: int) -> int:
    """The datapoints of an iteration."""
    rl, ei = state.params.rl, state.params.ei
    if ei.rollouts_per_iteration and trainer_of(state.params, iteration).name == "ei":
        return ei.rollouts_per_iteration
    if rl.frames_per_batch is not None:
        return rl.frames_per_batch // protocol_of(state.params).max_message_rounds
    return rl.rollouts_per_iteration or _train_size(state)


def _plant(state: RunState, datapoints: tuple[Datapoint, ...]) -> RunState:
    if pending(state) != (_draw(state),) or len(datapoints) != len(_draw(state).indices):
        raise ValueError(f"stage {state.stage!r} has not asked for {len(datapoints)} datapoints")
    repeats = state.params.rl.num_test_iterations if state.stage == "test" else 1
    how = rules(state)
    forest = tuple(
        new_tree(how, reset(datapoint, tree_key(state, index)))
        for index, datapoint in enumerate(datapoints * repeats)
    )
    num_waiting = sum(len(root.slots) for root in forest)
    return replace(state, datapoints=datapoints, forest=forest, num_waiting=num_waiting)


def _reply(state: RunState, event: Replied) -> tuple[RunState, tuple[Effect, ...]]:
    index = event.tree
    if not 0 <= index < len(state.forest):
        raise ValueError(f"no tree {index} grows in stage {state.stage!r}")
    given = ReplyArrival(event.path, event.agent, event.index, event.attempt, event.completion)
    root, asks = insert(rules(state), state.forest[index], episode_of(state, index), given)
    forest = (*state.forest[:index], root, *state.forest[index + 1 :])
    opened = sum(len(ask.indices) for ask in asks)
    state = replace(state, forest=forest, num_waiting=state.num_waiting - 1 + opened)
    if state.num_waiting:
        return state, tuple(SampleReplies(index, ask) for ask in asks)
    return _entered(_harvest(state))


def _harvest(state: RunState) -> RunState:
    """What the grown forest of a stage comes to."""
    protocol = protocol_of(state.params)
    pairs: tuple[Pair, ...] | None = None
    chosen: tuple[SelectedRollout, ...] = ()
    if state.stage == "sample":
        trainer = trainer_of(state.params, state.iteration)
        selection = trainer.select(sample_batch_of(state), fold_in(stage_key(state), "select"))
        state = replace(state, selection=selection)
        pairs = tuple(one for one in selection if isinstance(one, Pair))
        chosen = tuple(one for one in selection if isinstance(one, SelectedRollout))
    metrics = (
        *stage_metrics(protocol, state.datapoints, state.forest, pairs),
        *(selected_rollout_metrics(protocol, chosen) if chosen else ()),
        *lineage_metrics(state.groups),
    )
    return _with_row(state, metrics)


def _with_row(state: RunState, metrics: Metrics) -> RunState:
    return replace(state, rows=(*state.rows, Row(state.iteration, state.stage, metrics)))


def _check(state: RunState, event: StageEnded) -> RunState:
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
            banked, jobs = _plan(state)
            return _entered(_trained(replace(state, stage="train", banked=banked, jobs=jobs)))
        case "train":
            cleared = replace(state, datapoints=(), forest=(), selection=())
            jobs = state.jobs if state.params.text_rl.switch_adapters else ()
            return _entered(_published(replace(cleared, stage="publish", jobs=jobs)))
        case "publish":
            return _enter_iteration(replace(state, iteration=state.iteration + 1, jobs=()))
    raise ValueError(f"stage {state.stage!r} cannot be sealed")


def _plan(state: RunState) -> tuple[tuple[Bank, ...], tuple[JobState, ...]]:
    """The trainings after sampling, one for each group that is due and has enough examples.

    And all rows so far, where later iterations are to train on them, too.
    """
    params, trainer = state.params, trainer_of(state.params, state.iteration)
    harvest, banked, jobs = sample_batch_of(state), list(state.banked), list[JobState]()
    for group in state.groups:
        rows = trainer.rows(harvest, state.selection, group)
        if params.text_rl.fine_tune_on_all_previous_rollouts:
            banked.append(Bank(trainer.name, group.name, rows))
            same = (trainer.name, group.name)
            rows = tuple(
                row for bank in banked if (bank.trainer, bank.group) == same for row in bank.rows
            )
        if is_due(params, group, state.iteration) and len(rows) >= MIN_EXAMPLES:
            job = make_job(params, group, state.iteration, rows, stage_key(state))
            jobs.append(JobState(job))
    return tuple(banked), tuple(jobs)


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
            ended = replace(
                under_way,
                ended=True,
                adapter=event.adapter,
                report=event.report,
                scores=event.scores,
                problem=event.problem,
            )
            done = _trained(_with_job(state, at, ended))
            return done, pending(done) if _is_over(done) else ()
        case Published():
            told = replace(under_way, published=True, canary=event.scores, problem=event.problem)
            done = _published(_with_job(state, at, told))
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
            running = under_way.created and not under_way.ended
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
    adapters = {
        under_way.job.group: _adapter(under_way.job, under_way.adapter)
        for under_way in state.jobs
        if under_way.adapter is not None
    }
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
        for name, value in (*row_metrics(under_way.job.rows), *_reported(under_way))
    )
    counts = (
        ("jobs", float(len(state.jobs))),
        ("jobs_skipped", float(due - len(state.jobs))),
        ("jobs_failed", float(len(state.jobs) - len(adapters))),
    )
    return _with_row(replace(state, groups=groups), (*counts, *reports))


def _reported(under_way: JobState) -> Metrics:
    """What a training reported, and in any case `train_tokens`: those that were paid for."""
    tokens = trained_tokens(under_way.job, under_way.adapter, under_way.report)
    return tuple({**dict(under_way.report), "train_tokens": tokens}.items())


def _adapter(job: Job, name: str) -> Adapter:
    return Adapter(
        name=name,
        iteration=job.iteration,
        parent=job.start,
        reference=job.reference,
        data_hash=job.data_hash,
        method=job.method,
    )


def _published(state: RunState) -> RunState:
    """Once every adapter is served or refused: the groups sample with those that are served, and
    what was refused and scored is a row.
    """
    if not _is_over(state):
        return state
    told = {under_way.job.group: under_way for under_way in state.jobs if under_way.published}
    groups = tuple(
        _switched(group, told[group.name]) if group.name in told else group
        for group in state.groups
    )
    refused = sum(under_way.problem != "" for under_way in told.values())
    canaries = tuple(
        (f"{name}.{metric}", value)
        for name, under_way in told.items()
        for metric, value in canary_metrics(under_way.scores, under_way.canary)
    )
    state = replace(state, groups=groups)
    return _with_row(state, (("adapters_refused", float(refused)), *canaries)) if told else state


def _switched(group: Group, under_way: JobState) -> Group:
    """The group with its new adapter; one that is refused is no part of its lineage any more."""
    if not under_way.problem:
        return replace(group, serving=under_way.adapter)
    kept = tuple(adapter for adapter in group.lineage if adapter.name != under_way.adapter)
    return replace(group, lineage=kept)
