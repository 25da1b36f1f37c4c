"""How much more a verdict is worth than the coin that was tossed for it: on the same trees.

    python -m tests.benchmarks.bench_verdicts RUNS/RUN@ITERATION POINTS GAMES

The expected rewards of replies by `malt.verdict = "sampled"` and by `"probability"` are compared
with the mean of fresh games that begin at them, and so are the pairs that either would select.
Only replies count after which the game goes on.
"""

import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from nip_fn.config.trainers import backup_of
from nip_fn.keys import key, permutation
from nip_fn.params.run import HyperParameters
from nip_fn.run.replay import StageForest, reselect
from nip_fn.select.pairs import Pair, Pairs, candidates
from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.casting import Version, version_of
from nip_fn_adapters.experiments.cells import open_evaluation
from nip_fn_adapters.experiments.relabelling import label_test, returns_below
from nip_fn_adapters.experiments.watching import NOBODY

Place = tuple[int, int]  # tree, node


class Truth(NamedTuple):
    """The mean of an agent's returns in fresh games below a reply, and its squared error."""

    mean: float
    noise: float


def main(given: str, num_points: int, games: int) -> None:
    """Print a line for each agent and each way to value a verdict."""
    folder, _, iteration = given.rpartition("@")
    version = version_of(Path(given).name, Path(folder).parent)
    stage = next(
        stage
        for stage in version.run.replayed.stages
        if stage.stage == "sample" and stage.iteration == int(iteration)
    )
    for agent, spec in enumerate(stage.batch.protocol.agents):
        replies = dict(_replies(stage, agent, num_points))
        truths = _truths(version, stage, agent, list(replies), games, Path(folder).parent)
        for verdict in ("sampled", "probability"):
            line = _compared(version, stage, agent, verdict, replies, truths)
            print(f"{given} {spec.name}, {verdict}: {line}", flush=True)


def _replies(stage: StageForest, agent: int, most: int) -> Iterator[tuple[Place, Place]]:
    """(reply, decision point) of the replies at so many points after which the game goes on."""
    trees = stage.batch.trees

    def going_on(tree: int, nodes_C: tuple[tuple[int, ...], ...]) -> list[Place]:
        return [(tree, node) for node, *_ in nodes_C if trees[tree].status_N[node] == "open"]

    points = [
        point
        for point in candidates(trees, stage.batch.protocol, agents=(agent,)).points
        if len(going_on(point.tree, point.nodes_C)) > 1
    ]
    for index in permutation(key(agent), len(points))[:most]:
        point = points[index]
        for reply in going_on(point.tree, point.nodes_C):
            yield reply, (point.tree, point.parent)


def _truths(
    version: Version, stage: StageForest, agent: int, replies: list[Place], games: int, runs: Path
) -> dict[Place, Truth]:
    # A test has two datapoints a pair: here both of them are the same reply.
    pairs = tuple(Pair(tree, 0, agent, node, node, 0.0, 0.0) for tree, node in replies)
    test = label_test(version, stage, agent, pairs, games // 2, None, runs, NOBODY)
    # Recorded under a name of its own, so that the same command reads it the next time.
    name = f"truth-{version.name}-{stage.iteration}-{agent}-{len(replies)}-{games}"
    money = read_money(None, None)
    evaluation = open_evaluation([test.cell], name, "labels", None, money, runs, watch=NOBODY)
    returns = returns_below(test, evaluation.play(test.cell, quotes=test.quotes, data=test.data))
    both = [[*first, *second] for first, second in zip(returns[::2], returns[1::2], strict=True)]
    return {
        reply: Truth(float(np.mean(each)), float(np.var(each, ddof=1)) / len(each))
        for reply, each in zip(replies, both, strict=True)
        if len(each) > 1
    }


def _compared(
    version: Version,
    stage: StageForest,
    agent: int,
    verdict: str,
    replies: dict[Place, Place],
    truths: dict[Place, Truth],
) -> str:
    params = _by(verdict, version.run.state.params)
    values: dict[int, np.ndarray] = {}

    def value(tree: int, node: int) -> float:
        if tree not in values:
            values[tree] = backup_of(params.malt)(stage.batch.trees[tree])
        return float(values[tree][node, agent])

    # The truth is a mean of few games itself, whose noise is taken off.
    errors = [(value(*place) - truth.mean) ** 2 - truth.noise for place, truth in truths.items()]
    margins = [
        truths[pair.tree, pair.chosen].mean - truths[pair.tree, pair.rejected].mean
        for pair in _selected(version, stage, params)
        if pair.agent == agent
        and {(pair.tree, pair.chosen), (pair.tree, pair.rejected)} <= {*truths}
    ]
    variance = (
        f"variance {np.mean(errors):.4f} ± {np.std(errors) / sqrt(len(errors)):.4f} "
        f"of {len(errors)} replies"
    )
    if not margins:
        return variance
    right = (np.sign(np.round(margins, 12)) + 1) / 2
    return (
        f"{variance}; {right.mean():.1%} ± {right.std() / sqrt(len(right)):.1%} "
        f"of {len(right)} labels true, margin {np.mean(margins):.3f}"
    )


def _selected(version: Version, stage: StageForest, params: HyperParameters) -> Pairs:
    stages = reselect(version.run.replayed, params).unwrap()
    return next(
        selection.pairs for other, selection in stages if other.iteration == stage.iteration
    )


def _by(verdict: str, params: HyperParameters) -> HyperParameters:
    return replace(params, malt=replace(params.malt, verdict=verdict))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
