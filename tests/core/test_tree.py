from fractions import Fraction
from math import isnan
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_fn.trees.grow import Node
from nip_fn.trees.tree import NO_PARENT, ROOT, ValueBackup, backup, flatten

from .games import Setup, ends, play, setups
from .trees import golden, golden_files, name_of, shuffle, trees, walk

BACKUPS: tuple[ValueBackup, ...] = ("children", "leaves")
REWARDS = st.floats(-10, 10, width=16)


def values_by_name(root: Node, method: ValueBackup) -> dict[str, tuple[float, ...]]:
    tree = flatten(root)
    values = backup(tree, method)
    return {name_of(turn): tuple(values[i]) for i, turn in enumerate(tree.turn_N)}


def expectation(node: Node, agent: int) -> Fraction:
    """What the agent gets from `node` on, over all plays with their probabilities, exactly."""

    def plays(at: Node, chance: Fraction, total: Fraction) -> Fraction:
        total += Fraction(at.reward[agent])
        if not at.children:
            return chance * total
        share = chance / len(at.children)
        return sum((plays(child, share, total) for child in at.children), Fraction(0))

    return plays(node, Fraction(1), Fraction(0))


def leaf_average(node: Node, agent: int) -> Fraction:
    """All rewards below a node by the number of its leaves."""
    below = list(walk(node))
    leaves = sum(not each.children for each in below)
    return sum((Fraction(each.reward[agent]) for each in below), Fraction(0)) / leaves


@given(trees(REWARDS))
def test_the_arrays_hold_the_tree_breadth_first(root: Node) -> None:
    tree = flatten(root)
    assert tree.num_nodes == len(list(walk(root)))
    assert tree.parent_N[ROOT] == NO_PARENT
    assert list(tree.round_N) == sorted(tree.round_N)
    for i in range(tree.num_nodes):
        node = root
        for rank in tree.path_N[i]:
            node = node.children[rank]
        assert tree.turn_N[i] == node.turn
        assert tree.end_N[i] == node.end
        assert tuple(tree.reward_NA[i]) == node.reward
        assert {a for a in (0, 1) if tree.acted_NA[i, a]} == {said.agent for said in node.turn}
        if i != ROOT:
            assert tree.path_N[tree.parent_N[i]] == tree.path_N[i][:-1]


@given(trees(REWARDS))
def test_a_value_is_the_expected_reward_under_the_sampled_policy(root: Node) -> None:
    values = values_by_name(root, "children")
    for node in walk(root):
        expected = [float(expectation(node, agent)) for agent in (0, 1)]
        assert values[name_of(node.turn)] == pytest.approx(expected, abs=1e-9)


@given(trees(REWARDS))
def test_a_value_is_the_own_reward_and_the_mean_of_the_children(root: Node) -> None:
    values = values_by_name(root, "children")
    for node in walk(root):
        value = np.array(values[name_of(node.turn)])
        below = [values[name_of(child.turn)] for child in node.children] or [(0.0, 0.0)]
        np.testing.assert_allclose(value, node.reward + np.mean(below, axis=0), atol=1e-9)


@given(trees(REWARDS))
def test_leaves_averages_all_rewards_below_over_the_leaves(root: Node) -> None:
    values = values_by_name(root, "leaves")
    for node in walk(root):
        expected = [float(leaf_average(node, agent)) for agent in (0, 1)]
        assert values[name_of(node.turn)] == pytest.approx(expected, abs=1e-9)


@given(trees(REWARDS), st.sampled_from(BACKUPS))
def test_a_leaf_is_worth_its_reward(root: Node, method: ValueBackup) -> None:
    values = values_by_name(root, method)
    for node in walk(root):
        if not node.children:
            assert values[name_of(node.turn)] == node.reward


@settings(max_examples=20)
@given(setups())
def test_values_of_grown_trees_are_expectations(setup: Setup) -> None:
    for state in ends(play(setup), "sample"):
        for root in state.forest:
            tree = flatten(root)
            values = backup(tree)
            node = {path: _descend(root, path) for path in tree.path_N}
            for i, path in enumerate(tree.path_N):
                agents = range(len(root.reward))
                expected = [float(expectation(node[path], agent)) for agent in agents]
                assert tuple(values[i]) == pytest.approx(expected, abs=1e-9)


def _descend(node: Node, path: tuple[int, ...]) -> Node:
    for rank in path:
        node = node.children[rank]
    return node


@given(trees(st.floats(-10, 10)), st.integers(0, 2**32), st.sampled_from(BACKUPS))
def test_permuting_siblings_permutes_values(root: Node, seed: int, method: ValueBackup) -> None:
    permuted = shuffle(root, Random(seed))
    assert values_by_name(permuted, method) == values_by_name(root, method)


@given(trees(REWARDS), st.sampled_from(BACKUPS))
def test_a_missing_reward_makes_its_ancestors_missing_and_no_others(
    root: Node, method: ValueBackup
) -> None:
    leaf = next(node for node in walk(root) if not node.children)
    spoilt = _with_reward(root, name_of(leaf.turn), (float("nan"), 0.0))
    tree = flatten(spoilt)
    values = backup(tree, method)
    above = {path for path in tree.path_N if _below(spoilt, path, name_of(leaf.turn))}
    assert {path for i, path in enumerate(tree.path_N) if isnan(values[i, 0])} == above


def _with_reward(node: Node, name: str, reward: tuple[float, float]) -> Node:
    children = tuple(_with_reward(child, name, reward) for child in node.children)
    own = reward if name_of(node.turn) == name else node.reward
    return Node(turn=node.turn, reward=own, end=node.end, children=children)


def _below(root: Node, path: tuple[int, ...], name: str) -> bool:
    return any(name_of(node.turn) == name for node in walk(_descend(root, path)))


@pytest.mark.parametrize("method", BACKUPS)
@pytest.mark.parametrize("file", golden_files())
def test_golden_values(file: str, method: ValueBackup) -> None:
    example = golden(file)
    values = values_by_name(example.root, method)
    assert values.keys() == example.values[method].keys()
    for name, expected in example.values[method].items():
        assert values[name] == pytest.approx(expected, abs=1e-12), name
