from collections import Counter
from collections.abc import Mapping, Sequence
from math import fsum, log, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.datapoint import Datapoint, make_datapoint
from nip_fn.game.decision import SPECTRA, UNDECIDED, SpectrumName
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Protocol, Status
from nip_fn.metrics.forest import forest_stats
from nip_fn.metrics.formulas import (
    MAX_LEVELS,
    Z_95,
    confidence_levels,
    deviation,
    entropy,
    mean,
    standard_error,
    wilson_interval,
)
from nip_fn.metrics.inference import LEVEL, Estimate, balanced_share, student_quantile
from nip_fn.metrics.stage import (
    lineage_metrics,
    pair_metrics,
    rollout_metrics,
    stage_metrics,
)
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.pairs import Pair, decision_points
from nip_fn.select.rollouts import SelectedRollout
from nip_fn.training.groups import Adapter, Group
from nip_fn.trees.backup import mean_children
from nip_fn.trees.node import Node, Slot
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn.trees.tree import Tree

from .games import make_params
from .trees import flat, trees, walk

PROTOCOL = protocol_of(make_params())
DECISIONS = {
    decision.text: decision for decision in (*SPECTRA["likert_scale_5"], *SPECTRA["accept_reject"])
}


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Wilson's interval as published tables have it
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (8, 10, 0.4902, 0.9433),
        (1, 1, 0.2065, 1.0),
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilsons_interval_has_its_known_values(
    successes: int, trials: int, low: float, high: float
) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_bounds_are_where_the_score_test_turns(case: tuple[int, int]) -> None:
    """|p - q| = z √(q(1 - q)/n) at both bounds q, and p lies between them."""
    successes, trials = case
    share = successes / trials
    low, high = wilson_interval(*case)
    assert -1e-12 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1 + 1e-12
    for bound in (max(low, 0.0), min(high, 1.0)):
        error = Z_95 * sqrt(bound * (1 - bound) / trials)
        assert abs(share - bound) == pytest.approx(error, abs=1e-6)


@given(st.integers(1, 10**4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_standard_error_is_that_of_the_mean_of_zeros_and_ones(case: tuple[int, int]) -> None:
    successes, trials = case
    outcomes = [1.0] * successes + [0.0] * (trials - successes)
    assert standard_error(*case) == pytest.approx(deviation(outcomes) / sqrt(trials), abs=1e-12)


def test_mean_and_deviation_by_hand() -> None:
    assert (mean([2.0]), deviation([2.0])) == (2.0, 0.0)
    assert (mean([1.0, 2.0, 3.0, 6.0]), deviation([1.0, 2.0, 3.0, 6.0])) == (3.0, sqrt(14 / 4))


@given(st.floats(-1e6, 1e6), st.integers(1, 10))
def test_equal_values_do_not_deviate(value: float, num: int) -> None:
    assert deviation([value] * num) == 0.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.randoms(use_true_random=False))
def test_the_order_of_values_does_not_matter(values: list[float], random: Random) -> None:
    others = random.sample(values, len(values))
    assert (mean(values), deviation(values)) == (mean(others), deviation(others))


@pytest.mark.parametrize(
    ("counts", "nats"),
    [
        ([], 0.0),
        ([7], 0.0),
        ([5, 5], log(2)),
        ([1, 1, 1, 1], log(4)),
        ([4, 1, 1, 2], 1.75 * log(2)),
        ([1, 2, 3], log(6) - (2 * log(2) + 3 * log(3)) / 6),
    ],
)
def test_entropy_by_hand(counts: list[int], nats: float) -> None:
    assert entropy(counts) == pytest.approx(nats, abs=1e-15)


def test_entropy_has_the_same_digits_on_any_machine() -> None:
    assert entropy([1, 2, 3]).hex() == "0x1.02eb63cff3f80p+0"
    assert entropy(range(1, 102)).hex() == "0x1.1b50b3f2e09ddp+2"


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=101), st.randoms())
def test_entropy_lies_between_0_and_the_logarithm_of_the_number(
    counts: list[int], random: Random
) -> None:
    assert 0 <= entropy(counts) <= log(len(counts)) + 1e-12
    assert entropy(random.sample(counts, len(counts))) == entropy(counts)


