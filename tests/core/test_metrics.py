from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_fn.data import Datapoint, make_datapoint
from nip_fn.episode import Said
from nip_fn.growth import Node
from nip_fn.metrics import (
    Z_95,
    decided,
    effort_metrics,
    leaves,
    nodes,
    outcome_metrics,
    pair_metrics,
    wilson_interval,
)
from nip_fn.pairs import Pair
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.protocol import End
from nip_fn.protocols.registry import protocol_of
from nip_fn.spectra import SPECTRA, UNDECIDED

from .games import Setup, ends, make_params, play, setups

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


def leaf(end: End, decision: str | None = None, agent: int = VERIFIER) -> Node:
    said = Said(agent, "x", decision=DECISIONS[decision] if decision else None)
    return Node(turn=(said,), reward=(0.0, 0.0), end=end)


def tree(*children: Node) -> Node:
    return Node(reward=(0.0, 0.0), children=children)


def inner(*children: Node) -> Node:
    said = Said(PROVER, "x", attempts=3, token_limit=True, prompt_tokens=7, completion_tokens=5)
    return Node(turn=(said,), reward=(0.0, 0.0), children=children)


def points(*labels: int) -> list[Datapoint]:
    return [make_datapoint("p", f"q{i}", "s", label) for i, label in enumerate(labels)]


# Two datapoints, a right and a buggy one, twice each: tree i is about datapoint i modulo 2.
FOREST = [
    tree(leaf("decided", "accept"), leaf("decided", "reject")),  # right: one of two
    tree(leaf("decided", "accept"), inner(leaf("rounds"), leaf("decided", "accept"))),  # buggy: 0
    tree(leaf("decided", "accept")),  # right: one of one
    tree(leaf("invalid", agent=PROVER), leaf("decided", UNDECIDED)),  # buggy: none of two
]


def test_outcomes_of_a_forest_made_by_hand() -> None:
    """Eight games: two decided as the label says, four accepted, one neither, two of two rounds."""
    low, high = wilson_interval(2, 8)
    assert dict(outcome_metrics(points(1, 0), FOREST)) == pytest.approx(
        {
            "accuracy": 2 / 8,
            "accuracy_low": low,
            "accuracy_high": high,
            "accuracy_0": 0.0,
            "accuracy_1": 2 / 3,
            "always_fail_share": 1 / 2,
            "acceptance_rate": 4 / 8,
            "neither_share": 1 / 8,
            "rounds_share": 1 / 8,
            "invalid_share": 1 / 8,
            "episode_length": 10 / 8,
            "games": 8,
        }
    )


def test_a_class_without_games_has_no_accuracy() -> None:
    only_right = dict(outcome_metrics(points(1), FOREST[:1]))
    assert "accuracy_0" not in only_right
    assert only_right["accuracy_1"] == 0.5
    only_buggy = dict(outcome_metrics(points(0), FOREST[:1]))
    assert "accuracy_1" not in only_buggy


def test_a_datapoint_always_fails_only_if_none_of_its_trees_holds_a_right_decision() -> None:
    wrong, right = tree(leaf("decided", "reject")), tree(leaf("decided", "accept"))
    for forest, share in (
        ([wrong, wrong, wrong, wrong], 1.0),
        ([wrong, wrong, right, wrong], 0.5),
        ([wrong, right, right, wrong], 0.0),
        ([tree(leaf("rounds"))] * 4, 1.0),
    ):
        assert dict(outcome_metrics(points(1, 1), forest))["always_fail_share"] == share


@pytest.mark.parametrize(
    ("end", "decision", "label", "correct"),
    [
        ("decided", "accept", 1, True),
        ("decided", "accept", 0, False),
        ("decided", "reject", 0, True),
        ("decided", "reject", 1, False),
        ("decided", UNDECIDED, 0, False),
        ("decided", UNDECIDED, 1, False),
        ("rounds", None, 0, False),
        ("rounds", None, 1, False),
        ("invalid", None, 0, False),
    ],
)
def test_only_a_decision_can_be_correct(
    end: End, decision: str | None, label: int, correct: bool
) -> None:
    assert (decided(leaf(end, decision)) == label) is correct


def test_effort_of_a_forest_made_by_hand() -> None:
    bad = Node(
        turn=(Said(VERIFIER, "", error="no_content", attempts=2, completion_tokens=1),),
        reward=(0.0, 0.0),
        end="rounds",
    )
    forest = [tree(inner(leaf("decided", "accept"), bad)), tree(bad)]
    assert dict(effort_metrics(PROTOCOL, forest)) == {
        "nodes": 6,
        "replies": 4,
        "prompt_tokens": 7,
        "tokens": 7,
        "prover.replies": 1,
        "prover.tokens": 5,
        "prover.retries": 2,
        "prover.invalid": 0,
        "prover.token_limit": 1,
        "verifier.replies": 3,
        "verifier.tokens": 2,
        "verifier.retries": 2,
        "verifier.invalid": 2,
        "verifier.token_limit": 0,
    }


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


@settings(max_examples=20)
@given(setups())
def test_shares_are_shares_and_games_are_leaves(setup: Setup) -> None:
    for state in ends(play(setup), "test", "sample"):
        row = state.rows[-1]
        assert (row.iteration, row.stage) == (state.iteration, state.stage)
        assert len({name for name, _ in row.metrics}) == len(row.metrics)
        metrics = dict(row.metrics)
        assert metrics["games"] == sum(len(leaves(root)) for root in state.forest)
        assert metrics["nodes"] == sum(len(nodes(root)) for root in state.forest)
        assert metrics["accuracy_low"] <= metrics["accuracy"] + 1e-12
        assert metrics["accuracy"] <= metrics["accuracy_high"] + 1e-12
        for name in ("always_fail_share", "acceptance_rate", "rounds_share", "invalid_share"):
            assert 0 <= metrics[name] <= 1
        if state.stage == "sample":
            pairs = [metrics[f"{agent.name}.pairs"] for agent in setup.params.agents]
            assert sum(pairs) == len(state.selection)
