"""Which of the eligible pairs are kept: each rule by hand, and the promises of all of them."""

from collections import Counter
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn.game.decision import ACCEPT, NEITHER, REJECT, Decision
from nip_fn.game.episode import Utterance
from nip_fn.keys import fold_in, key
from nip_fn.params.training import PureTextMaltParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.replay import SELECTION_PARAMETERS, replay, reselect
from nip_fn.select.pairs import (
    Pair,
    balance_agents,
    balance_decisions,
    deduplicate,
    limit,
    refine,
    said_at,
    select_pairs,
    wide_enough,
)
from nip_fn.training.groups import trained_agents
from nip_fn.trees.grow import Node
from nip_fn.trees.tree import Tree, backup, flatten

from .games import BUSY, MANY_PAIRS, Setup, ends, events_of, fifo, lifo, make_params, play
from .trees import golden, trees

PARAMS = make_params()
YES, NO, HALF = (
    Decision(text, discrete, value)
    for text, discrete, value in (("yes", ACCEPT, 1.0), ("no", REJECT, -1.0), ("?", NEITHER, 0.0))
)
QUARTERS = st.sampled_from([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])


def pair(
    chosen: int,
    rejected: int,
    *,
    tree: int = 0,
    agent: int = VERIFIER,
    values: tuple[float, float] = (1.0, 0.0),
) -> Pair:
    return Pair(tree, 0, agent, chosen, rejected, *values)


def family(*said: Utterance) -> Tree:
    """A root and a child for each reply: child i is node i + 1."""
    children = tuple(Node(turn=(each,), reward=(0.0, 0.0)) for each in said)
    return flatten(Node(reward=(0.0, 0.0), children=children))


def verifier(text: str, decision: Decision | None = None) -> Utterance:
    return Utterance(VERIFIER, text, decision=decision)


# --------------------------------------------------------------------------------- each by itself


def test_a_pair_is_wide_enough_at_the_margin_and_never_at_none() -> None:
    equal, half, whole = (pair(1, 2, values=(1.0, value)) for value in (1.0, 0.5, 0.0))
    upside_down = pair(1, 2, values=(0.0, 1.0))
    every = (equal, half, whole, upside_down)
    assert wide_enough(every, 0.0) == (half, whole)
    assert wide_enough(every, 0.5) == (half, whole)
    assert wide_enough(every, 0.5000001) == (whole,)
    assert wide_enough(every, 1.5) == ()
    assert wide_enough((pair(1, 2, values=(1.0, float("nan"))),), 0.0) == ()


def test_the_draw_is_among_the_pairs_that_are_wide_enough() -> None:
    """Values 1, 1/2, 0: with a margin of 3/4 only (1, 0) is left, at any seed."""
    tree = flatten(
        Node(
            reward=(0.0, 0.0),
            children=tuple(
                Node(turn=(verifier(str(value)),), reward=(0.0, value)) for value in (1.0, 0.5, 0.0)
            ),
        )
    )
    malt = PureTextMaltParameters(pair_selection_method="interval", min_pair_margin=0.75)
    for seed in range(20):
        assert [(p.chosen, p.rejected) for p in selected((tree,), malt, seed)] == [(1, 3)]


def test_equal_texts_are_kept_once_in_a_tree_and_for_an_agent() -> None:
    """Texts a b a b: (1, 2), (3, 4), (1, 4) say the same, (2, 3) the opposite, (1, 3) nothing."""
    tree = family(*(verifier(text) for text in "abab"))
    every = (pair(1, 2), pair(2, 3), pair(3, 4), pair(1, 4), pair(1, 3))
    other = (pair(1, 2, tree=1), pair(3, 4, tree=1))
    kept = deduplicate(every + other, {0: tree, 1: tree})
    assert kept == (pair(1, 2), pair(2, 3), pair(1, 2, tree=1))


def test_agents_that_say_the_same_are_not_duplicates_of_each_other() -> None:
    turns = (Utterance(PROVER, "a"), verifier("a")), (Utterance(PROVER, "b"), verifier("b"))
    children = tuple(Node(turn=turn, reward=(0.0, 0.0)) for turn in turns)
    tree = flatten(Node(reward=(0.0, 0.0), children=children))
    every = (pair(1, 2), pair(1, 2, agent=PROVER))
    assert deduplicate(every, {0: tree}) == every