@pytest.mark.parametrize(
    ("spectrum", "levels"),
    [
        ("accept_reject", ()),
        ("likert_scale_4", (1 / 2, 1)),
        ("likert_scale_5", (0, 1 / 2, 1)),
        ("likert_scale_6", (1 / 3, 2 / 3, 1)),
        ("likert_scale_7", (0, 1 / 3, 2 / 3, 1)),
        ("out_of_10", (0, 0.2, 0.4, 0.6, 1)),
        ("out_of_100", (0, 0.24, 0.5, 0.74, 1)),
    ],
)
def test_the_confidence_levels_of_a_spectrum(
    spectrum: SpectrumName, levels: tuple[float, ...]
) -> None:
    assert confidence_levels(spectrum) == levels
    assert len(levels) <= MAX_LEVELS
    assert len({f"{level:.2f}" for level in levels}) == len(levels)


def leaf(
    status: Status,
    decision: str | None = None,
    agent: int = VERIFIER,
    reward: tuple[float, float] = (0.0, 0.0),
) -> Node:
    said = Utterance(agent, "x", decision=DECISIONS[decision] if decision else None)
    return Node(utterances=(said,), reward=reward, status=status)


def tree(*children: Node) -> Node:
    return Node(reward=(0.0, 0.0), children=children)


def inner(*children: Node, reward: tuple[float, float] = (0.0, 0.0)) -> Node:
    said = Utterance(
        PROVER,
        "x",
        attempts=3,
        token_limit=True,
        prompt_tokens=7,
        completion_tokens=5,
        cached_tokens=4,
    )
    return Node(utterances=(said,), reward=reward, children=children)


def points(*labels: int) -> list[Datapoint]:
    return [make_datapoint("p", f"q{i}", "s", label) for i, label in enumerate(labels)]


def forest_of(roots: Sequence[Node], num_points: int) -> list[Tree]:
    """Tree i is about datapoint i modulo their number."""
    return [flat(root, i % num_points) for i, root in enumerate(roots)]


def metrics_of(
    points: Sequence[Datapoint],
    roots: Sequence[Node],
    pairs: Sequence[Pair] | None = None,
    protocol: Protocol = PROTOCOL,
) -> dict[str, float]:
    """The metrics by name."""
    metrics = stage_metrics(protocol, points, forest_of(roots, len(points)), pairs)
    assert len(dict(metrics)) == len(metrics)
    return dict(metrics)


def named(metrics: Mapping[str, float], *parts: str) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if any(part in name for part in parts)}


EFFORT = ("nodes", "replies", "tokens", "prompt_tokens", "cached_tokens")


# Two datapoints, a right and a buggy one, twice each.
FOREST = [
    tree(leaf("decided", "accept"), leaf("decided", "reject")),  # right: one of two
    tree(
        leaf("decided", "accept"), inner(leaf("truncated"), leaf("decided", "accept"))
    ),  # buggy: 0
    tree(leaf("decided", "accept")),  # right: one of one
    tree(leaf("aborted", agent=PROVER), leaf("decided", UNDECIDED)),  # buggy: none of two
]


def test_outcomes_of_a_forest_made_by_hand() -> None:
    """The right solution: 1/2 and 1, so 3/4; the buggy one: 0 and 0; together 3/8.

    Accepted: 1/2, then 1/2 + 1/4, 1, and 1/2 of nothing: 9/4 of 4.  The two trees about a datapoint
    are a cluster: Σ (W (p_d - p) / 4)² = 2 (2 · 3/8 / 4)² = 9/128, and 15/64 over that is 10/3.
    """
    low, high = wilson_interval(10 / 8, 10 / 3, student_quantile(LEVEL, 1))
    by_class = Estimate(3 / 4, *wilson_interval(9 / 4, 3)), Estimate(0.0, *wilson_interval(0, 1))
    balanced = balanced_share(*by_class)
    metrics = metrics_of(points(1, 0), FOREST)
    outcomes = {name: metrics[name] for name in metrics if "." not in name and name not in EFFORT}
    assert outcomes == pytest.approx(
        {
            "accuracy": 3 / 8,
            "accuracy_stderr": sqrt(15 / 64 / (10 / 3)),
            "accuracy_low": low,
            "accuracy_high": high,
            "accuracy_0": 0.0,
            "accuracy_1": 3 / 4,
            "balanced_accuracy": 3 / 8,
            "balanced_accuracy_low": balanced.low,
            "balanced_accuracy_high": balanced.high,
            "majority_class_share": 1 / 2,
            "precision": (3 / 2) / (9 / 4),
            "recall": 3 / 4,
            "soundness_error": 3 / 8,
            "acceptance_rate": 9 / 16,
            "no_decision_rate": (1 / 4 + 1 / 2) / 4,
            "neither_share": 1 / 8,
            "truncated_share": 1 / 16,
            "aborted_share": 1 / 8,
            "decision_entropy": -sum(  # accept, reject, neither, none
                share * log(share) for share in (9 / 16, 1 / 8, 1 / 8, 3 / 16)
            ),
            "episode_length": (1 + 3 / 2 + 1 + 1) / 4,
            "games": 8,
        }
    )


