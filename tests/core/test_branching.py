"""Where several agents move at once: what their replies are combined to, and what each is worth."""

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_fn.config.trainers import selector_of
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.episode import Utterance, reset
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.params.training import PureTextMaltParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.two_provers import PROVER0, PROVER1, VERIFIER
from nip_fn.run.digest import digest
from nip_fn.select.pairs import Pair, candidates, decision_points
from nip_fn.trees.backup import mean_children
from nip_fn.trees.grow import Rules, insert, new_tree
from nip_fn.trees.node import (
    Node,
    ReplyArrival,
    ReplyRequest,
    SimultaneousBranching,
    Slot,
    node_at,
    pending_requests,
)
from nip_fn.trees.tree import NO_REPLY, ROOT, Tree

from .games import Setup, ends, fifo, make_params, play, shuffled
from .trees import flat, grown

GAME = reset(make_datapoint("p", "Is it?", "x", 1), key(0))
HOWS: tuple[SimultaneousBranching, ...] = ("joint", "product")

# Two provers open the game together, then the verifier decides.
DEBATE = make_params(
    {
        "interaction_protocol": "debate",
        "protocol_common": {"verifier_first": False},
        "debate_protocol": {"max_message_rounds": 2},
    }
)


def rules(params: HyperParameters, k: int, how: SimultaneousBranching) -> Rules:
    return Rules(protocol_of(params), k, simultaneous_branching=how)


def words(ask: ReplyRequest, index: int) -> str:
    """Something that decides now and then."""
    rng = Random(repr((ask.path, ask.agent, index)))
    decides = ask.agent == VERIFIER and rng.random() < 0.4
    text = f"{ask.agent} says {index} at {ask.path}"
    if decides:
        return f"Decision: {rng.choice(('accept', 'reject'))}"
    both = f"Question for Expert_1: {text}\nQuestion for Expert_2: {text}"
    return both if ask.agent == VERIFIER else text


def debate(k: int, how: SimultaneousBranching, order: Random | None = None) -> Node:
    """The root of a grown tree of the debate."""
    return grown(rules(DEBATE, k, how), GAME, words, order).root


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("how", HOWS)
def test_a_node_asks_k_replies_of_each_mover_and_opens_k_or_k_to_the_m_children(
    how: SimultaneousBranching, k: int
) -> None:
    with_rules, every = rules(DEBATE, k, how), tuple(range(k))
    root = new_tree(with_rules, GAME)
    assert list(pending_requests(root)) == [
        ReplyRequest((), PROVER0, every, 0),
        ReplyRequest((), PROVER1, every, 0),
    ]
    assert len(root.slots) == 2 * k
    for agent, index in product((PROVER1, PROVER0), reversed(every)):
        assert root.children == ()
        arrival = ReplyArrival((), agent, index, 0, Completion(f"{agent} {index}", "stop", "m"))
        root, asks = insert(with_rules, root, GAME, arrival)
    num_children = k * k if how == "product" else k
    assert asks == tuple(ReplyRequest((rank,), VERIFIER, every, 0) for rank in range(num_children))
    assert list(pending_requests(root)) == list(asks)
    assert len(root.children) == num_children


def test_crossed_replies_stand_in_row_major_order_of_the_movers() -> None:
    root = debate(2, "product")
    said = [tuple(said.raw for said in child.utterances) for child in root.children]
    a0, a1, b0, b1 = (
        words(ReplyRequest((), agent, (), 0), index)
        for agent in (PROVER0, PROVER1)
        for index in (0, 1)
    )
    assert said == [(a0, b0), (a0, b1), (a1, b0), (a1, b1)]
    assert flat(root).reply_NA[:5].tolist() == [
        [NO_REPLY, NO_REPLY, NO_REPLY],
        [0, 0, NO_REPLY],
        [0, 1, NO_REPLY],
        [1, 0, NO_REPLY],
        [1, 1, NO_REPLY],
    ]


def test_joined_replies_are_each_their_own() -> None:
    tree = flat(debate(3, "joint"))
    assert tree.reply_NA[1:4].tolist() == [[i, i, NO_REPLY] for i in range(3)]
    points = decision_points(tree, mean_children(tree), protocol_of(DEBATE), (PROVER0,))
    assert [point.nodes_C for point in points] == [((1,), (2,), (3,))]