def test_pairs_of_equal_texts_are_left_out_before_the_draw() -> None:
    """Texts a b a with values 1, 0, 0: only (1, 2) says anything, at any seed."""
    tree = flatten(
        Node(
            reward=(0.0, 0.0),
            children=tuple(
                Node(turn=(verifier(text),), reward=(0.0, value))
                for text, value in (("a", 1.0), ("b", 0.0), ("a", 0.0))
            ),
        )
    )
    malt = PureTextMaltParameters(pair_selection_method="best_worst")
    drawn = {selected((tree,), malt, seed)[0].rejected for seed in range(20)}
    assert drawn == {2, 3}
    malt = replace(malt, deduplicate_pairs=True)
    assert {selected((tree,), malt, seed)[0].rejected for seed in range(20)} == {2}


def test_a_limit_holds_for_each_tree_and_agent_and_keeps_the_order() -> None:
    pairs = tuple(
        pair(chosen, 9, tree=tree, agent=agent)
        for tree, agent, chosen in product((0, 1), (PROVER, VERIFIER), (1, 2, 3, 4))
    )
    kept = limit(pairs, 3, key(0))
    assert Counter((p.tree, p.agent) for p in kept) == dict.fromkeys(
        product((0, 1), (PROVER, VERIFIER)), 3
    )
    assert list(kept) == sorted(kept, key=pairs.index)
    assert limit(pairs, 4, key(0)) == pairs


def test_a_limit_draws_uniformly() -> None:
    """Two of four pairs: six subsets, 600 draws."""
    pairs = tuple(pair(chosen, 9) for chosen in (1, 2, 3, 4))
    counts = Counter(limit(pairs, 2, key(seed)) for seed in range(600))
    assert len(counts) == 6
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 26  # 5 degrees of freedom: beyond 1 in 10_000


def test_what_is_kept_of_a_tree_depends_on_no_other_tree() -> None:
    here = tuple(pair(chosen, 9) for chosen in range(1, 9))
    there = tuple(pair(chosen, 9, tree=1) for chosen in range(1, 9))
    assert limit(there + here, 3, key(0)) == limit(there, 3, key(0)) + limit(here, 3, key(0))


DECIDERS = family(
    verifier("1", YES),
    verifier("2", YES),
    verifier("3", YES),
    verifier("4", NO),
    verifier("5", HALF),
    verifier("6"),
)


def test_decisions_are_balanced_and_what_decides_nothing_is_kept() -> None:
    """Three pairs accept, one rejects, one is undecided and one asks: two are dropped."""
    pairs = tuple(pair(chosen, 9) for chosen in range(1, 7))
    survivors = set()
    for seed in range(50):
        kept = balance_decisions(pairs, {0: DECIDERS}, key(seed))
        assert kept[1:] == pairs[3:]
        survivors.add(kept[0].chosen)
    assert survivors == {1, 2, 3}


def test_decisions_for_one_side_alone_are_all_dropped() -> None:
    pairs = tuple(pair(chosen, 9) for chosen in (1, 2, 3, 6))
    assert balance_decisions(pairs, {0: DECIDERS}, key(0)) == pairs[3:]


def test_decisions_are_balanced_over_all_trees_and_for_each_agent() -> None:
    """Agent 1 accepts in tree 0 and rejects in tree 1; agent 0 only accepts."""
    both = tuple(
        Node(turn=(Utterance(PROVER, text, decision=d), verifier(text, d)), reward=(0.0, 0.0))
        for text, d in (("a", YES), ("b", NO))
    )
    tree = flatten(Node(reward=(0.0, 0.0), children=both))
    pairs = (pair(1, 2), pair(2, 1, tree=1), pair(1, 2, agent=PROVER))
    for seed in range(10):
        assert balance_decisions(pairs, {0: tree, 1: tree}, key(seed)) == pairs[:2]


def test_every_agent_keeps_as_many_as_the_one_with_fewest() -> None:
    provers = tuple(pair(chosen, 9, agent=PROVER) for chosen in (1, 2))
    verifiers = tuple(pair(chosen, 9, tree=tree) for tree in (0, 1) for chosen in (1, 2, 3))
    kept = balance_agents(verifiers + provers, key(0))
    assert Counter(p.agent for p in kept) == {PROVER: 2, VERIFIER: 2}
    assert kept[2:] == provers
    assert len({balance_agents(verifiers + provers, key(seed))[:2] for seed in range(60)}) > 10


def test_an_agent_without_pairs_takes_none_from_the_others() -> None:
    verifiers = tuple(pair(chosen, 9) for chosen in (1, 2, 3))
    assert balance_agents(verifiers, key(0)) == verifiers
    assert balance_agents((), key(0)) == ()


# ---------------------------------------------------------------------------------- all together


def selected(forest: tuple[Tree, ...], malt: PureTextMaltParameters, seed: int) -> tuple[Pair, ...]:
    return tuple(
        each
        for index, tree in enumerate(forest)
        for each in select_pairs(
            tree,
            backup(tree, malt.value_backup),
            index=index,
            protocol=protocol_of(PARAMS),
            agents=trained_agents(PARAMS),
            malt=malt,
            key=fold_in(key(seed), index),
        )
    )


