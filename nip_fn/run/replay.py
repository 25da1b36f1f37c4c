"""Replays: every stage of a recording derived again, and other selections from the same trees."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from returns.result import Failure, Result, Success

from nip_fn.config.groups import make_groups
from nip_fn.config.trainers import backup_of, find_trainer, malt_of
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.keys import fold_in, key
from nip_fn.metrics.forest import ForestStats, forest_stats, total_stats
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import BatchFetched, Checked, Event, Replied, StageEnded
from nip_fn.run.forest import Forest
from nip_fn.run.reuse import reselect_problem
from nip_fn.run.sampling import Map, insert_all
from nip_fn.run.stages import Growing, NotStarted, Purpose
from nip_fn.run.state import EMPTY, RunState, sample_batch
from nip_fn.run.step import step
from nip_fn.training.trainer import Rows, SampleBatch, Selection, Trainer
from nip_fn.trees.backup import Backup
from nip_fn.trees.packed import PackedTree
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn.trees.tree import Tree, children_of, flatten_packed

MOST_TOLD = 500  # characters of an error, which may quote the event


@dataclass(frozen=True)
class StageForest:
    """The trees of a test or an iteration, as they stood when the stage ended."""

    # There may be many stages: their trees are kept packed.  Arrays, chats and rows are made when
    # they are asked for, so a replay that shows none of them makes none.
    _ended: RunState = field(repr=False)
    _grown: Growing
    _trees: tuple[PackedTree, ...] = field(repr=False)
    _trainer_state: Any = field(repr=False)
    # Those of an iteration would take a fifth of the memory of its events, and few ask for them.
    _test_stats: ForestStats | None = field(repr=False)

    @classmethod
    def of(cls, state: RunState, grown: Growing, trainer_state: Any) -> Self:
        """The grown trees of the state's stage; `trainer_state` is from before their update."""
        trees = tuple(grown.forest.finished())
        is_test = grown.name == "test"
        test_stats = total_stats([tree.stats for tree in trees]) if is_test else None
        ended = replace(state, stage=NotStarted())
        grown = replace(grown, forest=Forest(), rows=())
        packed = tuple(tree.packed for tree in trees)
        return cls(ended, grown, packed, trainer_state, test_stats)

    @property
    def params(self) -> HyperParameters:
        """The run's parameters in that stage."""
        return self._ended.params

    @property
    def stage(self) -> Purpose:
        """Either "test" or "sample"."""
        return self._grown.name

    @property
    def selection(self) -> Selection:
        """The selection that was made from the trees; nothing in a test."""
        return self._grown.selection

    @cached_property
    def batch(self) -> SampleBatch:
        """The trees, their datapoints, and the groups that replied."""
        return sample_batch(self._ended, self._grown, tuple(map(flatten_packed, self._trees)))

    @cached_property
    def stats(self) -> ForestStats:
        """The ends of the `games`, and the counts of their replies."""
        return self._test_stats or forest_stats(self.batch.datapoints, self.batch.trees)

    @cached_property
    def rows(self) -> tuple[tuple[str, Rows], ...]:
        """(group, training rows) made of the selection; nothing in a test."""
        if self.stage == "test":
            return ()
        select_key = fold_in(self._grown.key, "select")
        update = self._ended.trainer.update(self.batch, self._trainer_state, select_key)
        return tuple(update.rows.items())

    @property
    def iteration(self) -> int:
        """The iteration, counted from 0."""
        return self._ended.iteration

    def datapoint(self, tree: int) -> Datapoint:
        """The datapoint of a tree."""
        return self.batch.datapoint(tree)

    def trees_about(self, datapoint_id: str) -> tuple[int, ...]:
        """The indices of the trees about a datapoint."""
        trees = range(len(self.batch.trees))
        return tuple(tree for tree in trees if self.batch.datapoint(tree).id == datapoint_id)

    def games(self) -> tuple[Rollout, ...]:
        """All games of the stage, tree by tree, left to right."""
        return tuple(
            game
            for index, tree in enumerate(self.batch.trees)
            for game in leaf_games(tree, self.datapoint(index))
        )


class Replayed(NamedTuple):
    """A recording, derived again.

    state: after the last event.
    stages: the trees of every test and iteration that ended.
    num_events: of the recording.
    """

    state: RunState
    stages: tuple[StageForest, ...]
    num_events: int


NOTHING = Replayed(EMPTY, (), 0)