def test_a_grown_tree_numbers_the_replies_as_its_slots_do() -> None:
    """Any number of movers: what a node's number says was said is what the slot holds."""
    for how, k in product(HOWS, (1, 2, 3)):
        root = debate(k, how)
        tree = flat(root)
        for index, path in enumerate(tree.path_N[1:], start=1):
            parent = node_at(root, GAME, path[:-1])[0]
            for said in tree.utterances_N[index]:
                own = [slot.said for slot in parent.slots if slot.agent == said.agent]
                assert own[tree.reply_NA[index, said.agent]] is said


ALTERNATING = st.sampled_from(
    [
        make_params({"nip_protocol": {"max_message_rounds": 3}}),
        make_params({"interaction_protocol": "solo_verifier"}),
        make_params(
            {
                "interaction_protocol": "debate",
                "debate_protocol": {"max_message_rounds": 4, "sequential": True},
            }
        ),
    ]
)


@settings(max_examples=20)
@given(ALTERNATING, st.integers(1, 3), st.integers(0, 2**32))
def test_where_one_agent_moves_crossing_is_joining(
    params: HyperParameters, k: int, seed: int
) -> None:
    speak = words if len(params.agents) == 3 else lambda ask, index: f"{ask.path} {index}"
    joint = grown(rules(params, k, "joint"), GAME, speak)
    assert grown(rules(params, k, "product"), GAME, speak, Random(seed)) == joint


def test_where_each_agent_replies_once_crossing_is_joining() -> None:
    assert debate(1, "joint") == debate(1, "product")


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(HOWS))
def test_a_tree_is_the_same_in_whatever_order_replies_come(
    seed: int, how: SimultaneousBranching
) -> None:
    assert debate(2, how, Random(seed)) == debate(2, how)


# ------------------------------------------------------------------------- what a reply is worth


def crossed(rewards: np.ndarray) -> Tree:
    """A root at which two provers spoke at once; `rewards[i, j]` of both for replies i and j."""
    k = len(rewards)
    said = [[Utterance(agent, f"{name}{i}") for i in range(k)] for agent, name in enumerate("ab")]
    root = Node(
        reward=(0.0, 0.0, 0.0),
        slots=tuple(Slot(agent, each) for agent in (0, 1) for each in said[agent]),
        children=tuple(
            Node(
                utterances=(said[PROVER0][i], said[PROVER1][j]),
                reward=(float(rewards[i, j]), float(rewards[i, j]), 0.0),
                status="decided",
            )
            for i, j in product(range(k), repeat=2)
        ),
    )
    return flat(root)


def reply_values(tree: Tree) -> dict[int, tuple[float, ...]]:
    points = decision_points(tree, mean_children(tree), protocol_of(DEBATE), (PROVER0, PROVER1))
    return {point.agent: point.value_C for point in points}


def select(tree: Tree, method: str = "interval", seed: int = 0) -> tuple[Pair, ...]:
    malt = PureTextMaltParameters(pair_selection_method=method, interval_threshold_proportion=0.0)
    among = candidates([tree], protocol_of(DEBATE), agents=(PROVER0, PROVER1))
    return selector_of(malt)(among, key(seed))


def test_a_reply_is_worth_the_mean_over_the_siblings_that_share_it() -> None:
    """Rewards [[0, 1], [1, 1]]: a0 (0 + 1) / 2, a1 (1 + 1) / 2; b0 and b1 the same.

    The pair's nodes are the first siblings that hold its replies: for prover 0 those of (a1, b0)
    and (a0, b0), nodes 3 and 1; for prover 1 those of (a0, b1) and (a0, b0), nodes 2 and 1.
    """
    tree = crossed(np.array([[0, 1], [1, 1]]))
    assert select(tree) == (
        Pair(0, ROOT, PROVER0, chosen=3, rejected=1, chosen_value=1.0, rejected_value=0.5),
        Pair(0, ROOT, PROVER1, chosen=2, rejected=1, chosen_value=1.0, rejected_value=0.5),
    )


