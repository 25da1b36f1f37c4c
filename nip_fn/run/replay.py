"""What a recording says: every stage derived again, and what else could have been selected."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from returns.result import Failure, Result, Success

from nip_fn.config.codec import differences
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.keys import Key, fold_in
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Event, StageEnded
from nip_fn.run.state import EMPTY, RunState, Stage, sample_batch_of, stage_key
from nip_fn.run.step import step
from nip_fn.select.pairs import Pair
from nip_fn.training.registry import trainer_of
from nip_fn.training.trainer import SampleBatch, Selection
from nip_fn.trees.grow import Node
from nip_fn.trees.tree import Tree, backup, children_of, flatten


class StageForest(NamedTuple):
    """The forest of a stage, as it stood when the stage ended."""

    iteration: int
    stage: Stage
    datapoints: tuple[Datapoint, ...]
    forest: tuple[Node, ...]
    keys: tuple[Key, ...]  # of the games, one a tree
    selection: Selection
    select_key: Key

    def datapoint(self, tree: int) -> Datapoint:
        """The datapoint of a tree."""
        return self.datapoints[tree % len(self.datapoints)]

    def trees_about(self, datapoint_id: str) -> tuple[int, ...]:
        """The indices of the trees about a datapoint."""
        count = len(self.datapoints)
        return tuple(
            i for i in range(len(self.forest)) if self.datapoints[i % count].id == datapoint_id
        )


class Replayed(NamedTuple):
    """A recording, derived again."""

    state: RunState
    stages: tuple[StageForest, ...]
    num_events: int


def replay(events: Iterable[Event]) -> Result[Replayed, Problem]:
    """Everything that the events lead to; a failure names the first event that fits nothing.

    Where a recorded digest differs from the derived one, `state.faults` says so.
    """
    state, stages, count = EMPTY, list[StageForest](), 0
    for event in events:
        if isinstance(event, StageEnded) and state.stage in ("test", "sample"):
            stages.append(_grown(state))
        try:
            state, _ = step(state, event)
        except (ValueError, IndexError) as error:
            return Failure(
                Problem(
                    f"event {count} ({type(event).__name__}) does not fit: {error}",
                    remedy=f"look at the events before it with --until {count}",
                )
            )
        count += 1
    return Success(Replayed(state, tuple(stages), count))


def _grown(state: RunState) -> StageForest:
    return StageForest(
        iteration=state.iteration,
        stage=state.stage,
        datapoints=state.datapoints,
        forest=state.forest,
        keys=sample_batch_of(state).keys,
        selection=state.selection,
        select_key=fold_in(stage_key(state), "select"),
    )


# What can be changed without asking any model again.
SELECTION_PARAMETERS = (
    "ei.reward_threshold",
    "ei.rollout_selection_method",
    "ei.weighting_epsilon",
    "ei.weighting_minimum",
    "ei.weighting_sample_size_factor",
    "ei.weighting_use_replacement",
    "malt.balance_pairs",
    "malt.deduplicate_pairs",
    "malt.interval_threshold_proportion",
    "malt.max_pairs_per_datapoint",
    "malt.min_pair_margin",
    "malt.pair_selection_method",
    "malt.value_backup",
    "seed",
)


def reselect(
    replayed: Replayed, params: HyperParameters
) -> Result[tuple[tuple[StageForest, Selection], ...], Problem]:
    """For each forest that was selected from, what `params` would have selected from it.

    Only parameters of the selection may differ from the recorded ones.
    """
    changed = differences(replayed.state.params, params)
    refused = [address for address in changed if address not in SELECTION_PARAMETERS]
    if refused:
        return Failure(
            Problem(
                "the recorded replies do not depend on it in a way that a replay can derive",
                refused[0],
                f"a replay can change: {', '.join(SELECTION_PARAMETERS)}",
            )
        )
    return Success(
        tuple(
            (grown, _reselected(grown, params))
            for grown in replayed.stages
            if grown.stage == "sample"
        )
    )


def _reselected(grown: StageForest, params: HyperParameters) -> Selection:
    state = RunState(params=params, iteration=grown.iteration, stage=grown.stage)
    harvest = SampleBatch(params, grown.iteration, grown.datapoints, grown.forest, grown.keys)
    select = trainer_of(params, grown.iteration).select
    return select(harvest, fold_in(stage_key(state), "select"))


def summary(state: RunState) -> tuple[dict[str, Any], ...]:
    """One record an iteration: metrics prefixed by their stage, or by the split that was tested."""
    split = state.params.test_dataset_split
    table: dict[int, dict[str, Any]] = {}
    for row in state.rows:
        record = table.setdefault(row.iteration, {"iteration": row.iteration, "seconds": 0.0})
        prefix = split if row.stage == "test" else row.stage
        record.update({f"{prefix}.{name}": value for name, value in row.metrics})
    for iteration, _, seconds in state.seconds:
        if iteration in table:
            table[iteration]["seconds"] += seconds
    return tuple(table[iteration] for iteration in sorted(table))


class AnnotatedTree(NamedTuple):
    """A tree with everything that was derived about it, ready to be shown."""

    tree: Tree
    children_N: tuple[tuple[int, ...], ...]  # [N] by rank
    value_NA: NDArray[np.float64]  # [N, A] expected rewards
    marks: dict[int, tuple[str, ...]]  # node -> "chosen (verifier)", ...


def annotate(
    grown: StageForest, index: int, params: HyperParameters, names: tuple[str, ...]
) -> AnnotatedTree:
    """Tree `index` of a stage with expected rewards and the pairs that were selected in it."""
    tree = flatten(grown.forest[index])
    marks: dict[int, tuple[str, ...]] = {}
    for pair in grown.selection:
        if isinstance(pair, Pair) and pair.tree == index:
            for node, verdict in ((pair.chosen, "chosen"), (pair.rejected, "rejected")):
                marks[node] = (*marks.get(node, ()), f"{verdict} for {names[pair.agent]}")
    return AnnotatedTree(tree, children_of(tree), backup(tree, params.malt.value_backup), marks)
