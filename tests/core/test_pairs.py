from collections import Counter
from collections.abc import Mapping
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import reward_mid_point
from nip_fn.keys import Key, key
from nip_fn.params.run import HyperParameters
from nip_fn.params.training import PureTextMaltParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.pairs import (
    Pair,
    best_worst,
    decision_points,
    eligible_pairs,
    interval,
    positive_negative,
    select_pairs,
)
from nip_fn.training import malt
from nip_fn.training.groups import trained_agents
from nip_fn.training.trainer import SampleBatch
from nip_fn.trees.grow import Node
from nip_fn.trees.tree import ROOT, Tree, ValueBackup, backup, flatten

from .games import Setup, ends, make_params, play, setups
from .trees import Eligible, golden, golden_files, name_of, shuffle, trees, walk

NAN = float("nan")
DRAWING = ("positive_negative", "interval", "best_worst")  # one pair a node and agent
METHODS = (*DRAWING, "all")
PARAMS = make_params({"malt": {"interval_threshold_proportion": 0.25}})  # 1/4 and, of [-1, 1], 1/2
QUARTERS = st.sampled_from([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])


def select(params: HyperParameters, forest: tuple[Node, ...], key: Key) -> tuple[Pair, ...]:
    return malt.select(SampleBatch(params, 0, (), forest, ()), key)


def with_method(params: HyperParameters, method: str) -> HyperParameters:
    return replace(params, malt=replace(params.malt, pair_selection_method=method))


def eligible_by_name(params: HyperParameters, root: Node, method: ValueBackup) -> Eligible:
    tree = flatten(root)
    values = backup(tree, method)
    return eligible_in(params, tree, values)


def eligible_in(params: HyperParameters, tree: Tree, values: NDArray[np.float64]) -> Eligible:
    protocol = protocol_of(params)
    names = [name_of(turn) for turn in tree.turn_N]
    return {
        (
            names[at.parent],
            at.agent,
            names[at.children_C[chosen]],
            names[at.children_C[rejected]],
        )
        for at in decision_points(tree, trained_agents(params))
        for chosen, rejected in eligible_pairs(
            values[at.children_C, at.agent], protocol, at.agent, params.malt
        )
    }


def eligible_by_definition(
    params: HyperParameters, root: Node, value: Mapping[str, tuple[float, ...]]
) -> Eligible:
    """Straight from the definitions, over the tree itself."""
    found: Eligible = set()
    protocol = protocol_of(params)
    for node, agent in product(walk(root), trained_agents(params)):
        own = [c for c in node.children if agent in {said.agent for said in c.turn}]
        least, most = protocol.reward_bounds(agent)
        for one, other in product(own, own):
            high, low = (value[name_of(each.turn)][agent] for each in (one, other))
            known = [v for each in own if (v := value[name_of(each.turn)][agent]) == v]
            match params.malt.pair_selection_method:
                case "positive_negative":
                    good = high >= (least + most) / 2 > low
                case "interval":
                    good = high - low > params.malt.interval_threshold_proportion * (most - least)
                case "best_worst":
                    good = high > low and (high, low) == (max(known), min(known))
                case "all":
                    good = high > low
            if good:
                found.add((name_of(node.turn), agent, name_of(one.turn), name_of(other.turn)))
    return found


def select_in(
    params: HyperParameters, tree: Tree, values: NDArray[np.float64], seed: int = 0
) -> tuple[Pair, ...]:
    return select_pairs(
        tree,
        values,
        index=0,
        protocol=protocol_of(params),
        agents=trained_agents(params),
        malt=params.malt,
        key=key(seed),
    )


@pytest.mark.parametrize("method", METHODS)
@given(
    frozen=st.sampled_from([(), ("prover",), ("verifier",)]), root=trees(QUARTERS), data=st.data()
)
def test_the_eligible_pairs_are_those_of_the_definition(
    method: str, frozen: tuple[str, ...], root: Node, data: st.DataObject
) -> None:
    agents = {"agents": {name: {"freeze_agent": True} for name in frozen}}
    malt = {"malt": {"interval_threshold_proportion": 0.25, "pair_selection_method": method}}
    params = make_params(agents, malt)
    tree = flatten(root)
    row = st.tuples(QUARTERS | st.just(NAN), QUARTERS | st.just(NAN))
    drawn = data.draw(st.lists(row, min_size=tree.num_nodes, max_size=tree.num_nodes))
    by_name = {name_of(turn): drawn[i] for i, turn in enumerate(tree.turn_N)}
    assert eligible_in(params, tree, np.array(drawn)) == eligible_by_definition(
        params, root, by_name
    )


@pytest.mark.parametrize("method", METHODS)
@given(
    root=trees(QUARTERS),
    seed=st.integers(0, 2**32),
    backing=st.sampled_from(["children", "leaves"]),
)
def test_permuting_siblings_leaves_the_eligible_pairs(
    method: str, root: Node, seed: int, backing: ValueBackup
) -> None:
    params = with_method(PARAMS, method)
    permuted = shuffle(root, Random(seed))
    assert eligible_by_name(params, permuted, backing) == eligible_by_name(params, root, backing)