def refined(forest: tuple[Tree, ...], malt: PureTextMaltParameters, seed: int) -> tuple[Pair, ...]:
    return refine(selected(forest, malt, seed), forest, malt, fold_in(key(seed), "refine"))


def retold(node: Node, random: Random) -> Node:
    """The tree with few different texts, decisions, and replies that cannot be used."""
    turn = tuple(
        Utterance(
            said.agent,
            random.choice("abc"),
            decision=random.choice((None, YES, NO, HALF)),
            error=random.choice((None, None, None, "invalid_decision")),
        )
        for said in node.turn
    )
    return replace(
        node, turn=turn, children=tuple(retold(child, random) for child in node.children)
    )


FORESTS = st.builds(
    lambda roots, seed: tuple(flatten(retold(root, Random(seed + i))) for i, root in roots),
    st.lists(trees(QUARTERS), min_size=1, max_size=4).map(lambda roots: tuple(enumerate(roots))),
    st.integers(0, 2**32),
)
RULES = st.builds(
    PureTextMaltParameters,
    pair_selection_method=st.sampled_from(["positive_negative", "interval", "best_worst", "all"]),
    interval_threshold_proportion=st.sampled_from([0.0, 0.1, 0.5]),
    min_pair_margin=st.sampled_from([0.0, 0.25, 0.5]),
    deduplicate_pairs=st.booleans(),
    max_pairs_per_datapoint=st.sampled_from([None, 1, 2]),
    balance_pairs=st.sampled_from(["none", "decisions", "agents"]),
    value_backup=st.sampled_from(["children", "leaves"]),
)


@given(FORESTS, RULES, st.integers(0, 2**32))
def test_every_rule_holds_of_what_is_left_and_all_of_it_was_eligible(
    forest: tuple[Tree, ...], malt: PureTextMaltParameters, seed: int
) -> None:
    kept, trees_of = refined(forest, malt, seed), dict(enumerate(forest))
    everything = PureTextMaltParameters(pair_selection_method="all", value_backup=malt.value_backup)
    eligible = selected(forest, everything, seed)
    assert len(set(kept)) == len(kept)
    assert set(kept) <= set(eligible)
    for each in kept:
        assert each.chosen_value - each.rejected_value >= malt.min_pair_margin
        assert each.chosen_value > each.rejected_value
        assert said_at(trees_of, each, each.chosen).error is None
    texts = [
        (p.tree, p.agent, *(said_at(trees_of, p, node).raw for node in (p.chosen, p.rejected)))
        for p in kept
    ]
    if malt.deduplicate_pairs:
        assert len(set(texts)) == len(texts)
        assert all(chosen != rejected for _, _, chosen, rejected in texts)
    if malt.max_pairs_per_datapoint is not None:
        counts = Counter((p.tree, p.agent) for p in kept)
        assert max(counts.values(), default=0) <= malt.max_pairs_per_datapoint
    if malt.pair_selection_method != "all":
        assert max(Counter((p.tree, p.parent, p.agent) for p in kept).values(), default=0) <= 1
    if malt.balance_pairs == "agents":
        assert len(set(Counter(p.agent for p in kept).values())) <= 1
    if malt.balance_pairs == "decisions":
        for agent in (PROVER, VERIFIER):
            own = [said_at(trees_of, p, p.chosen).decision for p in kept if p.agent == agent]
            sides = Counter(decision.discrete for decision in own if decision)
            assert sides[ACCEPT] == sides[REJECT]


def test_the_rules_are_applied_one_after_the_other() -> None:
    """Texts a b a b, a limit of 2: had the repeated pair not gone first, it could take a place.

    Of (1, 2), (2, 3), (3, 4) and (4, 1) the last two repeat the first two.  Prover's one pair then
    leaves the verifier one of its two.
    """
    tree = family(
        *(verifier(text) for text in "abab"), Utterance(PROVER, "c"), Utterance(PROVER, "d")
    )
    own = (pair(1, 2), pair(2, 3), pair(3, 4), pair(4, 1))
    rules = PureTextMaltParameters(deduplicate_pairs=True, max_pairs_per_datapoint=2)
    for seed in range(10):
        assert refine(own, (tree,), rules, key(seed)) == own[:2]
    balanced = replace(rules, balance_pairs="agents")
    prover = pair(5, 6, agent=PROVER)
    kept = {refine((*own, prover), (tree,), balanced, key(seed)) for seed in range(20)}
    assert kept == {(own[0], prover), (own[1], prover)}


