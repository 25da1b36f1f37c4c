"""Trainings and publications: what is asked for, and what the answers change."""

from collections.abc import Callable

from msgspec.structs import replace

from nip_fn.config.groups import is_due
from nip_fn.keys import Key, fold_in, seed_of
from nip_fn.metrics.usage import Usage
from nip_fn.params.agent import AgentParameters, lora_alpha
from nip_fn.params.names import name_problem
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import CreateJob, JobCreated, JobFinished, Publish, Published, Train
from nip_fn.run.stages import Growing, JobState, Publishing, Training, is_over
from nip_fn.run.state import RunState, with_row
from nip_fn.training.canary import canary_metrics
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.losses import SFT, Loss
from nip_fn.training.rows import MIN_EXAMPLES, row_metrics
from nip_fn.training.tokens import trained_tokens
from nip_fn.training.trainer import Rows
from nip_fn.training.tuning import Job

# --------------------------------------------------------------------------------------- trainings


def start_training(state: RunState, sampled: Growing) -> RunState:
    """The state with a training for each group that is due and has enough rows."""
    by_group = {group_rows.group: group_rows for group_rows in sampled.rows}
    jobs = tuple(
        JobState(make_job(state.params, group, state.iteration, rows, loss, sampled.key))
        for group in state.groups
        if is_due(state.params, group, state.iteration) and group.name in by_group
        for _, rows, loss in [by_group[group.name]]
        if len(rows) >= MIN_EXAMPLES
    )
    return _trained(replace(state, stage=Training(sampled, jobs)))


def make_job(
    params: HyperParameters, group: Group, iteration: int, rows: Rows, loss: Loss, key: Key
) -> Job:
    """The training that follows an iteration; `key` is consumed by its seed."""
    agent: AgentParameters = params.agents[group.agents[0]]
    # Expert Iteration has a rate of its own, because imitation moves a model less than preferences
    # do at the same one.
    rate = (params.ei.lr if isinstance(loss, SFT) else None) or params.rl.lr
    start = None if agent.fine_tune_from_scratch else group.latest
    return Job(
        name=f"{group.name}-{iteration}",
        group=group.name,
        iteration=iteration,
        model=group.model,
        start=start,
        reference=_reference(agent, group, start),
        learning_rate=rate * (agent.agent_lr_factor or 1.0),
        num_epochs=agent.num_epochs or params.rl.num_epochs,
        loss=loss,
        lora_rank=agent.lora_rank,
        lora_alpha=lora_alpha(agent),
        lora_dropout=agent.lora_dropout,
        batch_size=agent.per_device_train_batch_size,
        # 31 bits fit a signed 32-bit integer, so every trainer can take the seed as it is.
        seed=seed_of(fold_in(key, "train", group.name), 31),
        rows=rows,
        use_lora=agent.use_lora,
        # The first training of a lineage has nothing to stack on.
        stack=agent.stack_lora_adapters and start is not None,
        gradient_checkpointing=agent.gradient_checkpointing,
        base_precision=agent.base_precision,
    )


def _reference(agent: AgentParameters, group: Group, start: str | None) -> str | None:
    """The reference, named and never implied: the last adapter ("previous"), or the base model.

    OpenAI's API takes none: there it is always what the training starts from.
    """
    if agent.model_provider == "OpenAI" and not agent.use_dummy_api:
        return start
    return group.latest if agent.dpo_reference == "previous" else None


def trainings(stage: Training) -> tuple[CreateJob | Train, ...]:
    """The trainings that have not ended, each to be created or followed."""
    return tuple(
        Train(running.job) if running.created else CreateJob(running.job)
        for running in stage.jobs
        if not running.ended
    )


def train(
    state: RunState, stage: Training, event: JobCreated | JobFinished
) -> tuple[RunState, tuple[Train, ...]]:
    """The state after a training was created, which is then to be followed, or has ended.

    Raises:
        ValueError: No training waits for that.
    """
    index = _index(stage.jobs, lambda running: running.job.name == event.job)
    running = stage.jobs[index]
    match event:
        # The intent is recorded before anything is paid: after a crash in between, the tuner looks
        # the job up by its name instead of starting it twice.
        # The hash ties the recorded intent to the rows that this version derives.  If they differ
        # the event fits nothing, instead of a training on other data being taken for this one.
        case JobCreated() if not running.created and event.data_hash == running.job.data_hash:
            created = replace(running, created=True)
            return _with_job(state, stage, index, created), (Train(running.job),)
        case JobFinished() if running.created and not running.ended:
            # Its folder has the adapter's name, too.
            if event.adapter is not None and (problem := name_problem(event.adapter, "adapter")):
                raise ValueError(str(problem)) from problem
            ended = replace(
                running,
                ended=True,
                adapter=event.adapter,
                report=event.report,
                scores=event.scores,
                problem=event.problem,
            )
            return _trained(_with_job(state, stage, index, ended)), ()
    raise ValueError(f"training {event.job} does not wait for {type(event).__name__}")