def test_a_class_without_games_has_no_accuracy() -> None:
    only_right = metrics_of(points(1), FOREST[:1])
    assert only_right["recall"] == 0.5
    assert not {"accuracy_0", "soundness_error"} & only_right.keys()
    assert only_right["accuracy_1"] == 0.5
    only_buggy = metrics_of(points(0), FOREST[:1])
    assert not {"accuracy_1", "recall"} & only_buggy.keys()
    assert (only_buggy["precision"], only_buggy["soundness_error"]) == (0.0, 0.5)


def test_without_acceptance_there_is_no_precision() -> None:
    metrics = metrics_of(points(1, 0), [tree(leaf("decided", "reject"))] * 2)
    assert "precision" not in metrics
    assert (metrics["accuracy"], metrics["recall"], metrics["acceptance_rate"]) == (0.5, 0.0, 0.0)


def test_without_games_nothing_is_defined_but_counts() -> None:
    metrics = metrics_of([], [], ())
    assert metrics["games"] == 0.0
    assert set(metrics.values()) == {0.0}
    assert not named(metrics, "accuracy", "share", "length", ".reward", "margin")


def test_a_game_that_is_still_open_is_no_decision_and_none_of_the_three_ends() -> None:
    metrics = metrics_of(points(0), [tree(leaf("open"), leaf("decided", "reject"))])
    assert metrics["no_decision_rate"] == 0.5
    assert metrics["truncated_share"] == metrics["aborted_share"] == 0.0


def test_a_game_that_waits_for_its_first_reply_has_no_rewards_yet() -> None:
    metrics = metrics_of(points(0), [Node(reward=(0.0, 0.0), slots=(Slot(VERIFIER),))])
    assert (metrics["games"], metrics["nodes"], metrics["replies"]) == (1, 1, 0)
    assert metrics["prover.reward"] == metrics["verifier.reward"] == 0.0
    assert metrics["no_decision_rate"] == 1.0


def test_the_worst_datapoint_pools_all_its_trees() -> None:
    """The first: 1/3 and 1, so 2/3; the second: 2/3 and 0, so 1/3."""
    right, wrong = leaf("decided", "accept"), leaf("decided", "reject")
    forest = [tree(right, wrong, wrong), tree(right, right, wrong), tree(right), tree(wrong)]
    assert metrics_of(points(1, 1), forest * 4)["worst_datapoint_accuracy"] == pytest.approx(1 / 3)


def test_a_datapoint_drawn_twice_is_one_datapoint() -> None:
    """As at the end of an epoch: one of its two trees fails, but the datapoint does not."""
    right, wrong = leaf("decided", "accept"), leaf("decided", "reject")
    metrics = metrics_of(points(1) * 2, [tree(wrong), tree(right)] * 4)
    assert (metrics["always_fail_share"], metrics["worst_datapoint_accuracy"]) == (0.0, 0.5)


def test_a_datapoint_always_fails_only_if_none_of_its_trees_holds_a_right_decision() -> None:
    wrong, right = tree(leaf("decided", "reject")), tree(leaf("decided", "accept"))
    for forest, share in (
        ([wrong, wrong, wrong, wrong], 1.0),
        ([wrong, wrong, right, wrong], 0.5),
        ([wrong, right, right, wrong], 0.0),
        ([tree(leaf("truncated"))] * 4, 1.0),
    ):
        assert metrics_of(points(1, 1), forest * 4)["always_fail_share"] == share


def test_with_few_games_about_each_no_single_datapoint_is_judged() -> None:
    """With one game about each, the share of those that always fail is one less the accuracy."""
    forest = [tree(leaf("decided", "accept")), tree(leaf("decided", "reject"))]
    for games, measured in ((1, False), (7, False), (8, True)):
        metrics = metrics_of(points(1, 1), forest * games)
        assert ("always_fail_share" in metrics) == measured
        assert ("worst_datapoint_accuracy" in metrics) == measured