def replay(
    events: Iterable[Event], onto: Replayed = NOTHING, *, map: Map = map
) -> Result[Replayed, Problem]:
    """Everything that the events lead to; a failure names the first event that fits nothing.

    Where a recorded digest differs from the derived one, `state.faults` says so.

    Args:
        events: All events of a run, or those that follow `onto`.
        onto: What the events before led to.
        map: Grows the trees of a stage, which are independent of one another: in other processes,
            if it is a function that computes there.
    """
    state, stages, count = onto.state, [*onto.stages], onto.num_events
    trainer_state = state.trainer_state
    for grows_trees, group in groupby(events, lambda event: isinstance(event, Replied | Checked)):
        batch = tuple(group)
        grown = _grown(state, batch, map) if grows_trees else None
        if grown is not None:
            state, count = grown, count + len(batch)
            continue
        for event in batch:
            if isinstance(event, StageEnded) and isinstance(state.stage, Growing):
                # Before the step, because after it a test's trees are gone.
                stages.append(StageForest.of(state, state.stage, trainer_state))
            if isinstance(event, BatchFetched):
                trainer_state = state.trainer_state
            try:
                state, _ = step(state, event)
            # A recording is a file of the user's, so an event that does not fit is a failure and
            # not a bug.  These are what `step` raises for one: the wrong stage, a node or name that
            # is not there, and numbers or texts that no run has.
            except (ValueError, LookupError, ArithmeticError, MemoryError, RecursionError) as error:
                event_type = type(event).__name__
                why = " ".join(str(error).split()) or type(error).__name__
                message = f"event {count} ({event_type}) does not fit: {why[:MOST_TOLD]}"
                return Failure(Problem(message, kind="mismatch"))
            count += 1
    return Success(Replayed(state, tuple(stages), count))


def _grown(state: RunState, events: Sequence[Any], map: Map) -> RunState | None:
    """The state after replies and checks, grown tree by tree; None if one of them does not fit."""
    if not isinstance(state.stage, Growing):
        return None
    try:
        return insert_all(state, state.stage, events, map)
    # Of several errors the first event's is the one to report, and only a scan in the order of the
    # events finds it: whatever went wrong goes wrong there again.
    except Exception:
        return None


def reselect(
    replayed: Replayed, params: HyperParameters, *, backup: Backup | None = None
) -> Result[tuple[tuple[StageForest, Selection], ...], Problem]:
    """For each iteration's trees, what `params` would have selected from them.

    Args:
        replayed: The recording.
        params: Those of the run; only parameters of the selection may differ.
        backup: Expected rewards by another rule than `malt.value_backup`.
    """
    if backup is not None and params.trainer != "malt":
        return Failure(Problem("it backs no rewards up", "trainer", "a backup needs malt"))
    if problem := reselect_problem(replayed.state.params, params):
        return Failure(problem)
    if backup is not None:
        return Success(_selections(replayed, params, malt_of(params, backup)))
    return find_trainer(params).map(lambda trainer: _selections(replayed, params, trainer))


def _selections(
    replayed: Replayed, params: HyperParameters, trainer: Trainer[Any]
) -> tuple[tuple[StageForest, Selection], ...]:
    # The trainer starts afresh and sees every iteration in turn, since what it selects may depend
    # on what came before: a warm-up, a schedule, rows that accumulate.
    state, root = trainer.init(make_groups(params)), key(params.seed)
    selections = []
    for forest in replayed.stages:
        if forest.stage == "sample":
            # The key that `step` used, so unchanged parameters select what the run selected.
            select_key = fold_in(root, "sample", forest.iteration, "select")
            update = trainer.update(forest.batch, state, select_key)
            state = update.state
            selections.append((forest, update.selection))
    return tuple(selections)


def summary(state: RunState) -> tuple[dict[str, Any], ...]:
    """One record an iteration: metrics prefixed by their stage, or by the split that was tested."""
    split = state.params.test_dataset_split
    table: dict[int, dict[str, Any]] = {}
    for row in state.rows:
        record = table.setdefault(row.iteration, {"iteration": row.iteration, "seconds": 0.0})
        # By split, so that accuracies on validation and on test data never share a name.
        prefix = split if row.stage == "test" else row.stage
        record.update({f"{prefix}.{name}": value for name, value in row.metrics})
    for iteration, _, seconds in state.seconds:
        if iteration in table:
            table[iteration]["seconds"] += seconds
    return tuple(table[iteration] for iteration in sorted(table))


class AnnotatedTree(NamedTuple):
    """A tree with everything that was derived about it, ready to be shown.

    tree: the tree.
    children_N: `[N]` the children of each node, by rank.
    value_NA: `[N, A]` expected rewards.
    marks: node -> "chosen for verifier", ...
    """

    tree: Tree
    children_N: tuple[tuple[int, ...], ...]
    value_NA: NDArray[np.float64]
    marks: dict[int, tuple[str, ...]]


def annotate(stage: StageForest, index: int) -> AnnotatedTree:
    """Tree `index` of a stage with expected rewards and the pairs that were selected in it."""
    batch = stage.batch
    tree, agents = batch.trees[index], batch.protocol.agents
    marks: dict[int, tuple[str, ...]] = {}
    for pair in stage.selection.pairs:
        if pair.tree == index:
            for node, verdict in ((pair.chosen, "chosen"), (pair.rejected, "rejected")):
                marks[node] = (*marks.get(node, ()), f"{verdict} for {agents[pair.agent].name}")
    backup = backup_of(stage.params.malt)
    return AnnotatedTree(tree, children_of(tree), backup(tree), marks)