def test_a_value_on_the_mid_point_is_positive_in_any_order_of_the_siblings() -> None:
    """Six replies whose expected rewards are 2/6, 3/6 four times, and 4/6: their mean is 1/2."""
    params = with_method(PARAMS, "positive_negative")
    for order in ((2, 3, 3, 3, 3, 4), (4, 3, 3, 3, 3, 2), (3, 3, 2, 4, 3, 3), (3, 2, 3, 4, 3, 3)):
        families = tuple(
            Node(
                reward=(0.0, 0.0),
                children=tuple(Node(reward=(float(i < wins), 0.0)) for i in range(6)),
            )
            for wins in order
        )
        root = Node(reward=(0.0, 0.0), children=families)
        assert backup(flatten(root))[ROOT, PROVER] >= reward_mid_point(protocol_of(params), PROVER)


@pytest.mark.parametrize("method", DRAWING)
@given(root=trees(QUARTERS), seed=st.integers(0, 2**32))
def test_selected_pairs_are_eligible_siblings_at_most_one_for_each_node_and_agent(
    method: str, root: Node, seed: int
) -> None:
    params = with_method(PARAMS, method)
    tree = flatten(root)
    values = backup(tree)
    chosen = select_in(params, tree, values, seed)
    names = [name_of(turn) for turn in tree.turn_N]
    eligible = eligible_in(params, tree, values)
    picked = {(names[p.parent], p.agent, names[p.chosen], names[p.rejected]) for p in chosen}
    assert picked <= eligible
    places = [(pair.parent, pair.agent) for pair in chosen]
    assert len(places) == len(set(places))
    assert {(names[parent], agent) for parent, agent in places} == {e[:2] for e in eligible}
    for pair in chosen:
        assert tree.parent_N[pair.chosen] == tree.parent_N[pair.rejected] == pair.parent
        assert tree.acted_NA[pair.chosen, pair.agent]
        assert tree.acted_NA[pair.rejected, pair.agent]
        assert pair.chosen_value == values[pair.chosen, pair.agent]
        assert pair.rejected_value == values[pair.rejected, pair.agent]


@pytest.mark.parametrize("method", METHODS)
@given(root=trees(QUARTERS), seeds=st.tuples(st.integers(0, 99), st.integers(100, 199)))
def test_another_seed_changes_only_the_draw(
    method: str, root: Node, seeds: tuple[int, int]
) -> None:
    params = with_method(PARAMS, method)
    tree = flatten(root)
    one, other = (select_in(params, tree, backup(tree), seed) for seed in seeds)
    assert [(p.parent, p.agent) for p in one] == [(p.parent, p.agent) for p in other]


@given(root=trees(QUARTERS), seed=st.integers(0, 2**32))
def test_the_draw_at_a_node_depends_on_nothing_elsewhere(root: Node, seed: int) -> None:
    params = with_method(PARAMS, "interval")
    tree = flatten(root)
    values = backup(tree)
    chosen = select_in(params, tree, values, seed)
    for pair in chosen:
        elsewhere = tree.parent_N != pair.parent
        erased = np.where(elsewhere[:, None], NAN, values)
        assert pair in select_in(params, tree, erased, seed)


def test_the_draw_is_uniform_over_eligible_pairs_and_independent_between_agents() -> None:
    """Two replies above and three below, by both agents at once: six pairs each, 36 together."""
    rewards = (1.0, 1.0, -1.0, -1.0, -1.0)
    root = Node(
        reward=(0.0, 0.0),
        children=tuple(
            Node(
                turn=(Utterance(PROVER, str(i)), Utterance(VERIFIER, str(i))), reward=(value, value)
            )
            for i, value in enumerate(rewards)
        ),
    )
    tree = flatten(root)
    values = backup(tree)
    num = 3600
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(num):
        chosen = select_in(with_method(PARAMS, "positive_negative"), tree, values, seed)
        counts[tuple(node for pair in chosen for node in (pair.chosen, pair.rejected))] += 1
    assert len(counts) == 36
    chi_square = sum((count - num / 36) ** 2 / (num / 36) for count in counts.values())
    assert chi_square < 80  # 35 degrees of freedom: beyond 1 in 10_000


def test_a_value_on_the_mid_point_is_positive_and_a_missing_one_is_neither() -> None:
    values = np.array([0.5, 0.49, NAN, 1.0, -3.0])
    positive, negative = positive_negative(values, 0.5)
    assert (list(positive), list(negative)) == ([0, 3], [1, 4])


def test_an_interval_is_wider_than_the_threshold_not_as_wide() -> None:
    values = np.array([0.0, 0.5, 1.25, NAN])
    assert interval(values, 0.5) == ((2, 0), (2, 1))
    assert interval(values, 0.25) == ((1, 0), (2, 0), (2, 1))
    assert interval(np.array([1.0, 1.0]), 0.0) == ()


