"""Sampling and testing: datapoints, trees that grow reply by reply, and what they come to."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import reset
from nip_fn.keys import Key, fold_in, key, permutation
from nip_fn.metrics.forest import ForestStats, total_stats
from nip_fn.metrics.formulas import Metrics
from nip_fn.metrics.stage import forest_metrics, lineage_metrics, opponent_metrics, rollout_metrics
from nip_fn.metrics.usage import Usage, reply_usage
from nip_fn.params.agent import meets_others
from nip_fn.run.events import CheckAnswer, Checked, FetchBatch, Replied, SampleReplies
from nip_fn.run.forest import FinishedTree, Forest
from nip_fn.run.growth import Grown, grow_tree
from nip_fn.run.quotes import game_key
from nip_fn.run.stages import Fetching, GroupRows, Growing
from nip_fn.run.state import (
    RunState,
    adapter_of,
    rules,
    sample_batch,
    stage_key,
    with_row,
)
from nip_fn.training.rows import rows_problem
from nip_fn.training.trainer import SampleBatch, Selection
from nip_fn.trees.grow import Rules, new_tree
from nip_fn.trees.node import GameTree, ReplyRequest, pending_checks, pending_requests
from nip_fn.trees.rollouts import dialogue_of
from nip_fn.worlds import MEASURES

# (function, items) -> the function's value for each item, in the order of the items: `map`, or a
# function that computes the values in several processes.
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]

UNLIMITED = 2**62  # more datapoints than any data set has

# -------------------------------------------------------------------------------------- datapoints


def fetch(state: RunState) -> FetchBatch:
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
            limit = min(limit or UNLIMITED, _num_sampled(state))
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
    return min(state.dataset.train_size, state.params.dataset_options.max_train_size or UNLIMITED)


def _num_sampled(state: RunState) -> int:
    """The datapoints of the iteration under way: as its trainer says, or else the parameters."""
    rl, batch_size = state.params.rl, state.trainer.batch_size(state.trainer_state)
    if batch_size is not None:
        return batch_size
    # The *nip* library's measure of an iteration: rounds, every dialogue taken as one of the
    # longest.
    if rl.frames_per_batch is not None:
        return rl.frames_per_batch // state.protocol.max_message_rounds
    return rl.rollouts_per_iteration or _train_size(state)


# ------------------------------------------------------------------------------------------- trees


def is_reused(state: RunState) -> bool:
    """True if the trees of the stage grow from replies of another run."""
    reused = state.origin and state.origin.iteration
    return reused == state.iteration and state.stage.name == "sample"


def games_key(state: RunState) -> Key:
    """The key that the games of the stage get theirs from."""
    return state.origin.games if state.origin and is_reused(state) else stage_key(state)


def open_trees(state: RunState, stage: Fetching, datapoints: tuple[Datapoint, ...]) -> RunState:
    """The state with a tree about each datapoint that was fetched.

    Raises:
        ValueError: Another number of datapoints was waited for.
    """
    # Their number is all that can be checked, since datapoints do not carry their index.  Their
    # contents are covered by the digest.
    if len(datapoints) != len(fetch(state).indices):
        raise ValueError(f"stage {stage.name!r} has not asked for {len(datapoints)} datapoints")
    games, growth = games_key(state), rules(state)
    repeats = state.params.rl.num_test_iterations if stage.name == "test" else 1
    # A repeated test makes further trees about the same datapoints: their keys differ by the index
    # of the tree, so each is another sample of the same policy.
    forest = []
    for index, datapoint in enumerate(datapoints * repeats):
        game = game_key(games, index)
        root = new_tree(growth, reset(datapoint, game))
        about = index % len(datapoints)
        forest.append(GameTree(state.protocol.name, about, game, root, len(root.slots)))
    num_waiting = sum(tree.num_waiting for tree in forest)
    growing = Growing(stage.name, stage_key(state), datapoints, Forest.of(forest), num_waiting)
    return replace(state, stage=growing)


def requests(stage: Growing) -> tuple[SampleReplies | CheckAnswer, ...]:
    """All replies and checks that the stage waits for."""
    return tuple(
        effect
        for index, tree in stage.forest.growing()
        for effect in _effects(index, pending_requests(tree.root), pending_checks(tree.root))
    )


def _effects(
    tree: int, requests: Iterable[ReplyRequest], answers: Iterable[str]
) -> Iterator[SampleReplies | CheckAnswer]:
    yield from (SampleReplies(tree, request) for request in requests)
    yield from (CheckAnswer(tree, answer) for answer in answers)


def insert_event(
    state: RunState, stage: Growing, event: Replied | Checked
) -> tuple[RunState, tuple[SampleReplies | CheckAnswer, ...]]:
    """The state with the replies or the label in their tree, and the effects that follow.

    Raises:
        ValueError: Nothing waits for them.
    """
    tree, opened, answers = _grown_tree(rules(state), stage, event.tree, (event,))
    state = _with_trees(state, stage, {event.tree: tree})
    return state, tuple(_effects(event.tree, opened, answers))


def insert_all(
    state: RunState, stage: Growing, events: Iterable[Replied | Checked], map: Map
) -> RunState:
    """The state after `insert_event` of each of the events, which grows tree after tree.

    Raises:
        ValueError: Nothing waits for one of them.
    """
    events_of: dict[int, list[Replied | Checked]] = {}
    for event in events:
        events_of.setdefault(event.tree, []).append(event)
    growth = rules(state)

    def grow(index: int) -> GameTree | FinishedTree:
        return _grown_tree(growth, stage, index, events_of[index]).tree

    return _with_trees(state, stage, dict(zip(events_of, map(grow, tuple(events_of)), strict=True)))


def _grown_tree(
    growth: Rules, stage: Growing, index: int, events: Iterable[Replied | Checked]
) -> Grown:
    if not 0 <= index < len(stage.forest):
        raise ValueError(f"no tree {index} grows in stage {stage.name!r}")
    tree = stage.forest[index]
    return grow_tree(growth, stage.datapoints[tree.datapoint_index], tree, events)


def _with_trees(
    state: RunState, stage: Growing, trees: Mapping[int, GameTree | FinishedTree]
) -> RunState:
    """The state after some of its trees have grown."""
    more = sum(tree.num_waiting - stage.forest[index].num_waiting for index, tree in trees.items())
    num_waiting = stage.num_waiting + more
    stage = replace(stage, forest=stage.forest.replaced(trees), num_waiting=num_waiting)
    return replace(state, stage=stage) if num_waiting else _finished(state, stage)


# ----------------------------------------------------------------------------------- grown forests


def _finished(state: RunState, stage: Growing) -> RunState:
    """Once the last reply is in: metrics and, of an iteration, the trainer's update."""
    # Selection waits for all trees, because filters such as `balance` compare across them.
    state = replace(state, stage=stage)
    batch = sample_batch(state, stage)
    stats = tuple(tree.stats for tree in stage.forest.finished())
    usage = () if is_reused(state) else _usage(state, batch, stats)
    if stage.name == "test":
        return with_row(state, _metrics(state, batch, stats, None), usage)
    # One key for the whole update, folded from the stage: `replay.reselect` derives the same one
    # without the state.
    update = state.trainer.update(batch, state.trainer_state, fold_in(stage.key, "select"))
    selected = replace(
        stage,
        selection=update.selection,
        rows=tuple(
            GroupRows(group, rows, update.loss_of(group)) for group, rows in update.rows.items()
        ),
    )
    return with_row(
        replace(
            state,
            stage=selected,
            trainer_state=update.state,
            num_drawn=state.num_drawn + len(stage.datapoints),
        ),
        (*_metrics(state, batch, stats, update.selection), *update.metrics),
        usage,
    )


