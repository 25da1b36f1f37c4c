"""A run is a scan over recorded events.

    step : (RunState, Event) -> (RunState, tuple[Effect, ...])

Training feeds `step` with the answers of live adapters, resuming with what was recorded and then
live, replaying with what was recorded alone.  An iteration is

    test     dialogues about held-out problems, with the models as they are
    sample   trees of replies about training problems; selection
    train    a job for each trained group that has enough rows
    publish  the new adapters

and after the last iteration one more test.  The state is a function of the *set* of events, not of
the order in which the answers to concurrent effects came in.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from nip_fn.config.data_checks import needed_splits
from nip_fn.config.groups import is_due, make_groups
from nip_fn.config.trainers import trainer_of
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import reset
from nip_fn.keys import Key, fold_in, key, permutation
from nip_fn.metrics.formulas import Metrics
from nip_fn.metrics.stage import lineage_metrics, opponent_metrics, rollout_metrics, stage_metrics
from nip_fn.metrics.usage import Usage, reply_usage
from nip_fn.params.agent import group_name_problems, meets_others
from nip_fn.params.names import name_problem
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names, protocol_of
from nip_fn.run.digest import digest
from nip_fn.run.events import (
    BatchFetched,
    CreateJob,
    DatasetInfo,
    Effect,
    EndStage,
    Event,
    Extended,
    FetchBatch,
    Forked,
    JobCreated,
    JobFinished,
    Publish,
    Published,
    Refuse,
    Replied,
    RunStarted,
    SampleReplies,
    StageEnded,
    Train,
)
from nip_fn.run.jobs import make_job
from nip_fn.run.quotes import game_key
from nip_fn.run.reuse import fork_problem
from nip_fn.run.sizes import MOST_ITERATIONS, size_problems
from nip_fn.run.stages import (
    Done,
    Fetching,
    Growing,
    JobState,
    NotStarted,
    Publishing,
    Training,
)
from nip_fn.run.state import (
    EMPTY,
    Origin,
    Row,
    RunState,
    adapter_of,
    episode_of,
    is_tested,
    rules,
    sample_batch,
    stage_key,
)
from nip_fn.training.canary import canary_metrics
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.rows import MIN_EXAMPLES, row_metrics, rows_problem
from nip_fn.training.tokens import trained_tokens
from nip_fn.training.trainer import SampleBatch, Selection
from nip_fn.training.tuning import Job
from nip_fn.trees.forest import Forest
from nip_fn.trees.grow import insert, new_tree
from nip_fn.trees.node import GameTree, ReplyArrival, ReplyRequest, num_waiting_at, pending_requests
from nip_fn.trees.rollouts import dialogue_of
from nip_fn.worlds import MEASURES

Stepped = tuple[RunState, tuple[Effect, ...]]


def step(state: RunState, event: Event) -> Stepped:
    """The state after one more event, and the effects that it asks for.

    Raises:
        ValueError: The event answers nothing that the state has asked for.
    """
    # The event is matched together with the stage.  What fits no pair falls through to the error,
    # so a damaged or foreign recording is refused before any part of it is applied.
    match event, state.stage:
        case RunStarted(), NotStarted():
            return _enter_iteration(_start(event))
        case BatchFetched(datapoints), Fetching() as stage:
            return _entered(_open_trees(state, stage, datapoints))
        case Replied(), Growing() as stage:
            return _reply(state, stage, event)
        case JobCreated() | JobFinished(), Training() as stage:
            return _training(state, stage, event)
        case Published(), Publishing() as stage:
            return _publishing(state, stage, event)
        case StageEnded(), _ if _is_over(state):
            return _advance(_sealed(state, event))
        case Extended(num), Done() if state.params.rl.num_iterations < num <= MOST_ITERATIONS:
            return _entered(_extended(state, event))
        case Forked(), Fetching(name="sample"):
            return _entered(_forked(state, event))
    raise ValueError(f"stage {state.stage.name!r} does not wait for {type(event).__name__}")


def scan(events: Iterable[Event], state: RunState = EMPTY) -> Iterator[RunState]:
    """The state after each of the events, starting from `state`."""
    for event in events:
        # The effects can be dropped: the events that follow are their answers.
        state, _ = step(state, event)
        yield state


def pending(state: RunState) -> tuple[Effect, ...]:
    """Everything that the state waits for: the effects to perform when a run is resumed."""
    # Derived from the state and stored nowhere: a list of open effects would be a second account of
    # the same facts, and a crash could come between the two.
    if _is_over(state):
        return (EndStage(state.iteration, state.stage.name),)
    match state.stage:
        case Fetching():
            return (_fetch(state),)
        case Growing(forest=forest):
            return tuple(
                SampleReplies(index, request)
                for index, game in forest.growing()
                for request in pending_requests(game.root)
            )
        case Training(jobs=jobs):
            # Before any of them is created, so that nothing is paid for a part of an update.
            refusals = (
                rows_problem(state.params.trainer, one.job.group, one.job.rows) for one in jobs
            )
            if refusal := next(filter(None, refusals), None):
                return (Refuse(refusal),)
            return tuple(
                Train(job.job) if job.created else CreateJob(job.job)
                for job in jobs
                if not job.ended
            )
        case Publishing(jobs=jobs):
            return tuple(_publish(job) for job in jobs if _waits_to_be_served(job))
    return ()


def _is_over(state: RunState) -> bool:
    """True if the stage under way waits for nothing but its end."""
    # A stage that waits for nothing still has to be sealed: its digest is recorded before anything
    # is built on it, so that a replay that derives something else names the stage where it began.
    match state.stage:
        case Growing(num_waiting=num):
            return num == 0
        case Training(jobs=jobs):
            return all(job.ended for job in jobs)
        case Publishing(jobs=jobs):
            return not any(map(_waits_to_be_served, jobs))
    return False


def _waits_to_be_served(job: JobState) -> bool:
    return job.adapter is not None and not job.published


def _publish(under_way: JobState) -> Publish:
    job, expected = under_way.job, under_way.scores
    probes = job.probes if expected else ()
    return Publish(job.group, job.model, str(under_way.adapter), probes, expected)


# --------------------------------------------------------------------------- iterations and stages


def _start(event: RunStarted) -> RunState:
    params = event.params
    for problem in (*_agent_problems(params), *data_problems(params, event.dataset)):
        raise ValueError(str(problem))
    # An adapter of an earlier run stands in the lineage as if it had been trained here: it samples,
    # and trainings start from it.
    loaded = dict(event.loaded)
    for adapter in loaded.values():
        _check_adapter(adapter.name)
    groups = tuple(
        replace(group, lineage=(loaded[group.name],), serving=loaded[group.name].name)
        if group.name in loaded
        else group
        for group in make_groups(params)
    )
    return RunState(
        params=params,
        dataset=event.dataset,
        groups=groups,
        trainer_state=trainer_of(params).init(groups),
    )


def _agent_problems(params: HyperParameters) -> Iterator[Problem]:
    """A problem with parameters that no configuration leads to: those of other agents."""
    if params.interaction_protocol not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        told = f"{params.interaction_protocol!r} is no protocol of this version"
        yield Problem(told, "interaction_protocol", f"the protocols are {known}")
        return
    names = agent_names(params.interaction_protocol)
    if tuple(agent.name for agent in params.agents) != names:
        yield Problem(f"its agents are not {', '.join(names)}", "agents")
    yield from group_name_problems(params.agents)


def _check_adapter(name: str) -> None:
    """Raise `ValueError` if an adapter has a name that is not plain: its folder has it, too."""
    if problem := name_problem(name, "adapter"):
        raise ValueError(str(problem))


def data_problems(params: HyperParameters, dataset: DatasetInfo) -> Iterator[Problem]:
    """The reasons why a run with these parameters cannot use that data, or never ends with it."""
    for split in needed_splits(params):
        if not dataset.size(split):
            yield Problem(
                f"{dataset.name} has no datapoints in {split!r}",
                "dataset",
                "choose other data (--dataset), or other shares (dataset_options)",
            )
    yield from size_problems(params, dataset)


def _extended(state: RunState, event: Extended) -> RunState:
    """A finished run, about to sample with the models that it ended with."""
    # Straight to sampling: if the scheme wanted this iteration's model tested, it has been, when
    # the run was done.
    rl = replace(state.params.rl, num_iterations=event.num_iterations)
    return replace(state, params=replace(state.params, rl=rl), stage=Fetching("sample"))


def _forked(state: RunState, event: Forked) -> RunState:
    """A run of its own, about to be given the replies that another one sampled here."""
    params = event.params
    problems = (fork_problem(state.params, params), *data_problems(params, state.dataset))
    for problem in filter(None, problems):
        raise ValueError(str(problem))
    if params.rl.num_iterations <= state.iteration:
        raise ValueError(f"the run has no iteration {state.iteration}")
    # With the seed the key of the stage may change, but not those of the games: what the agents
    # were shown may depend on them.
    return replace(
        state,
        params=params,
        origin=Origin(event.run, state.iteration, _games_key(state)),
        # All this was paid for, and waited for, by the other run.
        rows=tuple(replace(row, usage=()) for row in state.rows),
        seconds=tuple((iteration, name, 0.0) for iteration, name, _ in state.seconds),
    )


def _is_reused(state: RunState) -> bool:
    """True if the trees of the stage grow from replies of another run."""
    taken = state.origin and state.origin.iteration
    return taken == state.iteration and state.stage.name == "sample"


def _games_key(state: RunState) -> Key:
    """The key that the games of the stage get theirs from."""
    return state.origin.games if state.origin and _is_reused(state) else stage_key(state)


def _enter_iteration(state: RunState) -> Stepped:
    if is_tested(state.params, state.iteration):
        return _entered(replace(state, stage=Fetching("test")))
    return _entered(_after_test(state))


def _after_test(state: RunState) -> RunState:
    over = state.iteration == state.params.rl.num_iterations
    return replace(state, stage=Done() if over else Fetching("sample"))


def _entered(state: RunState) -> Stepped:
    return state, pending(state)


def _sealed(state: RunState, event: StageEnded) -> RunState:
    """The state with its digest as its past; a fault if the recorded digest is another one."""
    derived, name = digest(state), state.stage.name
    # A fault is noted and the scan continues, because a replay that stops would show nothing of the
    # stages after it, which may be what its user needs to see.
    fault = (
        f"iteration {event.iteration}, stage {event.stage}: recorded digest {event.digest}, "
        f"derived {derived} in iteration {state.iteration}, stage {name}"
    )
    same = (event.iteration, event.stage, event.digest) == (state.iteration, name, derived)
    return replace(
        state,
        # The derived digest, not the recorded one: whatever is built on a stage in doubt is in
        # doubt, too, and each later stage says so.
        past=derived,
        seconds=(*state.seconds, (state.iteration, name, event.seconds)),
        faults=state.faults if same else (*state.faults, fault),
    )


def _advance(state: RunState) -> Stepped:
    """From an ended stage into the next one."""
    match state.stage:
        case Growing(name="test"):
            return _entered(_after_test(state))
        case Growing() as sampled:
            return _entered(
                _trained(replace(state, stage=Training(sampled, _jobs(state, sampled))))
            )
        case Training(jobs=jobs):
            # A control that never learns trains as usual and publishes nothing.
            served = jobs if state.params.text_rl.switch_adapters else ()
            return _entered(_published(replace(state, stage=Publishing(served))))
        case Publishing():
            return _enter_iteration(replace(state, iteration=state.iteration + 1))
    raise ValueError(f"stage {state.stage.name!r} does not end")


def _with_row(state: RunState, metrics: Metrics, usage: tuple[Usage, ...] = ()) -> RunState:
    row = Row(state.iteration, state.stage.name, metrics, usage)
    return replace(state, rows=(*state.rows, row))


# -------------------------------------------------------------------------------------- datapoints


def _fetch(state: RunState) -> FetchBatch:
    """The datapoints that the stage is about.

    Training goes through permutations of the train split keyed by (seed, epoch), one after the
    other: place n of the run is place n modulo size of epoch n // size, so it never runs out, and
    which datapoint it is does not depend on how iterations divide the run.
    """
    params, root = state.params, key(state.params.seed)
    if state.stage.name == "test":
        split = params.test_dataset_split
        # Every test plays the same datapoints in the same order, so that two iterations can be
        # compared problem by problem.
        limit = params.dataset_options.max_test_size
        if not params.text_rl.test_on_whole_dataset:
            limit = min(limit or 2**62, _num_sampled(state))
        return FetchBatch(split, tuple(range(state.dataset.size(split))[:limit]))
    # The *nip* library skips what earlier iterations took in a shuffled loader, and hangs once that
    # is more than the loader holds.
    size, count, start = _train_size(state), _num_sampled(state), state.num_drawn
    epochs = range(start // size, (start + count - 1) // size + 1)
    orders = {epoch: permutation(fold_in(root, "epoch", epoch), size) for epoch in epochs}
    return FetchBatch(
        "train", tuple(orders[n // size][n % size] for n in range(start, start + count))
    )


def _train_size(state: RunState) -> int:
    """The datapoints that are trained on at all."""
    # More than any data set has stands for no limit, here and above, and saves a case.
    return min(state.dataset.train_size, state.params.dataset_options.max_train_size or 2**62)


def _num_sampled(state: RunState) -> int:
    """The datapoints of the iteration under way: as its trainer says, or else the parameters."""
    rl, own = state.params.rl, trainer_of(state.params).batch_size(state.trainer_state)
    if own is not None:
        return own
    # The *nip* library's measure of an iteration: rounds, every dialogue taken as one of the
    # longest.
    if rl.frames_per_batch is not None:
        return rl.frames_per_batch // protocol_of(state.params).max_message_rounds
    return rl.rollouts_per_iteration or _train_size(state)


# ------------------------------------------------------------------------------------------- trees


def _open_trees(state: RunState, stage: Fetching, datapoints: tuple[Datapoint, ...]) -> RunState:
    # Their number is all that can be checked, since datapoints do not carry their index.  Their
    # contents are covered by the digest.
    if len(datapoints) != len(_fetch(state).indices):
        raise ValueError(f"stage {stage.name!r} has not asked for {len(datapoints)} datapoints")
    own_key, games = stage_key(state), _games_key(state)
    repeats = state.params.rl.num_test_iterations if stage.name == "test" else 1
    how = rules(state)
    # A repeated test makes further trees about the same datapoints: their keys differ by the index
    # of the tree, so each is another sample of the same policy.
    forest = []
    for index, point in enumerate(datapoints * repeats):
        own = game_key(games, index)
        root = new_tree(how, reset(point, own))
        forest.append(GameTree(index % len(datapoints), own, root, len(root.slots)))
    num_waiting = sum(game.num_waiting for game in forest)
    grown = Growing(stage.name, own_key, datapoints, Forest.of(forest), num_waiting)
    return replace(state, stage=grown)


def _reply(state: RunState, stage: Growing, event: Replied) -> Stepped:
    index = event.tree
    if not 0 <= index < len(stage.forest):
        raise ValueError(f"no tree {index} grows in stage {stage.name!r}")
    game, episode, how = stage.forest[index], episode_of(stage, index), rules(state)
    root, requests = game.root, tuple[ReplyRequest, ...]()
    for slot, completion in event.completions:
        arrival = ReplyArrival(event.path, event.agent, slot, event.attempt, completion)
        root, asks = insert(how, root, episode, arrival)
        requests += asks
    more = num_waiting_at(root, event.path) - num_waiting_at(game.root, event.path)
    game = replace(game, root=root, num_waiting=game.num_waiting + more)
    forest = stage.forest.replaced(index, game)
    stage = replace(stage, forest=forest, num_waiting=stage.num_waiting + more)
    state = replace(state, stage=stage)
    if stage.num_waiting:
        return state, tuple(SampleReplies(index, request) for request in requests)
    return _entered(_grown(state, stage))


def _grown(state: RunState, stage: Growing) -> RunState:
    """Once the last reply is in: metrics and, of an iteration, the trainer's update."""
    # Selection waits for all trees, because filters such as `balance` compare across them.
    batch = sample_batch(state, stage)
    usage = reply_usage(batch.trees, lambda tree, agent: adapter_of(state, tree.key, agent))
    usage = () if _is_reused(state) else usage
    if stage.name == "test":
        return _with_row(state, _metrics(batch, None), usage)
    trainer = trainer_of(state.params)
    # One key for the whole update, folded from the stage: `replay.reselect` derives the same one
    # without the state.
    update = trainer.update(batch, state.trainer_state, fold_in(stage.key, "select"))
    chosen = replace(stage, selection=update.selection, rows=tuple(update.rows.items()))
    return _with_row(
        replace(
            state,
            stage=chosen,
            trainer_state=update.state,
            num_drawn=state.num_drawn + len(stage.datapoints),
        ),
        (*_metrics(batch, update.selection), *update.metrics),
        usage,
    )


