"""The truth of recorded preference labels, by fresh continuations below both replies of a pair."""

from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.errors import Problem
from nip_fn.game.datapoint import Dataset
from nip_fn.keys import fold_in, key, permutation
from nip_fn.metrics.card import Labels, label_truth
from nip_fn.run.quotes import Quotes, game_key, key_of_test, way_to
from nip_fn.run.replay import StageForest
from nip_fn.select.pairs import Pair
from nip_fn.trees.rollouts import leaf_games
from nip_fn_adapters.data.opening import Data, in_memory
from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.casting import Version, loaded, version_of, without_agents
from nip_fn_adapters.experiments.cells import Cell, Evaluation, Tested, cell_of, open_evaluation
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording.runs import Run

MOST_PAIRS = 100  # of each agent, drawn by lot


class RelabelReport(NamedTuple):
    """The truth of a run's preference labels.

    folder: The folder that holds the runs of the tests.
    labels: By the names of the agents; without those that have no pairs.
    """

    folder: Path
    labels: dict[str, Labels]


@outcome
def relabel(
    run: Run | Path | str,
    continuations: int = 8,
    *,
    provider: str | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    budget: float | None = None,
    prices: Path | None = None,
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> RelabelReport:
    """Estimate how many of a run's preference labels are true: `nip-fn card --relabel`.

    Both replies of each pair, of which there are at most `MOST_PAIRS` an agent, are played to the
    end again by the models that sampled them.

    Args:
        run: The run: its name in `runs`, its folder, or itself; RUN@N for the pairs of iteration N
            instead of the last ones.
        continuations: The number of games below each reply.
        provider: The provider of all agents, whatever the run says of them.
        name: A name for the tests' runs; None for one made from their parameters.
        runs: The folder of all runs.
        budget: Dollars; the tests stop before they would cost more.
        prices: A file of prices, which go before those that are known.
        tell: Takes lines for people; None: nothing is printed.
        watch: A display and a way to stop the tests as well; see `Watch`.

    Returns:
        The truth of each agent's labels.
    """
    watch, runs, money = watch.telling(tell), Path(runs), read_money(budget, prices)
    tests = label_tests(version_of(run, runs), continuations, provider, runs, watch)
    cells = [test.cell for test in tests]
    evaluation = open_evaluation(cells, name, "labels", provider, money, runs, watch=watch)
    labels = true_labels(tests, evaluation)
    evaluation.tell_recorded()
    return RelabelReport(evaluation.place, labels)


relabel_async = asynchronous(relabel)


class LabelTest(NamedTuple):
    """The pairs of one agent, as a test whose games begin at their replies.

    agent: the name of the agent.
    stage: the iteration whose pairs they are.
    pairs: the pairs.
    cell: a test with two datapoints a pair: below the chosen reply, and below the rejected one.
    data: these datapoints.
    quotes: the replies that lead there.
    """

    agent: str
    stage: StageForest
    pairs: tuple[Pair, ...]
    cell: Cell
    data: Data
    quotes: Quotes


def label_tests(
    version: Version, num: int, provider: str | None, runs: Path, watch: Watch
) -> tuple[LabelTest, ...]:
    """A test for each agent that has pairs in the iteration of the version, or else in the last.

    Args:
        version: The run and the iteration.
        num: Continuations below each reply.
        provider: The provider of all agents, as on the command line.
        runs: The folder of all runs.
        watch: Whoever watches.

    Returns:
        The tests.  Refuses if the run has selected no pairs.
    """
    stages = [
        stage
        for stage in version.run.replayed.stages
        if stage.selection.pairs and version.iteration in (None, stage.iteration)
    ]
    if not stages:
        refuse(Problem("no preference pairs were selected there", version.given, "leave it out"))
    stage = stages[-1]
    agents = stage.batch.protocol.agents
    return tuple(
        label_test(version, stage, agent, pairs, num, provider, runs, watch)
        for agent in range(len(agents))
        if (pairs := _drawn(stage, agent))
    )


def _drawn(stage: StageForest, agent: int) -> tuple[Pair, ...]:
    """At most `MOST_PAIRS` of the agent's pairs, in their order."""
    pairs = [pair for pair in stage.selection.pairs if pair.agent == agent]
    draw = fold_in(key(stage.params.seed), "relabel", stage.iteration, agent)
    return tuple(pairs[index] for index in sorted(permutation(draw, len(pairs))[:MOST_PAIRS]))


def label_test(
    version: Version,
    stage: StageForest,
    agent: int,
    pairs: tuple[Pair, ...],
    num: int,
    provider: str | None,
    runs: Path,
    watch: Watch,
) -> LabelTest:
    """The test of one agent's pairs, which were selected in `stage`.

    The other arguments are those of `label_tests`.
    """
    batch, protocol = stage.batch, stage.batch.protocol
    params, name = stage.params, protocol.agents[agent].name
    # The models that sampled the trees: those before the iteration's own training.
    then = version._replace(iteration=stage.iteration - 1)
    game = params.interaction_protocol
    cast = {**loaded(then, game, "verifier"), **loaded(then, game, "prover")}
    fixed: dict[str, Any] = {
        "agents": cast,
        "test_dataset_split": "test",
        "rl": {"num_iterations": 0, "num_test_iterations": num},
        # As in training: it is training's labels that are looked at.
        "text_rl": {"test_scheme": "all", "test_on_whole_dataset": True, "test_temperature": None},
        "dataset_options": {"max_test_size": None},
    }
    written = without_agents(params, fixed)
    nodes = [(pair.tree, node) for pair in pairs for node in (pair.chosen, pair.rejected)]
    points = tuple(batch.datapoint(tree) for tree, _ in nodes)
    stage_key = key_of_test(params.seed)
    quotes = {
        request_path: text
        for index, (tree, node) in enumerate(nodes * num)
        for request_path, text in way_to(
            protocol, batch.trees[tree], node, game_key(stage_key, index)
        ).items()
    }
    data = in_memory(Dataset(f"pairs of {version.given}", (), (), points))
    cell = cell_of(f"labels-{stage.iteration}-{name}", written, provider, runs, watch)
    return LabelTest(name, stage, pairs, cell, data, quotes)


def true_labels(tests: tuple[LabelTest, ...], evaluation: Evaluation) -> dict[str, Labels]:
    """The truth of each agent's labels, from the tests, which are played as far as necessary."""
    labels = {}
    for test in tests:
        tested = evaluation.play(test.cell, quotes=test.quotes, data=test.data)
        returns = returns_below(test, tested)
        pairs = [
            (pair.chosen_value - pair.rejected_value, chosen, rejected)
            for pair, chosen, rejected in zip(test.pairs, returns[::2], returns[1::2], strict=True)
            if chosen and rejected
        ]
        if pairs:
            margins, chosen_returns, rejected_returns = zip(*pairs, strict=True)
            labels[test.agent] = label_truth(margins, chosen_returns, rejected_returns)
    return labels


def returns_below(test: LabelTest, tested: Tested) -> list[list[float]]:
    """For each reply, chosen and rejected in turn, the agent's rewards from there on, by game.

    A game whose schedule did not follow the recorded one, because its own key drew another, tells
    nothing of the pair and is left out.
    """
    trees = test.stage.batch.trees
    nodes = [(pair, node) for pair in test.pairs for node in (pair.chosen, pair.rejected)]
    returns: list[list[float]] = [[] for _ in nodes]
    for tree in tested.forest.batch.trees:
        pair, node = nodes[tree.datapoint_index]
        recorded = trees[pair.tree]
        (game,) = leaf_games(tree, tested.forest.batch.datapoints[tree.datapoint_index])
        depth = int(recorded.depth_N[node])
        played = [[(u.agent, u.raw) for u in turn] for turn in game.rounds[:depth]]
        line = _line(test, pair, node)
        if played == line:
            rewards = (reward[pair.agent] for reward in game.rewards[depth - 1 :])
            returns[tree.datapoint_index].append(fsum(rewards))
    return returns


def _line(test: LabelTest, pair: Pair, node: int) -> list[list[tuple[int, str]]]:
    rounds = test.stage.batch.episode(pair.tree, node).rounds
    return [[(utterance.agent, utterance.raw) for utterance in turn] for turn in rounds]
