from fractions import Fraction
from math import isnan
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.config.trainers import BACKUPS
from nip_fn.game.datapoint import make_datapoint
from nip_fn.keys import key
from nip_fn.metrics.forest import forest_stats
from nip_fn.run.digest import tree_digest
from nip_fn.run.forest import Forest
from nip_fn.run.growth import finish_tree
from nip_fn.trees.backup import Backup
from nip_fn.trees.node import GameTree, Node, node_at
from nip_fn.trees.packed import unpack
from nip_fn.trees.tree import (
    NO_PARENT,
    ROOT,
    children_of,
    episode_at,
    flatten,
    flatten_packed,
    leaves_of,
    line_to,
)

from .trees import flat, golden, golden_files, name_of, names_of, shuffle, trees, walk

POINT = make_datapoint("p", "q", "s", 1)
REWARDS = st.floats(-10, 10, width=16)
NAMES_OF_BACKUPS = st.sampled_from(sorted(BACKUPS))


def values_by_name(root: Node, backup: Backup) -> dict[str, tuple[float, ...]]:
    tree = flat(root)
    return dict(zip(names_of(tree), map(tuple, backup(tree).tolist()), strict=True))


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


EXACTLY = {"children": expectation, "leaves": leaf_average}


@given(trees(REWARDS))
def test_the_arrays_hold_the_tree_breadth_first(root: Node) -> None:
    tree = flatten(GameTree("nip", 3, key(8), root))
    assert (tree.datapoint_index, tree.key, tree.num_waiting) == (3, key(8), 0)
    assert (tree.num_nodes, tree.num_agents) == (len(list(walk(root))), 2)
    assert tree.parent_N[ROOT] == NO_PARENT
    assert list(tree.depth_N) == sorted(tree.depth_N)
    start = episode_at(tree, ROOT, make_datapoint("p", "q", "s", 1))
    for i, path in enumerate(tree.path_N):
        node, episode = node_at(root, start, path)
        assert tree.depth_N[i] == len(path)
        assert tree.utterances_N[i] == node.utterances
        assert tree.status_N[i] == node.status
        assert tuple(tree.reward_NA[i]) == node.reward
        assert {a for a in (0, 1) if tree.acted_NA[i, a]} == {
            said.agent for said in node.utterances
        }
        assert episode_at(tree, i, make_datapoint("p", "q", "s", 1)) == episode
        if i != ROOT:
            assert tree.path_N[tree.parent_N[i]] == path[:-1]


@given(trees(REWARDS))
def test_a_finished_tree_has_the_arrays_the_counts_and_the_records_of_the_tree(root: Node) -> None:
    game = GameTree("nip", 0, key(1), root)
    finished = finish_tree(POINT, game)
    assert finished.digest == tree_digest(game)
    assert finished.stats == forest_stats([POINT], [flatten(game)])
    assert list(Forest.of([finished])) == [unpack(finished.packed)] == [game]
    for packed in (finished.arrays, flatten_packed(finished.packed)):
        tree = flatten(game)
        assert packed.utterances_N == tree.utterances_N
        assert tree.utterances_N == packed.utterances_N
        assert len(packed.utterances_N) == len(list(packed.utterances_N)) == tree.num_nodes
        for one, other in zip(packed, tree, strict=True):
            assert (one == other).all() if isinstance(one, np.ndarray) else one == other


@given(trees(REWARDS))
def test_children_leaves_and_lines_are_those_of_the_tree(root: Node) -> None:
    tree = flat(root)
    names, nodes = names_of(tree), {name_of(node.utterances): node for node in walk(root)}
    for name, children in zip(names, children_of(tree), strict=True):
        below = [name_of(child.utterances) for child in nodes[name].children]
        assert [names[child] for child in children] == below
    drawn = [name_of(node.utterances) for node in walk(root) if not node.children]
    assert [names[leaf] for leaf in leaves_of(tree)] == drawn  # left to right
    for node, path in enumerate(tree.path_N):
        assert [tree.path_N[at] for at in line_to(tree, node)] == [
            path[: length + 1] for length in range(len(path))
        ]


@pytest.mark.parametrize("name", BACKUPS)
@given(root=trees(REWARDS))
def test_values_are_those_of_the_definitions_exactly(name: str, root: Node) -> None:
    """The expected return under the sampled policy, or the rewards below over the leaves."""
    values = values_by_name(root, BACKUPS[name])
    for node in walk(root):
        expected = [float(EXACTLY[name](node, agent)) for agent in (0, 1)]
        assert values[name_of(node.utterances)] == pytest.approx(expected, abs=1e-9)
        assert node.children or values[name_of(node.utterances)] == node.reward


@given(trees(st.floats(-10, 10)), st.integers(0, 2**32), NAMES_OF_BACKUPS)
def test_permuting_siblings_permutes_values(root: Node, seed: int, name: str) -> None:
    permuted = shuffle(root, Random(seed))
    assert values_by_name(permuted, BACKUPS[name]) == values_by_name(root, BACKUPS[name])


@given(trees(REWARDS), NAMES_OF_BACKUPS)
def test_a_missing_reward_makes_its_ancestors_missing_and_no_others(root: Node, name: str) -> None:
    whole = flat(root)
    *_, leaf = leaves_of(whole)
    reward_NA = whole.reward_NA.copy()
    reward_NA[leaf, 0] = float("nan")
    values = BACKUPS[name](whole._replace(reward_NA=reward_NA))
    missing = {node for node in range(whole.num_nodes) if isnan(values[node, 0])}
    assert missing == {ROOT, *line_to(whole, leaf)}
    assert values[:, 1].tolist() == BACKUPS[name](whole)[:, 1].tolist()


@pytest.mark.parametrize("name", BACKUPS)
@pytest.mark.parametrize("file", golden_files())
def test_golden_values(file: str, name: str) -> None:
    example = golden(file)
    values = values_by_name(example.root, BACKUPS[name])
    assert values.keys() == example.values[name].keys()
    for node, expected in example.values[name].items():
        assert values[node] == pytest.approx(expected, abs=1e-12), node