def _metrics(batch: SampleBatch, selection: Selection | None) -> Metrics:
    protocol, pairs = batch.protocol, None if selection is None else selection.pairs
    pooled = selection is not None and any(map(meets_others, batch.params.agents))
    earlier = batch.not_learnt_from(range(len(protocol.agents))) if pooled else ()
    return (
        *stage_metrics(protocol, batch.datapoints, batch.trees, pairs),
        *(world_metrics(batch) if selection is None else ()),
        *(rollout_metrics(protocol, selection.rollouts) if selection else ()),
        *(opponent_metrics(protocol, [a for _, a in earlier], len(batch.trees)) if pooled else ()),
        *lineage_metrics(batch.groups),
    )


def world_metrics(batch: SampleBatch) -> Metrics:
    """The measures of a test that only its world has, of a dialogue of each tree."""
    measures = MEASURES.get(batch.params.dataset)
    if measures is None:
        return ()
    return measures(
        [dialogue_of(tree, batch.datapoint(index)) for index, tree in enumerate(batch.trees)]
    )


# --------------------------------------------------------------------------------------- trainings


def _jobs(state: RunState, sampled: Growing) -> tuple[JobState, ...]:
    """The trainings after sampling, one for each group that is due and has enough rows."""
    rows = dict(sampled.rows)
    return tuple(
        JobState(make_job(state.params, group, state.iteration, rows[group.name], sampled.key))
        for group in state.groups
        if is_due(state.params, group, state.iteration)
        and len(rows.get(group.name, ())) >= MIN_EXAMPLES
    )


