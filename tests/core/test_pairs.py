"""Rules of preference pairs: what each proposes among siblings, and which one is drawn."""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn.config.groups import make_groups
from nip_fn.config.trainers import BACKUPS, SELECTORS, selector_of
from nip_fn.game.bounds import reward_bounds, reward_mid_point
from nip_fn.game.episode import Utterance
from nip_fn.keys import key
from nip_fn.params.names import PAIR_RULES
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.filters import one_per_node
from nip_fn.select.pairs import (
    Candidates,
    Pairs,
    Selector,
    about,
    best_worst,
    candidates,
    chain,
    every,
    interval,
)
from nip_fn.training.trainer import trained_agents
from nip_fn.trees.backup import Backup, Values, mean_children
from nip_fn.trees.node import Node
from nip_fn.trees.tree import ROOT, Tree

from .games import make_params
from .trees import (
    QUARTERS,
    Eligible,
    family,
    flat,
    golden,
    golden_files,
    name_of,
    names_of,
    shuffle,
    trees,
    walk,
)

NAN = float("nan")
METHODS = PAIR_RULES
PARAMS = make_params({"malt": {"interval_threshold_proportion": 0.25}})  # 1/4 and, of [-1, 1], 1/2
PROTOCOL = protocol_of(PARAMS)


def frozen(*agents: str) -> HyperParameters:
    return make_params(
        {"agents": {name: {"freeze_agent": True} for name in agents}},
        {"malt": {"interval_threshold_proportion": 0.25}},
    )


FROZEN = [frozen(*agents) for agents in ((), ("prover",), ("verifier",))]


def among_in(params: HyperParameters, tree: Tree, values: Values) -> Candidates:
    """The candidates of one tree whose expected rewards are those given."""
    agents = trained_agents(make_groups(params))
    return candidates([tree], protocol_of(params), lambda _: values, agents=agents)


def by_name(tree: Tree, pairs: Pairs) -> Eligible:
    names = names_of(tree)
    found = {(names[p.parent], p.agent, names[p.chosen], names[p.rejected]) for p in pairs}
    assert len(found) == len(pairs)
    return found


def eligible_in(params: HyperParameters, method: str, tree: Tree, values: Values) -> Eligible:
    rule = SELECTORS[method](params.malt)
    return by_name(tree, rule(among_in(params, tree, values), key(0)))


def selected_in(method: str, tree: Tree, values: Values, seed: int) -> Pairs:
    malt = replace(PARAMS.malt, pair_selection_method=method)
    return selector_of(malt)(among_in(PARAMS, tree, values), key(seed))


def eligible_by_definition(
    params: HyperParameters,
    method: str,
    root: Node,
    value: Mapping[str, tuple[float, ...]],
) -> Eligible:
    """Straight from the definitions, over the tree itself."""
    found: Eligible = set()
    protocol = protocol_of(params)
    for node, agent in product(walk(root), trained_agents(make_groups(params))):
        own = [c for c in node.children if agent in {said.agent for said in c.utterances}]
        least, most = reward_bounds(protocol, agent)
        known = [v for each in own if (v := value[name_of(each.utterances)][agent]) == v]
        mean = sum(map(Fraction, known)) / len(known) if known else Fraction(0)
        for one, other in product(own, own):
            high, low = (value[name_of(each.utterances)][agent] for each in (one, other))
            match method:
                case "positive_negative":
                    good = high >= (least + most) / 2 > low
                case "about_mean":  # exactly, in fractions
                    good = high >= mean > low
                case "interval":
                    good = high - low > params.malt.interval_threshold_proportion * (most - least)
                case "best_worst":
                    good = high > low and (high, low) == (max(known), min(known))
                case "all":
                    good = high > low
            if good:
                found.add(
                    (
                        name_of(node.utterances),
                        agent,
                        name_of(one.utterances),
                        name_of(other.utterances),
                    )
                )
    return found


@given(root=trees(QUARTERS), params=st.sampled_from(FROZEN), data=st.data())
def test_the_eligible_pairs_are_those_of_the_definition(
    root: Node, params: HyperParameters, data: st.DataObject
) -> None:
    tree = flat(root)
    row = st.tuples(QUARTERS | st.just(NAN), QUARTERS | st.just(NAN))
    drawn = data.draw(st.lists(row, min_size=tree.num_nodes, max_size=tree.num_nodes))
    values = dict(zip(names_of(tree), drawn, strict=True))
    for method in METHODS:
        expected = eligible_by_definition(params, method, root, values)
        assert eligible_in(params, method, tree, np.array(drawn)) == expected


