"""Filters of preference pairs by hand, and the promises of the chains that parameters describe."""

from collections import Counter
from functools import cache
from itertools import product
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn.config.schema import parameters
from nip_fn.config.trainers import BACKUPS, SELECTORS, selector_of
from nip_fn.game.decision import ACCEPT, NEITHER, REJECT, Decision
from nip_fn.game.episode import Utterance
from nip_fn.keys import key
from nip_fn.params.agent import AgentParameters
from nip_fn.params.names import PAIR_RULES
from nip_fn.params.training import PureTextMaltParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.replay import Replayed, replay, reselect
from nip_fn.select.filters import balance, cap, dedupe, margin, one_per_node
from nip_fn.select.pairs import (
    Pair,
    Pairs,
    Selector,
    best_worst,
    candidates,
    chain,
    every,
    interval,
)
from nip_fn.trees.backup import discounted, mean_leaves
from nip_fn.trees.node import Node
from nip_fn.trees.tree import Tree, flatten

from .games import BUSY, Setup, ends, events_of, lifo, play
from .trees import QUARTERS, family, flat, golden, trees

PROTOCOL = protocol_of(BUSY.params)
YES, NO, HALF = (
    Decision(text, discrete, value)
    for text, discrete, value in (("yes", ACCEPT, 1.0), ("no", REJECT, -1.0), ("?", NEITHER, 0.0))
)


def pair(
    chosen: int,
    rejected: int,
    *,
    tree: int = 0,
    agent: int = VERIFIER,
    values: tuple[float, float] = (1.0, 0.0),
) -> Pair:
    return Pair(tree, 0, agent, chosen, rejected, *values)


def said(text: str, decision: Decision | None = None, agent: int = VERIFIER) -> Utterance:
    return Utterance(agent, text, decision=decision)


def filtered(selector: Selector, pairs: Pairs, *forest: Tree, seed: int = 0) -> Pairs:
    return selector(candidates(forest, PROTOCOL), key(seed), pairs)


# --------------------------------------------------------------------------------- each by itself


def test_a_margin_is_reached_by_what_equals_it_and_never_by_nothing() -> None:
    equal, half, whole = (pair(1, 2, values=(1.0, value)) for value in (1.0, 0.5, 0.0))
    upside_down = pair(1, 2, values=(0.0, 1.0))
    pairs = (equal, half, whole, upside_down)
    assert filtered(margin(0.0), pairs) == (half, whole)
    assert filtered(margin(0.5), pairs) == (half, whole)
    assert filtered(margin(0.5000001), pairs) == (whole,)
    assert filtered(margin(1.5), pairs) == ()
    assert filtered(margin(0.0), (pair(1, 2, values=(1.0, float("nan"))),)) == ()


def test_equal_texts_are_kept_once_in_a_tree_and_for_an_agent() -> None:
    """Texts a b a b: (1, 2), (3, 4), (1, 4) say the same, (2, 3) the opposite, (1, 3) nothing."""
    tree = family(*map(said, "abab"))
    pairs = (pair(1, 2), pair(2, 3), pair(3, 4), pair(1, 4), pair(1, 3))
    other = (pair(1, 2, tree=1), pair(3, 4, tree=1))
    kept = (pair(1, 2), pair(2, 3), pair(1, 2, tree=1))
    assert filtered(dedupe(), pairs + other, tree, tree) == kept
    assert filtered(dedupe("node"), pairs + other, tree, tree) == kept


def test_equal_texts_at_two_nodes_are_one_pair_of_the_tree_and_two_of_the_nodes() -> None:
    below = tuple(Node(utterances=(said(text),), reward=(0.0, 0.0)) for text in "ab")
    inner = tuple(Node(utterances=(said(t),), reward=(0.0, 0.0), children=below) for t in "cd")
    tree = flat(Node(reward=(0.0, 0.0), children=inner))
    pairs = (replace(pair(3, 4), parent=1), replace(pair(5, 6), parent=2))
    assert filtered(dedupe(), pairs, tree) == pairs[:1]
    assert filtered(dedupe("node"), pairs, tree) == pairs


def test_agents_that_say_the_same_are_not_duplicates_of_each_other() -> None:
    turns = ((said("a", agent=PROVER), said("a")), (said("b", agent=PROVER), said("b")))
    children = tuple(Node(utterances=turn, reward=(0.0, 0.0)) for turn in turns)
    pairs = (pair(1, 2), pair(1, 2, agent=PROVER))
    tree = flat(Node(reward=(0.0, 0.0), children=children))
    assert filtered(dedupe(), pairs, tree) == pairs