def _training(state: RunState, stage: Training, event: JobCreated | JobFinished) -> Stepped:
    at = _index(stage.jobs, lambda one: one.job.name == event.job)
    under_way = stage.jobs[at]
    match event:
        # The intent is recorded before anything is paid: after a crash in between, the tuner looks
        # the job up by its name instead of starting it twice.
        # The hash ties the recorded intent to the rows that this version derives.  If they differ
        # the event fits nothing, instead of a training on other data being taken for this one.
        case JobCreated() if not under_way.created and event.data_hash == under_way.job.data_hash:
            changed = replace(under_way, created=True)
            return _with_job(state, stage, at, changed), (Train(under_way.job),)
        case JobFinished() if under_way.created and not under_way.ended:
            if event.adapter is not None:
                _check_adapter(event.adapter)
            changed = replace(
                under_way,
                ended=True,
                adapter=event.adapter,
                report=event.report,
                scores=event.scores,
                problem=event.problem,
            )
            return _settled(_trained(_with_job(state, stage, at, changed)))
    raise ValueError(f"training {event.job} does not wait for {type(event).__name__}")


def _publishing(state: RunState, stage: Publishing, event: Published) -> Stepped:
    at = _index(
        stage.jobs, lambda one: (one.job.group, one.adapter) == (event.group, event.adapter)
    )
    if not _waits_to_be_served(stage.jobs[at]):
        raise ValueError(f"adapter {event.adapter} has been published already")
    changed = replace(stage.jobs[at], published=True, canary=event.scores, problem=event.problem)
    return _settled(_published(_with_job(state, stage, at, changed)))