@pytest.mark.parametrize("method", METHODS)
@given(
    root=trees(QUARTERS),
    seed=st.integers(0, 2**32),
    backup=st.sampled_from(sorted(BACKUPS)).map(BACKUPS.__getitem__),
)
def test_permuting_siblings_leaves_the_eligible_pairs(
    method: str, root: Node, seed: int, backup: Backup
) -> None:
    one, other = flat(root), flat(shuffle(root, Random(seed)))
    assert eligible_in(PARAMS, method, one, backup(one)) == eligible_in(
        PARAMS, method, other, backup(other)
    )


def test_a_value_on_the_mid_point_is_positive_in_any_order_of_the_siblings() -> None:
    """Six replies whose expected rewards are 2/6, 3/6 four times, and 4/6: their mean is 1/2."""
    for order in ((2, 3, 3, 3, 3, 4), (4, 3, 3, 3, 3, 2), (3, 3, 2, 4, 3, 3), (3, 2, 3, 4, 3, 3)):
        families = tuple(
            Node(
                reward=(0.0, 0.0),
                children=tuple(Node(reward=(float(i < wins), 0.0)) for i in range(6)),
            )
            for wins in order
        )
        tree = flat(Node(reward=(0.0, 0.0), children=families))
        assert mean_children(tree)[ROOT, PROVER] >= reward_mid_point(PROTOCOL, PROVER)


@pytest.mark.parametrize("method", METHODS)
@given(root=trees(QUARTERS), seed=st.integers(0, 2**32))
def test_selected_pairs_are_eligible_siblings_at_most_one_for_each_node_and_agent(
    method: str, root: Node, seed: int
) -> None:
    """With "all", every eligible pair is selected."""
    tree = flat(root)
    values = mean_children(tree)
    chosen = selected_in(method, tree, values, seed)
    eligible = eligible_in(PARAMS, method, tree, values)
    picked = by_name(tree, chosen)
    assert picked <= eligible
    places = [(name, agent) for name, agent, _, _ in picked]
    assert set(places) == {(name, agent) for name, agent, _, _ in eligible}
    assert picked == eligible if method == "all" else len(places) == len(set(places))
    for pair in chosen:
        assert tree.parent_N[pair.chosen] == tree.parent_N[pair.rejected] == pair.parent
        assert tree.acted_NA[pair.chosen, pair.agent]
        assert tree.acted_NA[pair.rejected, pair.agent]
        assert pair.chosen_value == values[pair.chosen, pair.agent]
        assert pair.rejected_value == values[pair.rejected, pair.agent]
    other = selected_in(method, tree, values, seed + 1)  # another seed changes only the draw
    assert [(p.parent, p.agent) for p in other] == [(p.parent, p.agent) for p in chosen]


@given(root=trees(QUARTERS), seed=st.integers(0, 2**32))
def test_the_draw_at_a_node_depends_on_nothing_elsewhere(root: Node, seed: int) -> None:
    tree = flat(root)
    values = mean_children(tree)
    for pair in selected_in("interval", tree, values, seed):
        elsewhere = tree.parent_N != pair.parent
        erased = np.where(elsewhere[:, None], NAN, values)
        assert pair in selected_in("interval", tree, erased, seed)


def test_the_draw_is_uniform_over_eligible_pairs_and_independent_between_agents() -> None:
    """Two replies above and three below, by both agents at once: six pairs each, 36 together."""
    root = Node(
        reward=(0.0, 0.0),
        children=tuple(
            Node(
                utterances=(Utterance(PROVER, str(i)), Utterance(VERIFIER, str(i))),
                reward=(value, value),
            )
            for i, value in enumerate((1.0, 1.0, -1.0, -1.0, -1.0))
        ),
    )
    among, num = candidates([flat(root)], PROTOCOL), 3600
    proposed = about()(among, key(0))
    assert len(proposed) == 12
    counts = Counter(one_per_node()(among, key(seed), proposed) for seed in range(num))
    assert len(counts) == 36
    chi_square = sum((count - num / 36) ** 2 / (num / 36) for count in counts.values())
    assert chi_square < 80  # 35 degrees of freedom: beyond 1 in 10_000


def ranked(
    rule: Selector, *values: float, usable: str = "", agent: int = VERIFIER
) -> set[tuple[int, int]]:
    """The (chosen, rejected) ranks that a rule proposes among replies worth that.

    `usable` has a letter for each: "y", or "n" for a reply that cannot be used.
    """
    tree = family(
        *(
            Utterance(agent, str(rank), error="invalid_decision" if letter == "n" else None)
            for rank, letter in enumerate(usable or "y" * len(values))
        )
    )
    among = candidates(
        [tree], PROTOCOL, lambda _: np.array([(NAN, NAN), *zip(values, values, strict=True)])
    )
    return {(pair.chosen - 1, pair.rejected - 1) for pair in rule(among, key(0))}