@given(FORESTS, RULES, st.integers(0, 2**32))
def test_rules_that_are_off_leave_a_selection_alone_and_each_only_leaves_out(
    forest: tuple[Tree, ...], malt: PureTextMaltParameters, seed: int
) -> None:
    off = replace(malt, deduplicate_pairs=False, max_pairs_per_datapoint=None, balance_pairs="none")
    before = selected(forest, malt, seed)
    assert refine(before, forest, off, key(seed)) == before
    after = refine(before, forest, malt, key(seed))
    assert after == tuple(p for p in before if p in set(after))
    assert refine(before, forest, malt, key(seed)) == after


@given(FORESTS, RULES, st.integers(0, 2**32))
def test_a_draw_of_one_of_the_best_and_one_of_the_worst_is_as_wide_as_any(
    forest: tuple[Tree, ...], malt: PureTextMaltParameters, seed: int
) -> None:
    every = replace(malt, pair_selection_method="all", deduplicate_pairs=False)
    widest: dict[tuple[int, int, int], float] = {}
    for p in selected(forest, every, seed):
        place, width = (p.tree, p.parent, p.agent), p.chosen_value - p.rejected_value
        widest[place] = max(width, widest.get(place, 0.0))
    drawn = {
        (p.tree, p.parent, p.agent): p.chosen_value - p.rejected_value
        for p in selected(forest, replace(every, pair_selection_method="best_worst"), seed)
    }
    assert drawn == widest


def test_best_against_worst_and_all_pairs_of_a_tree_that_was_worked_out_by_hand() -> None:
    """Golden values at the root of broken_off: reject -1, ask 1/2, ask too 1."""
    tree = flatten(golden("broken_off.json").root)

    def at_root(**rules: object) -> list[tuple[int, int]]:
        malt = replace(PureTextMaltParameters(), **rules)
        return [(p.chosen, p.rejected) for p in refined((tree,), malt, 0) if p.parent == 0]

    assert at_root(pair_selection_method="best_worst") == [(3, 1)]
    assert at_root(pair_selection_method="best_worst", min_pair_margin=2.5) == []
    assert at_root(pair_selection_method="all") == [(2, 1), (3, 1), (3, 2)]
    assert at_root(pair_selection_method="all", min_pair_margin=0.75) == [(2, 1), (3, 1)]
    assert at_root(pair_selection_method="all", min_pair_margin=2.0) == [(3, 1)]


@pytest.mark.parametrize(
    "rules",
    [
        {"pair_selection_method": "best_worst"},
        {"pair_selection_method": "all", "max_pairs_per_datapoint": 2},
        {"pair_selection_method": "all", "balance_pairs": "agents"},
        {"balance_pairs": "decisions", "deduplicate_pairs": True, "min_pair_margin": 0.5},
    ],
)
def test_a_runs_selection_is_the_same_in_whatever_order_replies_came(
    rules: dict[str, object],
) -> None:
    setup = Setup(make_params(MANY_PAIRS, {"malt": rules}), decision_rate=0.5)
    one, other = (
        [state.selection for state in ends(play(setup, order), "sample")] for order in (fifo, lifo)
    )
    assert one == other
    assert any(one)


def test_a_replay_can_change_every_rule_but_not_how_a_tree_grew() -> None:
    fields = set(PureTextMaltParameters.__struct_fields__)
    grown = {
        "frozen_agents_generate_one_response",
        "num_initial_ei_iterations",
        "num_responses_per_timestep",
        "simultaneous_branching",
    }
    assert {f"malt.{field}" for field in fields - grown} <= set(SELECTION_PARAMETERS)
    assert not {f"malt.{field}" for field in grown} & set(SELECTION_PARAMETERS)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("pair_selection_method", "best_worst"),
        ("pair_selection_method", "all"),
        ("min_pair_margin", 1.0),
        ("deduplicate_pairs", True),
        ("max_pairs_per_datapoint", 1),
        ("balance_pairs", "decisions"),
        ("balance_pairs", "agents"),
    ],
)
def test_a_replay_selects_what_the_run_would_have(rule: str, value: object) -> None:
    """The first sampling of two runs sees the same replies, whatever is selected from them."""
    params = replace(BUSY.params, malt=replace(BUSY.params.malt, **{rule: value}))
    replayed = replay(events_of(play(BUSY))).unwrap()
    (first, pairs), *_ = reselect(replayed, params).unwrap()
    state = ends(play(BUSY._replace(params=params)), "sample")[0]
    assert state.forest == first.forest
    assert pairs == state.selection
    assert pairs
    assert (pairs == first.selection) == (rule == "deduplicate_pairs")  # all texts differ there