def _index(jobs: tuple[JobState, ...], is_meant: Callable[[JobState], bool]) -> int:
    index = next((index for index, job in enumerate(jobs) if is_meant(job)), None)
    if index is None:
        raise ValueError("the event is about no training of this stage")
    return index


def _with_job(state: RunState, stage: Training | Publishing, index: int, job: JobState) -> RunState:
    jobs = (*stage.jobs[:index], job, *stage.jobs[index + 1 :])
    return replace(state, stage=replace(stage, jobs=jobs))


def _trained(state: RunState) -> RunState:
    """Once every job has ended: the lineages grow, and the reports of the jobs become a row."""
    if not is_over(state.stage):
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
    tokens = {
        job_state.job.group: trained_tokens(job_state.job, job_state.adapter, job_state.report)
        for job_state in state.jobs
    }
    reports = tuple(
        (f"{group}.{name}", value)
        for job_state in state.jobs
        for group in [job_state.job.group]
        for name, value in (
            *row_metrics(job_state.job.rows),
            *{**dict(job_state.report), "train_tokens": tokens[group]}.items(),
        )
    )
    trained_names = {name: adapter.name for name, adapter in adapters.items()}
    usage = tuple(
        # A training belongs to a whole group; its first agent stands for it, as in `make_job`.
        Usage(group.agents[0], trained_names.get(group.name), trained=tokens[group.name])
        for group in groups
        if group.name in tokens
    )
    return with_row(replace(state, groups=groups), (*counts, *reports), usage)


def _adapter(job: Job, name: str) -> Adapter:
    return Adapter(
        name=name,
        iteration=job.iteration,
        parent=job.start,
        reference=job.reference,
        data_hash=job.data_hash,
        loss=job.loss.name,
    )


# ------------------------------------------------------------------------------------ publications


def start_publishing(state: RunState, stage: Training) -> RunState:
    """The state with the new adapters on their way to the sampler."""
    # A control that never learns trains as usual and publishes nothing.
    jobs = stage.jobs if state.params.text_rl.switch_adapters else ()
    return _published(replace(state, stage=Publishing(jobs)))


def publications(stage: Publishing) -> tuple[Publish, ...]:
    """The adapters that are still to be served or refused."""
    return tuple(
        Publish(
            job.group,
            job.model,
            str(trained.adapter),
            job.probes if trained.scores else (),
            trained.scores,
        )
        for trained in stage.jobs
        if trained.is_unserved
        for job in [trained.job]
    )


def publish(state: RunState, stage: Publishing, event: Published) -> RunState:
    """The state after an adapter was served or refused.

    Raises:
        ValueError: It is no adapter of this stage, or was published before.
    """
    index = _index(
        stage.jobs, lambda job: (job.job.group, job.adapter) == (event.group, event.adapter)
    )
    if not stage.jobs[index].is_unserved:
        raise ValueError(f"adapter {event.adapter} has been published already")
    served = replace(stage.jobs[index], published=True, canary=event.scores, problem=event.problem)
    return _published(_with_job(state, stage, index, served))


def _published(state: RunState) -> RunState:
    """Once every adapter is served or refused: the groups sample with those that are served.

    The scores of the probes become a row, if there were adapters to publish.
    """
    if not is_over(state.stage):
        return state
    published = {job_state.job.group: job_state for job_state in state.jobs if job_state.published}
    groups = tuple(
        _switched(group, published[group.name]) if group.name in published else group
        for group in state.groups
    )
    refused = sum(job_state.problem != "" for job_state in published.values())
    canaries = tuple(
        (f"{name}.{metric}", value)
        for name, job_state in published.items()
        for metric, value in canary_metrics(job_state.scores, job_state.canary)
    )
    state = replace(state, groups=groups)
    return (
        with_row(state, (("adapters_refused", float(refused)), *canaries)) if published else state
    )


def _switched(group: Group, under_way: JobState) -> Group:
    """The group with its new adapter; a refused one leaves its lineage again."""
    # A refused adapter was trained and paid for, but nothing may start from it: it was poisoned, or
    # another model answered in its name.
    if not under_way.problem:
        return replace(group, serving=under_way.adapter)
    kept = tuple(adapter for adapter in group.lineage if adapter.name != under_way.adapter)
    return replace(group, lineage=kept)