def test_one_agents_pair_is_not_labelled_by_anothers_luck() -> None:
    """Rewards [[1, 0], [1, 0]]: only what prover 1 says matters, and prover 0 has no pair.

    Joined, its replies would be (a0, b0) worth 1 and (a1, b1) worth 0.
    """
    tree = crossed(np.array([[1, 0], [1, 0]]))
    assert [(p.agent, p.chosen, p.rejected) for p in select(tree)] == [(PROVER1, 1, 2)]


def test_a_missing_value_makes_the_replies_that_share_it_missing() -> None:
    rewards = np.array([[0, 1, 2], [0, float("nan"), 4], [3, 1, 5]])
    values = reply_values(crossed(rewards))
    np.testing.assert_array_equal(values[PROVER0], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(values[PROVER1], [1.0, np.nan, 11 / 3])


REWARDS = (
    st.integers(2, 4)
    .flatmap(
        lambda k: st.lists(
            st.lists(st.floats(-10, 10), min_size=k, max_size=k), min_size=k, max_size=k
        )
    )
    .map(np.array)
)


@given(REWARDS, st.integers(0, 2**32), st.sampled_from(["interval", "best_worst", "all"]))
def test_a_replys_value_does_not_depend_on_the_order_of_the_others_replies(
    rewards: np.ndarray, seed: int, method: str
) -> None:
    order = list(range(len(rewards)))
    Random(seed).shuffle(order)
    one, other = crossed(rewards), crossed(rewards[:, order])
    values, permuted = reply_values(one), reply_values(other)
    assert values[PROVER0] == permuted[PROVER0]
    assert tuple(values[PROVER1][rank] for rank in order) == permuted[PROVER1]
    mine, again = (
        [
            (tree.reply_NA[p.chosen, 0], tree.reply_NA[p.rejected, 0], p.chosen_value)
            for p in select(tree, method, seed)
            if p.agent == PROVER0
        ]
        for tree in (one, other)
    )
    assert mine == again


@given(REWARDS)
def test_a_pairs_nodes_are_the_first_that_hold_its_replies(rewards: np.ndarray) -> None:
    tree, k = crossed(rewards), len(rewards)
    for pair in select(tree, "all"):
        assert pair.chosen_value > pair.rejected_value
        means = rewards.mean(axis=1 - pair.agent)
        for node, value in ((pair.chosen, pair.chosen_value), (pair.rejected, pair.rejected_value)):
            reply = tree.reply_NA[node, pair.agent]
            assert node == 1 + reply * (k if pair.agent == PROVER0 else 1)
            assert value == pytest.approx(means[reply], abs=1e-9)


# ------------------------------------------------------------------------------------- whole runs

CROSSED = Setup(
    make_params(
        {
            "interaction_protocol": "debate",
            "rl": {"num_iterations": 2, "rollouts_per_iteration": 7},
            "debate_protocol": {"max_message_rounds": 3},
            "malt": {
                "num_responses_per_timestep": 2,
                "simultaneous_branching": "product",
                "pair_selection_method": "all",
            },
        }
    ),
    decision_rate=0.5,
)


def test_a_run_with_crossed_replies_ends_the_same_in_any_order() -> None:
    run, other = (play(CROSSED, order) for order in (fifo, shuffled(3)))
    assert digest(run[-1].state) == digest(other[-1].state)
    assert run[-1].state.stage.name == "done"
    sampled = ends(run, "sample")
    widths = {
        (len(node.utterances), len(game.root.children), len(node.children))
        for state in sampled
        for game in state.forest
        for node in game.root.children
        if node.status == "open"
    }
    assert widths == {(1, 2, 4)}  # the verifier opens with 2, two provers answer in 4 ways
    pairs = [pair for state in sampled if state.sampled for pair in state.sampled.selection.pairs]
    assert {pair.agent for pair in pairs} == {PROVER0, PROVER1, VERIFIER}


def test_crossing_changes_no_request() -> None:
    """The same slots wait, whatever the children will be."""
    for k in (1, 2, 3):
        joint, crossing = (new_tree(rules(DEBATE, k, how), GAME) for how in HOWS)
        assert joint == crossing
        assert list(pending_requests(joint)) == list(pending_requests(crossing))