def test_the_games_of_one_tree_count_as_one_towards_judging_a_datapoint() -> None:
    grown = tree(*[leaf("decided", "accept")] * 8)
    for num, measured in ((1, False), (8, True)):
        metrics = metrics_of(points(1), [grown] * num)
        assert ("worst_datapoint_accuracy" in metrics) == measured


@pytest.mark.parametrize(
    ("status", "decision", "label", "correct"),
    [
        ("decided", "accept", 1, True),
        ("decided", "accept", 0, False),
        ("decided", "reject", 0, True),
        ("decided", "reject", 1, False),
        ("decided", UNDECIDED, 0, False),
        ("decided", UNDECIDED, 1, False),
        ("truncated", None, 0, False),
        ("truncated", None, 1, False),
        ("aborted", None, 0, False),
    ],
)
def test_only_a_decision_can_be_correct(
    status: Status, decision: str | None, label: int, correct: bool
) -> None:
    assert metrics_of(points(label), [tree(leaf(status, decision))])["accuracy"] == correct


GRADED = protocol_of(
    make_params({"protocol_common": {"verifier_decision_spectrum": "likert_scale_5"}})
)


def test_selective_accuracy_by_hand() -> None:
    """Six games about a right solution, five decided; the surer, the fewer."""
    forest = [
        tree(
            leaf("decided", "strongly agree"),
            leaf("decided", "strongly disagree"),
            leaf("decided", "agree"),
            leaf("decided", "agree"),
            leaf("decided", UNDECIDED),
            leaf("truncated"),
        )
    ]
    metrics = metrics_of(points(1), forest, protocol=GRADED)
    assert named(metrics, "selective") == pytest.approx(
        {
            "selective.0.00.coverage": 5 / 6,
            "selective.0.00.accuracy": 3 / 5,
            "selective.0.50.coverage": 4 / 6,
            "selective.0.50.accuracy": 3 / 4,
            "selective.1.00.coverage": 2 / 6,
            "selective.1.00.accuracy": 1 / 2,
        }
    )


def test_selective_accuracy_of_none_is_left_out_and_so_are_levels_without_degrees() -> None:
    metrics = metrics_of(points(0), [tree(leaf("decided", "disagree"))], protocol=GRADED)
    assert named(metrics, "selective.1.00") == {"selective.1.00.coverage": 0.0}
    assert named(metrics, "selective.0.50") == {
        "selective.0.50.coverage": 1.0,
        "selective.0.50.accuracy": 1.0,
    }
    assert not named(metrics_of(points(1, 0), FOREST), "selective")


def test_rewards_of_games_made_by_hand() -> None:
    """The prover's games: 0.5 + 1 or 0.5 - 1, and 3; the verifier's: -1 + 2, -1 + 2 and 1.

    The mean of 1/2 and 3 is 7/4, the variance half of 1/2 · (1/16 + 81/16) + 25/16: 33/16.
    """
    forest = [
        tree(
            inner(
                leaf("decided", "accept", reward=(1.0, 2.0)),
                leaf("truncated", reward=(-1.0, 2.0)),
                reward=(0.5, -1.0),
            )
        ),
        tree(leaf("decided", "accept", reward=(3.0, 1.0))),
    ]
    assert named(metrics_of(points(1), forest), "reward") == pytest.approx(
        {
            "prover.reward": 7 / 4,
            "prover.reward_std": sqrt(33 / 16),
            "verifier.reward": 1.0,
            "verifier.reward_std": 0.0,
        }
    )


def test_the_rewards_of_a_game_are_summed_exactly() -> None:
    forest = [tree(inner(leaf("truncated", reward=(0.3, 0.0)), reward=(0.1, 0.0)))] * 3
    (first, *_) = forest_stats(points(1), forest_of(forest, 1)).games
    assert first.returns == (fsum([0.0, 0.1, 0.3]), 0.0)
    assert metrics_of(points(1), forest)["prover.reward_std"] == 0.0


