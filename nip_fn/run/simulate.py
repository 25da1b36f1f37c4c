"""Whole runs without a world: a pure function takes the place of models, trainings and files."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

from nip_fn.config.resolve import checker_name
from nip_fn.game.checkers import CHECKERS, Checker
from nip_fn.game.datapoint import Dataset, content_hash
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.events import (
    BatchFetched,
    CheckAnswer,
    Checked,
    CreateJob,
    DatasetInfo,
    Effect,
    EndStage,
    Event,
    FetchBatch,
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
from nip_fn.run.request import PureSampler, request, scripted_completions
from nip_fn.run.state import EMPTY, RunState, answered_datapoint
from nip_fn.run.step import step

# (the state, an effect that it asks for) -> the events that answer it.
Perform = Callable[[RunState, Effect], Iterable[Event]]


def simulate(start: RunStarted, perform: Perform) -> Iterator[tuple[Event, RunState]]:
    """Every event of a run and the state after it, from the start to the end.

    The events are what a live run would have recorded: `checkpoint.write` saves them, `replay`
    derives the same states from them.

    Args:
        start: The first event.
        perform: The world, as a function: the events that answer an effect.

    Raises:
        ValueError: The run cannot go on; its cause is the `Problem`.
    """
    state, effects = step(EMPTY, start)
    yield start, state
    waiting = deque(effects)
    while waiting:
        # First come, first served is a choice of convenience: any order ends in the same state.
        effect = waiting.popleft()
        if isinstance(effect, Refuse):
            raise ValueError(str(effect.problem)) from effect.problem
        for event in perform(state, effect):
            state, effects = step(state, event)
            waiting.extend(effects)
            yield event, state


def started(params: HyperParameters, dataset: Dataset, version: str = "simulated") -> RunStarted:
    """The first event of a run with these parameters on a data set in memory."""
    splits = (dataset.train, dataset.validation, dataset.test)
    datapoints = tuple(point for split in splits for point in split)
    info = DatasetInfo(dataset.name, content_hash(datapoints), *map(len, splits))
    return RunStarted(params, info, version)


def pure_world(
    dataset: Dataset, sampler: PureSampler, *, checker: Checker | None = None
) -> Perform:
    """A world of one data set and one sampler, in which trainings only name their adapters.

    Args:
        dataset: The data that `FetchBatch` fetches from.
        sampler: The replies to a request of a model; scripts reply by themselves.  A trained
            adapter changes nothing but `Request.adapter`, so a sampler that is to learn looks at
            that.
        checker: Says if an answer is right; by default the one that the parameters name.
    """

    def perform(state: RunState, effect: Effect) -> Iterable[Event]:
        match effect:
            case FetchBatch(split, indices):
                points = dataset.split(split)
                return (BatchFetched(tuple(points[index] for index in indices)),)
            case SampleReplies(tree, ask):
                asked = request(state, effect)
                completions = (
                    sampler(asked)
                    if asked.script is None
                    else scripted_completions(state.resolved, asked)
                )
                (first, completion), *siblings = zip(ask.indices, completions, strict=True)
                answered = (tree, ask.path, ask.agent, first, ask.attempt, completion)
                return (Replied(*answered, tuple(siblings)),)
            case CheckAnswer(tree, answer):
                point = answered_datapoint(state, tree)
                check = checker or CHECKERS[checker_name(state.params, point.kind)]
                return (Checked(tree, answer, check(point, answer)),)
            case EndStage(iteration, stage):
                return (StageEnded(iteration, stage, digest(state), 0.0),)
            case CreateJob(job):
                return (JobCreated(job.name, job.data_hash),)
            case Train(job):
                # The name depends on the rows, as a real adapter's does on its weights: other rows
                # give another adapter, and a sampler that looks at the name sees the difference.
                mark = blake2b(job.data_hash.encode(), digest_size=4).hexdigest()
                return (JobFinished(job.name, f"{job.name}-{mark}"),)
            case Publish(group, _, adapter):
                return (Published(group, adapter),)
            case Refuse():
                return ()

    return perform