def test_a_value_on_the_mid_point_is_positive_and_a_missing_one_is_neither() -> None:
    values = (0.5, 0.49, NAN, 1.0, -3.0)
    assert ranked(about(0.5), *values) == set(product((0, 3), (1, 4)))
    assert ranked(about(0.5), *values, usable="nyyyy") == set(product((3,), (1, 4)))


def test_an_interval_is_wider_than_the_threshold_not_as_wide() -> None:
    """The verifier's range is 2 wide: shares of 1/4 and 1/8 are 1/2 and 1/4."""
    values = (0.0, 0.5, 1.25, NAN)
    assert ranked(interval(0.25), *values) == {(2, 0), (2, 1)}
    assert ranked(interval(0.125), *values) == {(1, 0), (2, 0), (2, 1)}
    assert ranked(interval(0.125), *values, usable="yyny") == {(1, 0)}
    assert ranked(interval(0.0), 1.0, 1.0) == ranked(every(), 1.0, 1.0) == set()


def test_the_best_and_the_worst_are_all_that_tie_and_none_where_all_are_equal() -> None:
    assert ranked(best_worst(), 0.0, 1.0, NAN, 0.5, 0.0) == {(1, 0), (1, 4)}
    assert ranked(best_worst(), 1.0, 1.0, NAN, 0.5, 1.0) == {(0, 3), (1, 3), (4, 3)}
    assert ranked(best_worst(), 1.0, 1.0, NAN, 1.0, 1.0) == set()
    assert ranked(best_worst(), NAN, NAN, NAN) == set()


def test_the_best_is_the_best_that_can_be_used_and_the_worst_need_not_be() -> None:
    assert ranked(best_worst(), 2.0, 1.0, 0.0, -1.0, usable="nyyn") == {(1, 3)}
    assert ranked(best_worst(), 2.0, 1.0, 1.0, 1.5, usable="nyyn") == set()
    assert ranked(best_worst(), 2.0, 1.0, 0.0, 1.0, usable="ynny") == {(0, 2)}
    assert ranked(best_worst(), 2.0, 1.0, 0.0, 1.0, usable="nnnn") == set()


def test_the_mid_point_and_the_threshold_are_those_of_the_agent() -> None:
    """Prover: [0, 1], so 1/2 and 1/4.  Verifier: [-1, 1], so 0 and 1/2."""
    values, doubled = (0.4, 0.0, -0.1), (0.8, 0.0, -0.2)
    assert ranked(about(), *values, agent=PROVER) == set()
    assert ranked(about(), *values) == {(0, 2), (1, 2)}
    assert ranked(interval(0.25), *values, agent=PROVER) == {(0, 1), (0, 2)}
    assert ranked(interval(0.25), *values) == set()
    assert ranked(interval(0.25), *doubled) == {(0, 1), (0, 2)}


def test_the_first_reply_of_a_game_can_be_preferred() -> None:
    example = golden("early_decision.json")
    among = candidates([flat(example.root)], protocol_of(example.params))
    selected = selector_of(example.params.malt)(among, key(0))
    at_root = [pair for pair in selected if pair.parent == ROOT]
    assert [(p.agent, p.chosen, p.rejected) for p in at_root] == [(VERIFIER, 1, 2)]


def test_each_tree_draws_for_itself() -> None:
    """The same tree many times over: were the tree's index not folded in, all draws were equal."""
    among = candidates([flat(golden("inner_reward.json").root)] * 40, PROTOCOL)
    selected = chain(about(), one_per_node())(among, key(0))
    assert [pair.tree for pair in selected] == list(range(40))
    assert len({pair.rejected for pair in selected}) == 2


def test_each_node_draws_for_itself() -> None:
    """Forty equal families: were the node's path not folded in, all draws were equal."""
    inner = golden("inner_reward.json").root
    root = replace(inner, children=inner.children * 40)
    among = candidates([flat(root)], PROTOCOL, agents=(PROVER,))
    selected = chain(about(), one_per_node())(among, key(0))
    families = [pair for pair in selected if pair.parent != ROOT]
    assert len(families) == 40
    assert len({among.trees[0].path_N[pair.rejected][-1] for pair in families}) == 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", BACKUPS)
@pytest.mark.parametrize("file", golden_files())
def test_golden_pairs(file: str, name: str, method: str) -> None:
    example = golden(file)
    tree = flat(example.root)
    found = eligible_in(example.params, method, tree, BACKUPS[name](tree))
    assert found == example.pairs[name][method]