def update_problem(state: RunState, stage: Growing) -> Problem | None:
    """The reason why nothing can be trained on the rows of the trainer's update; None if it can."""
    problems: Iterator[Problem | None] = (
        rows_problem(state.params.trainer, group, rows, loss) for group, rows, loss in stage.rows
    )
    return next(filter(None, problems), None)


def _usage(state: RunState, batch: SampleBatch, stats: Sequence[ForestStats]) -> tuple[Usage, ...]:
    return reply_usage(
        (tree.efforts for tree in stats),
        lambda tree, agent: adapter_of(state, batch.trees[tree].key, agent),
    )


def _metrics(
    state: RunState, batch: SampleBatch, stats: Sequence[ForestStats], selection: Selection | None
) -> Metrics:
    protocol, pairs = batch.protocol, None if selection is None else selection.pairs
    pooled = selection is not None and any(map(meets_others, state.params.agents))
    absent = [agent for _, agent in batch.off_policy]
    return (
        *forest_metrics(protocol, total_stats(stats), batch.trees, pairs),
        *(_measures(state, batch) if selection is None else ()),
        *(rollout_metrics(protocol, selection.rollouts) if selection else ()),
        *(opponent_metrics(protocol, absent, len(batch.trees)) if pooled else ()),
        *lineage_metrics(batch.groups),
    )


def _measures(state: RunState, batch: SampleBatch) -> Metrics:
    """The measures of a test that only its world has, of a dialogue of each tree."""
    measures = MEASURES.get(state.params.dataset)
    if measures is None:
        return ()
    return measures(
        [dialogue_of(tree, batch.datapoint(index)) for index, tree in enumerate(batch.trees)]
    )