def test_a_cap_holds_for_each_tree_and_agent_and_keeps_the_order() -> None:
    pairs = tuple(
        pair(chosen, 9, tree=tree, agent=agent)
        for tree, agent, chosen in product((0, 1), (PROVER, VERIFIER), (1, 2, 3, 4))
    )
    kept = filtered(cap(3), pairs)
    places = product((0, 1), (PROVER, VERIFIER))
    assert Counter((p.tree, p.agent) for p in kept) == dict.fromkeys(places, 3)
    assert list(kept) == sorted(kept, key=pairs.index)
    assert filtered(cap(4), pairs) == pairs
    assert Counter(p.tree for p in filtered(cap(3, per=("tree",)), pairs)) == {0: 3, 1: 3}
    assert len(filtered(cap(3, per=()), pairs)) == 3


def test_a_cap_draws_uniformly() -> None:
    """Two of four pairs: six subsets, 600 draws."""
    pairs = tuple(pair(chosen, 9) for chosen in (1, 2, 3, 4))
    counts = Counter(filtered(cap(2), pairs, seed=seed) for seed in range(600))
    assert len(counts) == 6
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 26  # 5 degrees of freedom: beyond 1 in 10_000


def test_what_is_kept_of_a_tree_depends_on_no_other_tree() -> None:
    here = tuple(pair(chosen, 9) for chosen in range(1, 9))
    there = tuple(pair(chosen, 9, tree=1) for chosen in range(1, 9))
    assert filtered(cap(3), there + here) == filtered(cap(3), there) + filtered(cap(3), here)


DECIDERS = family(*map(said, "123456", (YES, YES, YES, NO, HALF, None)))


def test_decisions_are_balanced_and_what_decides_nothing_is_kept() -> None:
    """Three pairs accept, one rejects, one is undecided and one asks: two are dropped."""
    pairs = tuple(pair(chosen, 9) for chosen in range(1, 7))
    survivors = set()
    for seed in range(50):
        kept = filtered(balance("decisions"), pairs, DECIDERS, seed=seed)
        assert kept[1:] == pairs[3:]
        survivors.add(kept[0].chosen)
    assert survivors == {1, 2, 3}


def test_decisions_for_one_side_alone_are_all_dropped() -> None:
    pairs = tuple(pair(chosen, 9) for chosen in (1, 2, 3, 6))
    assert filtered(balance("decisions"), pairs, DECIDERS) == pairs[3:]


def test_decisions_are_balanced_over_all_trees_and_for_each_agent() -> None:
    """Agent 1 accepts in tree 0 and rejects in tree 1; agent 0 only accepts."""
    both = tuple(
        Node(utterances=(said(text, d, PROVER), said(text, d)), reward=(0.0, 0.0))
        for text, d in (("a", YES), ("b", NO))
    )
    tree = flat(Node(reward=(0.0, 0.0), children=both))
    pairs = (pair(1, 2), pair(2, 1, tree=1), pair(1, 2, agent=PROVER))
    for seed in range(10):
        assert filtered(balance("decisions"), pairs, tree, tree, seed=seed) == pairs[:2]


def test_every_agent_keeps_as_many_as_the_one_with_fewest() -> None:
    provers = tuple(pair(chosen, 9, agent=PROVER) for chosen in (1, 2))
    verifiers = tuple(pair(chosen, 9, tree=tree) for tree in (0, 1) for chosen in (1, 2, 3))
    kept = [filtered(balance("agents"), verifiers + provers, seed=seed) for seed in range(60)]
    for each in kept:
        assert Counter(p.agent for p in each) == {PROVER: 2, VERIFIER: 2}
        assert each[2:] == provers
    assert len({each[:2] for each in kept}) > 10


def test_an_agent_without_pairs_takes_none_from_the_others() -> None:
    verifiers = tuple(pair(chosen, 9) for chosen in (1, 2, 3))
    assert filtered(balance("agents"), verifiers) == verifiers
    assert filtered(balance("agents"), ()) == ()


# ------------------------------------------------------------------- chains, as parameters describe


def selected(forest: tuple[Tree, ...], malt: PureTextMaltParameters, seed: int) -> Pairs:
    among = candidates(forest, PROTOCOL, BACKUPS[malt.value_backup])
    return selector_of(malt)(among, key(seed))


def test_the_draw_is_among_the_pairs_that_are_wide_enough() -> None:
    """Values 1, 1/2, 0: with a margin of 3/4 only (1, 0) is left, at any seed."""
    tree = family(*map(said, "abc"), rewards=(1.0, 0.5, 0.0))
    malt = PureTextMaltParameters(pair_selection_method="interval", min_pair_margin=0.75)
    for seed in range(20):
        assert [(p.chosen, p.rejected) for p in selected((tree,), malt, seed)] == [(1, 3)]