def _settled(state: RunState) -> Stepped:
    """The state, and the end of its stage as its effect if nothing else is waited for.

    All jobs are asked for when the stage begins, so no event of one of them asks for another.
    """
    return state, pending(state) if _is_over(state) else ()


def _index(jobs: tuple[JobState, ...], is_meant: Callable[[JobState], bool]) -> int:
    at = next((index for index, job in enumerate(jobs) if is_meant(job)), None)
    if at is None:
        raise ValueError("the event is about no training of this stage")
    return at


def _with_job(state: RunState, stage: Training | Publishing, at: int, job: JobState) -> RunState:
    jobs = (*stage.jobs[:at], job, *stage.jobs[at + 1 :])
    return replace(state, stage=replace(stage, jobs=jobs))


def _trained(state: RunState) -> RunState:
    """Once every job has ended: the lineages grow, and the reports of the jobs become a row."""
    if not _is_over(state):
        return state
    # Jobs end in any order.  Lineages and the row are made once, from all of them in the order of
    # groups, so that the order cannot show.
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
    # A group that was due and got no job had too few rows.  It is counted, because a group that
    # silently never trains looks like one that does not learn.
    due = sum(is_due(state.params, group, state.iteration) for group in groups)
    counts = (
        ("jobs", float(len(state.jobs))),
        ("jobs_skipped", float(due - len(state.jobs))),
        ("jobs_failed", float(len(state.jobs) - len(adapters))),
    )
    tokens = {one.job.group: trained_tokens(one.job, one.adapter, one.report) for one in state.jobs}
    reports = tuple(
        (f"{group}.{name}", value)
        for one in state.jobs
        for group in [one.job.group]
        for name, value in (
            *row_metrics(one.job.rows),
            *{**dict(one.report), "train_tokens": tokens[group]}.items(),
        )
    )
    trained_names = {name: adapter.name for name, adapter in adapters.items()}
    usage = tuple(
        # A training belongs to a whole group; its first agent stands for it, as in `make_job`.
        Usage(group.agents[0], trained_names.get(group.name), trained=tokens[group.name])
        for group in groups
        if group.name in tokens
    )
    return _with_row(replace(state, groups=groups), (*counts, *reports), usage)


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
    """Once every adapter is served or refused: the groups sample with those that are served.

    The scores of the probes become a row, if there were adapters to publish.
    """
    if not _is_over(state):
        return state
    told = {one.job.group: one for one in state.jobs if one.published}
    groups = tuple(
        _switched(group, told[group.name]) if group.name in told else group
        for group in state.groups
    )
    refused = sum(one.problem != "" for one in told.values())
    canaries = tuple(
        (f"{name}.{metric}", value)
        for name, one in told.items()
        for metric, value in canary_metrics(one.scores, one.canary)
    )
    state = replace(state, groups=groups)
    return _with_row(state, (("adapters_refused", float(refused)), *canaries)) if told else state


def _switched(group: Group, under_way: JobState) -> Group:
    """The group with its new adapter; a refused one leaves its lineage again."""
    # A refused adapter was trained and paid for, but nothing may start from it: it was poisoned, or
    # another model answered in its name.
    if not under_way.problem:
        return replace(group, serving=under_way.adapter)
    kept = tuple(adapter for adapter in group.lineage if adapter.name != under_way.adapter)
    return replace(group, lineage=kept)
