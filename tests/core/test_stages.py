"""Laws of every test and iteration of a run: each run is played once, and all laws see it."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from msgspec.structs import replace

from nip_fn.config.trainers import BACKUPS
from nip_fn.game.bounds import reward_bounds, reward_mid_point
from nip_fn.game.protocol import Protocol, verifier_rounds
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.metrics.evaluation import accuracy, always_fails, verdicts
from nip_fn.metrics.formulas import confidence_levels, mean
from nip_fn.metrics.stage import stage_metrics
from nip_fn.params.run import HyperParameters
from nip_fn.params.update_schedule import is_updated
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import Replied
from nip_fn.run.stages import Growing
from nip_fn.run.state import RunState
from nip_fn.select.pairs import Pair
from nip_fn.trees.node import Node, node_at, replies_of
from nip_fn.trees.rollouts import leaf_probabilities
from nip_fn.trees.tree import Tree, episode_at, flatten, leaves_of

from .games import Play, Setup, ends, play, setups
from .test_tree import expectation
from .trees import shuffle

Place = tuple[int, tuple[int, ...], int, int]  # (tree, path, agent, index)


class Ended(NamedTuple):
    """A stage of a run, its trees grown."""

    params: HyperParameters
    protocol: Protocol
    state: RunState
    stage: Growing
    trees: tuple[Tree, ...]
    heard: dict[Place, Completion]  # of several attempts, the last

    @property
    def is_test(self) -> bool:
        return self.stage.name == "test"

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.stage.selection.pairs

    def metrics(self) -> dict[str, float]:
        return dict(self.state.rows[-1].metrics)


def stages_of(run: Play) -> list[Ended]:
    found = []
    for state in ends(run, "test", "sample"):
        place = (state.iteration, state.stage.name)
        heard = {
            (event.tree, event.path, event.agent, event.index): event.completion
            for before, moment in pairwise(run)
            if isinstance(event := moment.event, Replied)
            and (before.state.iteration, before.state.stage.name) == place
        }
        assert isinstance(state.stage, Growing)
        found.append(
            Ended(
                state.params,
                protocol_of(state.params),
                state,
                state.stage,
                tuple(map(flatten, state.forest)),
                heard,
            )
        )
    return found


# ------------------------------------------------------------------------------------------- trees


def a_tree_has_at_most_k_to_the_number_of_rounds_leaves(at: Ended) -> None:
    k = 1 if at.is_test else at.params.malt.num_responses_per_timestep
    for tree in at.trees:
        assert len(leaves_of(tree)) <= k**at.protocol.max_message_rounds


def nothing_is_said_after_the_verifiers_last_turn(at: Ended) -> None:
    last = verifier_rounds(at.protocol, key(0))[-1]
    for tree in at.trees:
        leaves = set(leaves_of(tree))
        assert tree.num_waiting == 0
        for node, (depth, end) in enumerate(zip(tree.depth_N, tree.status_N, strict=True)):
            assert depth <= last + 1
            assert (end == "open") == (node not in leaves)
            if end == "truncated":
                assert depth == last + 1


def wanted(at: Ended, agent: int, number: int) -> int:
    """The replies that MALT's parameters ask for at an agent's turn."""
    malt, own = at.params.malt, at.params.agents[agent]
    idle = own.freeze_agent or not is_updated(own.update_schedule, at.state.iteration)
    given = own.num_idle_responses if idle and own.num_idle_responses else own.num_responses
    if given is None:
        one = own.freeze_agent and malt.frozen_agents_generate_one_response
        return 1 if one else malt.num_responses_per_timestep
    return given if isinstance(given, int) else [*given, *[given[-1]] * number][number]


def open_nodes_have_as_many_children_as_the_mover_that_wants_most(at: Ended) -> None:
    malt = at.params.malt
    early = at.params.trainer == "ei" or at.state.iteration < malt.num_initial_ei_iterations

    def check(node: Node, spoken: Counter[int]) -> None:
        moved = {said.agent for child in node.children for said in child.utterances}
        if moved:
            most = max(wanted(at, agent, spoken[agent]) for agent in moved)
            assert len(node.children) == (1 if at.is_test or early else most)
        for child in node.children:
            check(child, spoken + Counter(moved))

    for game in at.stage.forest:
        check(game.root, Counter())


def child_i_is_where_everyones_reply_i_led(at: Ended) -> None:
    for index, (game, tree) in enumerate(zip(at.stage.forest, at.trees, strict=True)):
        start = episode_at(tree, 0, at.stage.datapoints[tree.datapoint_index])
        for path in tree.path_N:
            parent = node_at(game.root, start, path)[0]
            numbers = replies_of(parent)
            for rank, (node, number) in enumerate(zip(parent.children, numbers, strict=True)):
                assert set(number.values()) == {rank}
                for said in node.utterances:
                    completion = at.heard[index, path, said.agent, rank]
                    assert said.raw == (completion.text or "")
                    assert said.model == completion.model


def values_are_expectations(at: Ended) -> None:
    for game, tree in zip(at.stage.forest, at.trees, strict=True):
        start = episode_at(tree, 0, at.stage.datapoints[tree.datapoint_index])
        values = BACKUPS["children"](tree)
        for node, path in enumerate(tree.path_N):
            below = node_at(game.root, start, path)[0]
            expected = [float(expectation(below, agent)) for agent in range(tree.num_agents)]
            assert values[node].tolist() == pytest.approx(expected, abs=1e-9)


# ------------------------------------------------------------------------------------------- pairs


def pairs_are_between_siblings_of_agents_that_are_trained(at: Ended) -> None:
    malt = at.params.malt
    assert not (at.is_test and (at.pairs or at.stage.selection.rollouts))
    for pair in at.pairs:
        tree = at.trees[pair.tree]
        assert not at.params.agents[pair.agent].freeze_agent
        (chosen,) = (s for s in tree.utterances_N[pair.chosen] if s.agent == pair.agent)
        (rejected,) = (s for s in tree.utterances_N[pair.rejected] if s.agent == pair.agent)
        assert chosen.error is None
        assert chosen.raw.strip()
        assert rejected.raw.strip()
        assert tree.parent_N[pair.chosen] == tree.parent_N[pair.rejected] == pair.parent
        if malt.pair_selection_method == "positive_negative":
            mid_point = reward_mid_point(at.protocol, pair.agent)
            assert pair.chosen_value >= mid_point - 1e-9
            assert pair.rejected_value < mid_point - 1e-12
        else:
            least, most = reward_bounds(at.protocol, pair.agent)
            threshold = malt.interval_threshold_proportion * (most - least)
            assert pair.chosen_value - pair.rejected_value > threshold


# ----------------------------------------------------------------------------------------- metrics

SHARES = (
    *("_share", "_rate", "_error", "_low", "_high"),
    *("accuracy", "coverage", "precision", "recall"),
)


def measured(at: Ended, trees: Sequence[Tree], pairs: Sequence[Pair]) -> dict[str, float]:
    logged = stage_metrics(at.protocol, at.stage.datapoints, trees, None if at.is_test else pairs)
    assert len(dict(logged)) == len(logged)  # each name once
    return dict(logged)


def a_stage_logs_its_metrics_finite_and_shares_within_bounds(at: Ended) -> None:
    row = at.state.rows[-1]
    assert (row.iteration, row.stage) == (at.state.iteration, at.stage.name)
    assert len(dict(row.metrics)) == len(row.metrics)
    metrics = measured(at, at.trees, at.pairs)
    assert metrics.items() <= at.metrics().items()
    for name, value in metrics.items():
        assert type(value) is float
        assert isfinite(value)
        assert not name.endswith(SHARES) or 0 <= value <= 1


def metrics_agree_with_the_trees_and_with_one_another(at: Ended) -> None:
    metrics = at.metrics()
    ends_of_games = [tree.status_N[leaf] for tree in at.trees for leaf in leaves_of(tree)]
    assert metrics["games"] == len(ends_of_games)
    assert metrics["nodes"] == sum(tree.num_nodes for tree in at.trees)
    assert metrics["accuracy_low"] <= metrics["accuracy"] + 1e-12
    assert metrics["accuracy"] <= metrics["accuracy_high"] + 1e-12
    undecided = metrics["truncated_share"] + metrics["aborted_share"]
    undecided += metrics.get("unchecked_share", 0.0)
    assert undecided == pytest.approx(metrics["no_decision_rate"])
    weights = [weight for tree in at.trees for weight in leaf_probabilities(tree)]
    share = mean([end != "decided" for end in ends_of_games], weights)
    assert metrics["no_decision_rate"] == pytest.approx(share)
    if "worst_datapoint_accuracy" in metrics:
        assert metrics["worst_datapoint_accuracy"] <= metrics["accuracy"] + 1e-12
        assert (metrics["worst_datapoint_accuracy"] == 0) == (metrics["always_fail_share"] > 0)
    coverage = [value for name, value in metrics.items() if name.endswith(".coverage")]
    assert coverage == sorted(coverage, reverse=True)
    assert len(coverage) == len(confidence_levels(at.protocol.spectrum))
    for index, agent in enumerate(at.params.agents):
        own = sum(pair.agent == index for pair in at.pairs)
        rounds = [
            value
            for name, value in metrics.items()
            if name.startswith(f"{agent.name}.round_") and name.endswith(".pairs")
        ]
        assert sum(rounds) == own == metrics.get(f"{agent.name}.pairs", 0)


def metrics_are_blind_to_the_order_of_siblings(at: Ended) -> None:
    games = tuple(at.stage.forest)
    trees = [flatten(game) for game in games]
    shuffled = [
        flatten(replace(game, root=shuffle(game.root, Random(index))))
        for index, game in enumerate(games)
    ]

    def moved(pair: Pair) -> Pair:
        before, after = trees[pair.tree].utterances_N, shuffled[pair.tree].utterances_N

        def place(node: int) -> int:
            return next(i for i, turn in enumerate(after) if turn is before[node])

        return replace(
            pair,
            parent=place(pair.parent),
            chosen=place(pair.chosen),
            rejected=place(pair.rejected),
        )

    others = [moved(pair) for pair in at.pairs]
    assert measured(at, shuffled, others) == measured(at, at.trees, at.pairs)


def the_measures_of_a_test_are_those_that_it_logs(at: Ended) -> None:
    if at.is_test:
        found = verdicts(at.stage.datapoints, at.trees)
        assert accuracy(found).value == pytest.approx(at.metrics()["accuracy"])
        failing = always_fails(found)
        assert (failing and failing.value) == at.metrics().get("always_fail_share")


LAWS = (
    a_tree_has_at_most_k_to_the_number_of_rounds_leaves,
    nothing_is_said_after_the_verifiers_last_turn,
    open_nodes_have_as_many_children_as_the_mover_that_wants_most,
    child_i_is_where_everyones_reply_i_led,
    values_are_expectations,
    pairs_are_between_siblings_of_agents_that_are_trained,
    a_stage_logs_its_metrics_finite_and_shares_within_bounds,
    metrics_agree_with_the_trees_and_with_one_another,
    metrics_are_blind_to_the_order_of_siblings,
    the_measures_of_a_test_are_those_that_it_logs,
)


@given(setups())
def test_every_stage_of_a_run_keeps_all_laws(setup: Setup) -> None:
    for at in stages_of(play(setup)):
        for law in LAWS:
            law(at)