def test_effort_of_a_forest_made_by_hand() -> None:
    bad = Node(
        utterances=(Utterance(VERIFIER, "", error="no_content", attempts=2, completion_tokens=1),),
        reward=(0.0, 0.0),
        status="truncated",
    )
    forest = [tree(inner(leaf("decided", "accept"), bad)), tree(bad)]
    metrics = metrics_of(points(1), forest)
    effort = {
        name: value
        for name, value in metrics.items()
        if name in EFFORT or ("." in name and "reward" not in name)
    }
    assert effort == {
        "nodes": 6,
        "replies": 4,
        "prompt_tokens": 7,
        "cached_tokens": 4,
        "tokens": 7,
        "prover.replies": 1,
        "prover.requests": 3,
        "prover.prompt_tokens": 7,
        "prover.cached_tokens": 4,
        "prover.tokens": 5,
        "prover.retries": 2,
        "prover.invalid": 0,
        "prover.token_limit": 1,
        "prover.reply_length": 5 / 3,
        "verifier.replies": 3,
        "verifier.requests": 4,
        "verifier.prompt_tokens": 0,
        "verifier.cached_tokens": 0,
        "verifier.tokens": 2,
        "verifier.retries": 2,
        "verifier.invalid": 2,
        "verifier.token_limit": 0,
        "verifier.reply_length": 2 / 5,
    }


def test_an_agent_that_said_nothing_has_no_reply_length() -> None:
    metrics = metrics_of(points(1), [tree(leaf("decided", "accept"))])
    assert metrics["prover.replies"] == 0
    assert "prover.reply_length" not in metrics


def test_pairs_are_counted_by_agent_with_their_mean_margin() -> None:
    pairs = [
        Pair(0, 0, VERIFIER, 1, 2, 1.0, -1.0),
        Pair(0, 1, VERIFIER, 3, 4, 0.5, 0.0),
    ]
    assert dict(pair_metrics(PROTOCOL, pairs)) == {
        "prover.pairs": 0,
        "verifier.pairs": 2,
        "verifier.margin": 1.25,
    }


def test_a_reply_that_several_siblings_share_counts_once() -> None:
    """Two agents at once, two replies of each, crossed: four children, four replies."""
    first, second = (
        tuple(Utterance(agent, raw, completion_tokens=5) for raw in "ab")
        for agent in (PROVER, VERIFIER)
    )
    children = tuple(
        Node(utterances=(own, other), reward=(0.0, 0.0), status="truncated")
        for own in first
        for other in second
    )
    slots = tuple(Slot(said.agent, said) for said in (*first, *second))
    forest = [Node(reward=(0.0, 0.0), slots=slots, children=children)]
    metrics = metrics_of(points(1), forest, [Pair(0, 0, PROVER, 1, 3, 1.0, 0.0)])
    assert (metrics["games"], metrics["replies"], metrics["tokens"]) == (4, 4, 20)
    assert (metrics["prover.replies"], metrics["verifier.replies"]) == (2, 2)
    assert (metrics["prover.pair_share"], metrics["verifier.pair_share"]) == (1.0, 0.0)
    one = Node(reward=(0.0, 0.0), slots=slots[::2], children=children[:1])
    assert forest_stats(points(1), [flat(one)]).decision_points == {}


def silent(end: Status) -> Node:
    return Node(
        utterances=(Utterance(VERIFIER, " \n", error="no_content"),), reward=(0.0, 0.0), status=end
    )


def test_pairs_by_round_and_as_a_share_of_positions_by_hand() -> None:
    """Breadth first: 0 the root, 1-3 the prover's words, 4-5 and 6-7 and 8-9 the verifier's.

    The prover has one position, the root.  The verifier has two: at node 3 it was silent once.
    """
    yes, no = leaf("decided", "accept"), leaf("decided", "reject")
    forest = [tree(yes), tree(inner(yes, no), inner(no, no), inner(yes, silent("truncated")))]
    pairs = [
        Pair(1, 0, PROVER, 1, 2, 0.5, -0.5),
        Pair(1, 1, VERIFIER, 4, 5, 2.0, 0.0),
    ]
    metrics = metrics_of(points(1), forest, pairs)
    assert named(metrics, "pair", "margin") == {
        "prover.pairs": 1,
        "prover.margin": 1.0,
        "prover.pair_share": 1.0,
        "prover.round_0.pairs": 1,
        "prover.round_0.margin": 1.0,
        "verifier.pairs": 1,
        "verifier.margin": 2.0,
        "verifier.pair_share": 0.5,
        "verifier.round_1.pairs": 1,
        "verifier.round_1.margin": 2.0,
    }