def test_pairs_of_equal_texts_are_left_out_before_the_draw() -> None:
    """Texts a b a with values 1, 0, 0: only (1, 2) says anything, at any seed."""
    tree = family(*map(said, "aba"), rewards=(1.0, 0.0, 0.0))
    for deduplicate, drawn in ((False, {2, 3}), (True, {2})):
        malt = PureTextMaltParameters(
            pair_selection_method="best_worst", deduplicate_pairs=deduplicate
        )
        assert {selected((tree,), malt, seed)[0].rejected for seed in range(20)} == drawn


def test_the_filters_are_applied_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts a b a b, a limit of 2: had the repeated pair not gone first, it could take a place.

    Of (1, 2), (2, 3), (3, 4) and (4, 1) the last two repeat the first two.  Prover's one pair then
    leaves the verifier one of its two.
    """
    tree = family(*map(said, "abab"), said("c", agent=PROVER), said("d", agent=PROVER))
    own = (pair(1, 2), pair(2, 3), pair(3, 4), pair(4, 1))
    prover = pair(5, 6, agent=PROVER)
    malt = PureTextMaltParameters(
        pair_selection_method="all", deduplicate_pairs=True, max_pairs_per_datapoint=2
    )
    balanced = replace(malt, balance_pairs="agents")
    monkeypatch.setitem(SELECTORS, "all", lambda malt: lambda among, key, pairs=(): (*own, prover))
    for seed in range(10):
        assert selected((tree,), malt, seed) == (*own[:2], prover)
    kept = {selected((tree,), balanced, seed) for seed in range(20)}
    assert kept == {(own[0], prover), (own[1], prover)}


def retold(node: Node, random: Random) -> Node:
    """The tree with few different texts, decisions, and replies that cannot be used."""
    turn = tuple(
        Utterance(
            said.agent,
            random.choice("abc"),
            decision=random.choice((None, YES, NO, HALF)),
            error=random.choice((None, None, None, "invalid_decision")),
        )
        for said in node.utterances
    )
    return replace(
        node, utterances=turn, children=tuple(retold(child, random) for child in node.children)
    )


FORESTS = st.builds(
    lambda roots, seed: tuple(flat(retold(root, Random(seed + i))) for i, root in enumerate(roots)),
    st.lists(trees(QUARTERS), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
RULES = st.builds(
    PureTextMaltParameters,
    pair_selection_method=st.sampled_from(PAIR_RULES),
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
    among = candidates(forest, PROTOCOL, BACKUPS[malt.value_backup])
    kept = selected(forest, malt, seed)
    assert kept == selected(forest, malt, seed)
    eligible = SELECTORS[malt.pair_selection_method](malt)(among, key(seed))
    assert list(kept) == [p for p in eligible if p in set(kept)]
    for each in kept:
        assert each.chosen_value - each.rejected_value >= malt.min_pair_margin
        assert each.chosen_value > each.rejected_value
        assert among.utterance(each, each.chosen).error is None
    texts = [
        (p.tree, p.agent, among.utterance(p, p.chosen).raw, among.utterance(p, p.rejected).raw)
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
            own = [among.utterance(p, p.chosen).decision for p in kept if p.agent == agent]
            sides = Counter(decision.discrete for decision in own if decision)
            assert sides[ACCEPT] == sides[REJECT]


@given(FORESTS, RULES, st.integers(0, 2**32))
def test_agents_that_all_have_one_rule_of_their_own_select_as_by_the_common_one(
    forest: tuple[Tree, ...], malt: PureTextMaltParameters, seed: int
) -> None:
    own = AgentParameters(
        pair_selection_method=malt.pair_selection_method, min_pair_margin=malt.min_pair_margin
    )
    other = PureTextMaltParameters(
        **{**msgspec.structs.asdict(malt), "pair_selection_method": "all", "min_pair_margin": 0.75}
    )
    among = candidates(forest, PROTOCOL, BACKUPS[malt.value_backup])
    by_agent = selector_of(other, (own, own))(among, key(seed))
    assert by_agent == selected(forest, malt, seed)


@given(FORESTS, st.sampled_from(PAIR_RULES), st.integers(0, 2**32))
def test_filters_that_are_off_leave_the_rule_and_its_draw_alone(
    forest: tuple[Tree, ...], method: str, seed: int
) -> None:
    malt = PureTextMaltParameters(pair_selection_method=method)
    draw = () if method == "all" else (one_per_node(),)
    alone = chain(SELECTORS[method](malt), margin(0.0), *draw)
    assert selected(forest, malt, seed) == filtered(alone, (), *forest, seed=seed)


@given(FORESTS, st.integers(0, 2**32))
def test_a_draw_of_one_of_the_best_and_one_of_the_worst_is_as_wide_as_any(
    forest: tuple[Tree, ...], seed: int
) -> None:
    def width(p: Pair) -> float:
        return p.chosen_value - p.rejected_value

    widest: dict[tuple[int, int, int], float] = {}
    for p in filtered(every(), (), *forest):
        place = (p.tree, p.parent, p.agent)
        widest[place] = max(width(p), widest.get(place, 0.0))
    drawn = filtered(chain(best_worst(), one_per_node()), (), *forest, seed=seed)
    assert {(p.tree, p.parent, p.agent): width(p) for p in drawn} == widest


def test_best_against_worst_and_all_pairs_of_a_tree_that_was_worked_out_by_hand() -> None:
    """Golden values at the root of broken_off: reject -1, ask 1/2, ask too 1."""
    tree = flat(golden("broken_off.json").root)

    def at_root(*selectors: Selector) -> list[tuple[int, int]]:
        kept = filtered(chain(*selectors), (), tree)
        return [(p.chosen, p.rejected) for p in kept if p.parent == 0]

    assert at_root(best_worst()) == [(3, 1)]
    assert at_root(best_worst(), margin(2.5)) == []
    assert at_root(every()) == [(2, 1), (3, 1), (3, 2)]
    assert at_root(every(), margin(0.75)) == [(2, 1), (3, 1)]
    assert at_root(every(), margin(2.0)) == [(3, 1)]
    assert at_root(interval(0.4)) == [(2, 1), (3, 1)]


# ------------------------------------------------------------------------------------- whole runs


def test_a_replay_can_change_every_rule_but_not_how_a_tree_grew() -> None:
    fields = set(PureTextMaltParameters.__struct_fields__)
    grown = {
        "frozen_agents_generate_one_response",
        "num_initial_ei_iterations",
        "num_responses_per_timestep",
        "simultaneous_branching",
    }
    selecting = {
        name for name in fields if parameters()[f"malt.{name}"].meaning.stage == "selection"
    }
    assert selecting == fields - grown


ONE_ITERATION = BUSY._replace(
    params=replace(
        BUSY.params,
        rl=replace(BUSY.params.rl, num_iterations=1),
        text_rl=replace(BUSY.params.text_rl, test_scheme="none"),
    )
)


@cache
def replayed() -> Replayed:
    return replay(events_of(play(ONE_ITERATION))).unwrap()


@pytest.mark.parametrize(
    "rules",
    [
        {"pair_selection_method": "best_worst"},
        {"pair_selection_method": "positive_negative", "min_pair_margin": 1.0},
        {"deduplicate_pairs": True},
        {"pair_selection_method": "all", "max_pairs_per_datapoint": 1},
        {"pair_selection_method": "all", "balance_pairs": "agents"},
        {"balance_pairs": "decisions", "deduplicate_pairs": True, "value_backup": "leaves"},
    ],
)
def test_a_replay_selects_what_the_run_would_have_in_whatever_order_replies_came(
    rules: dict[str, object],
) -> None:
    """Another run sees the same replies in another order, and selects from them by other rules."""
    params = replace(ONE_ITERATION.params, malt=replace(ONE_ITERATION.params.malt, **rules))
    ((recorded, found),) = reselect(replayed(), params).unwrap()
    (state,) = ends(play(Setup(params, ONE_ITERATION.decision_rate), lifo), "sample")
    assert state.sampled is not None
    assert [flatten(game).utterances_N for game in state.forest] == [
        tree.utterances_N for tree in recorded.batch.trees
    ]
    assert state.sampled.selection == found
    assert found.pairs
    # All texts differ there, so leaving out equal ones changes nothing.
    assert (found == recorded.selection) == (set(rules) == {"deduplicate_pairs"})


def test_a_replay_selects_by_a_backup_that_is_a_function() -> None:
    """As by its name, where it has one."""
    params = ONE_ITERATION.params
    by_leaves = replace(params, malt=replace(params.malt, value_backup="leaves"))
    named = reselect(replayed(), by_leaves).unwrap()
    assert reselect(replayed(), params, backup=mean_leaves).unwrap() == named
    ((_, halved),) = reselect(replayed(), params, backup=discounted(0.5)).unwrap()
    assert halved not in {named[0][1], named[0][0].selection}
    refused = reselect(replayed(), replace(params, trainer="ei"), backup=mean_leaves).failure()
    assert refused.address == "trainer"