def test_the_best_and_the_worst_are_all_that_tie_and_none_where_all_are_equal() -> None:
    every = np.ones(5, dtype=np.bool_)
    assert best_worst(np.array([0.0, 1.0, NAN, 0.5, 0.0]), every) == ((1, 0), (1, 4))
    assert best_worst(np.array([1.0, 1.0, NAN, 0.5, 1.0]), every) == ((0, 3), (1, 3), (4, 3))
    assert best_worst(np.array([1.0, 1.0, NAN, 1.0, 1.0]), every) == ()
    assert best_worst(np.full(5, NAN), every) == ()


def test_the_best_is_the_best_that_can_be_used_and_the_worst_need_not_be() -> None:
    usable = np.array([False, True, True, False])
    assert best_worst(np.array([2.0, 1.0, 0.0, -1.0]), usable) == ((1, 3),)
    assert best_worst(np.array([2.0, 1.0, 1.0, 1.5]), usable) == ()
    assert best_worst(np.array([2.0, 1.0, 0.0, 1.0]), ~usable) == ((0, 2),)
    assert best_worst(np.array([2.0, 1.0, 0.0, 1.0]), usable & ~usable) == ()


@given(root=trees(QUARTERS), seed=st.integers(0, 2**32))
def test_all_takes_every_eligible_pair_and_draws_nothing(root: Node, seed: int) -> None:
    params = with_method(PARAMS, "all")
    tree = flatten(root)
    names = [name_of(turn) for turn in tree.turn_N]
    chosen = select_in(params, tree, backup(tree), seed)
    picked = [(names[p.parent], p.agent, names[p.chosen], names[p.rejected]) for p in chosen]
    assert len(picked) == len(set(picked))
    assert set(picked) == eligible_in(params, tree, backup(tree))


def test_the_mid_point_and_the_threshold_are_those_of_the_agent() -> None:
    """Prover: [0, 1], so 1/2 and 1/4.  Verifier: [-1, 1], so 0 and 1/2."""
    protocol = protocol_of(PARAMS)
    values = np.array([0.4, 0.0, -0.1])
    by_sign = replace(PARAMS.malt, pair_selection_method="positive_negative")
    by_width = replace(PARAMS.malt, pair_selection_method="interval")
    assert eligible_pairs(values, protocol, PROVER, by_sign) == ()
    assert eligible_pairs(values, protocol, VERIFIER, by_sign) == ((0, 2), (1, 2))
    assert eligible_pairs(values, protocol, PROVER, by_width) == ((0, 1), (0, 2))
    assert eligible_pairs(values, protocol, VERIFIER, by_width) == ()
    assert eligible_pairs(values * 2, protocol, VERIFIER, by_width) == ((0, 1), (0, 2))


def test_the_first_reply_of_a_game_can_be_preferred() -> None:
    example = golden("early_decision.json")
    selected = select(example.params, (example.root,), key(0))
    at_root = [pair for pair in selected if pair.parent == ROOT]
    assert [(p.agent, p.chosen, p.rejected) for p in at_root] == [(VERIFIER, 1, 2)]


def test_each_tree_draws_for_itself() -> None:
    """The same tree many times over: were the tree's index not folded in, all draws were equal."""
    root = golden("inner_reward.json").root
    selected = select(PARAMS, (root,) * 40, key(0))
    assert [pair.tree for pair in selected] == list(range(40))
    assert len({pair.rejected for pair in selected}) == 2


@settings(max_examples=20)
@given(setups())
def test_pairs_of_whole_runs_are_between_siblings_of_agents_that_are_trained(setup: Setup) -> None:
    protocol = protocol_of(setup.params)
    malt: PureTextMaltParameters = setup.params.malt
    for state in ends(play(setup), "sample"):
        for pair in (each for each in state.selection if isinstance(each, Pair)):
            tree = flatten(state.forest[pair.tree])
            assert not setup.params.agents[pair.agent].freeze_agent
            (chosen,) = (s for s in tree.turn_N[pair.chosen] if s.agent == pair.agent)
            (rejected,) = (s for s in tree.turn_N[pair.rejected] if s.agent == pair.agent)
            assert chosen.error is None
            assert chosen.raw.strip()
            assert rejected.raw.strip()
            assert tree.parent_N[pair.chosen] == tree.parent_N[pair.rejected] == pair.parent
            if malt.pair_selection_method == "positive_negative":
                mid_point = reward_mid_point(protocol, pair.agent)
                assert pair.chosen_value >= mid_point > pair.rejected_value
            else:
                least, most = protocol.reward_bounds(pair.agent)
                threshold = malt.interval_threshold_proportion * (most - least)
                assert pair.chosen_value - pair.rejected_value > threshold


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backing", ["children", "leaves"])
@pytest.mark.parametrize("file", golden_files())
def test_golden_pairs(file: str, backing: ValueBackup, method: str) -> None:
    example = golden(file)
    params = with_method(example.params, method)
    assert eligible_by_name(params, example.root, backing) == example.pairs[backing][method]