def test_a_position_that_gave_two_pairs_counts_once() -> None:
    forest = [tree(*[leaf("decided", text) for text in ("accept", "accept", "reject")])]
    pairs = [Pair(0, 0, VERIFIER, 1, 3, 1.0, 0.0), Pair(0, 0, VERIFIER, 2, 3, 1.0, 0.0)]
    metrics = metrics_of(points(1), forest, pairs)
    assert (metrics["verifier.pairs"], metrics["verifier.pair_share"]) == (2, 1.0)


def test_positions_without_a_pair_count_and_agents_without_positions_have_no_share() -> None:
    forest = [tree(leaf("decided", "accept"), leaf("decided", "reject"))]
    assert named(metrics_of(points(1), forest, ()), "pair", "margin") == {
        "prover.pairs": 0,
        "verifier.pairs": 0,
        "verifier.pair_share": 0.0,
        "verifier.round_0.pairs": 0,
    }


def test_a_test_stage_says_nothing_of_pairs() -> None:
    assert not named(metrics_of(points(1, 0), FOREST), "pair", "margin")


def lineage(*names: str) -> tuple[Adapter, ...]:
    return tuple(
        Adapter(name=name, iteration=i, parent=None, reference=None, data_hash="")
        for i, name in enumerate(names)
    )


def test_lineage_by_hand() -> None:
    groups = [
        Group("all", (0, 1), "m", True),
        Group("old", (0,), "m", True, lineage("a", "b", "c"), "b"),
        Group("prover", (0,), "m", True, lineage("a", "b"), "b"),
        Group("tested", (1,), "m", True, lineage("a"), None),
    ]
    assert dict(lineage_metrics(groups)) == {
        "all.adapters": 0,
        "all.serving": 0,
        "old.adapters": 3,
        "old.serving": 2,
        "prover.adapters": 2,
        "prover.serving": 2,
        "tested.adapters": 1,
        "tested.serving": 0,
    }
    with pytest.raises(ValueError, match="not in tuple"):
        lineage_metrics([Group("lost", (0,), "m", True, lineage("a"), "b")])


def test_rollouts_to_imitate_are_counted_by_agent() -> None:
    rollouts = [
        SelectedRollout(0, VERIFIER, 1.0),
        SelectedRollout(1, VERIFIER, 1.0, replaced=True),
        SelectedRollout(1, PROVER, 1.0),
    ]
    assert dict(rollout_metrics(PROTOCOL, rollouts)) == {
        "prover.chosen": 1,
        "prover.replaced": 0,
        "verifier.chosen": 2,
        "verifier.replaced": 1,
    }
    assert rollout_metrics(PROTOCOL, ()) == ()


@given(st.lists(trees(st.sampled_from([-1.0, 0.0, 0.1, 0.5])), max_size=3))
def test_the_counts_of_a_forest_are_those_of_its_trees(roots: list[Node]) -> None:
    forest = forest_of(roots, 3)
    seen = forest_stats(points(1, 0, 1), forest)
    nodes = [node for root in roots for node in walk(root)]
    assert seen.num_nodes == len(nodes)
    said = Counter(said.agent for node in nodes for said in node.utterances)
    assert {agent: own.replies for agent, own in seen.efforts.items()} == said
    assert seen.decision_points == Counter(
        (at.agent, int(one.depth_N[at.parent]))
        for one in forest
        for at in decision_points(one, mean_children(one), PROTOCOL, (0, 1))
    )


def paths(node: Node) -> list[list[Node]]:
    if not node.children:
        return [[node]]
    return [[node, *path] for child in node.children for path in paths(child)]


@given(st.lists(trees(st.floats(-1, 1)), min_size=1, max_size=3))
def test_each_path_to_a_leaf_is_a_game(roots: list[Node]) -> None:
    """Tree by tree and from left to right."""
    about, forest = points(1, 0, 1), forest_of(roots, 3)
    expected = [
        Rollout(
            datapoint=about[index],
            key=forest[index].key,
            rounds=tuple(node.utterances for node in path),
            rewards=tuple(node.reward for node in path),
            status=path[-1].status if path else root.status,
        )
        for index, root in enumerate(roots)
        for _, *path in paths(root)
    ]
    games = [game for one in forest for game in leaf_games(one, about[one.datapoint_index])]
    assert games == expected
    ends = forest_stats(about, forest).games
    assert [one.num_rounds for one in ends] == [len(game.rounds) for game in games]
    assert [one.returns for one in ends] == [game.returns for game in games]
    for game in games:
        for agent, total in enumerate(game.returns):
            assert total == fsum(reward[agent] for reward in game.rewards)
