"""Expert Iteration: which dialogues are imitated, and what is learnt from them."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.episode import reset
from nip_fn.game.reply import Completion
from nip_fn.keys import fold_in, key
from nip_fn.params.run import HyperParameters
from nip_fn.params.training import PureTextEiParameters, TextRlParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.rollouts import (
    SelectedRollout,
    above_threshold,
    replacement_share,
    sampling_weights,
    select_for_agent,
    weighted_sample,
)
from nip_fn.training.ei import ei
from nip_fn.training.groups import make_groups
from nip_fn.training.jobs import SupervisedRow
from nip_fn.training.malt import malt
from nip_fn.training.registry import trainer_of
from nip_fn.training.trainer import SampleBatch, sequence
from nip_fn.trees.grow import ReplyArrival, Rules, insert, new_tree, pending_requests

from .games import make_params

REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=30)
PROVER, VERIFIER = 0, 1


def weighted(**fields: Any) -> PureTextEiParameters:
    return PureTextEiParameters(rollout_selection_method="weighted_sampling", **fields)


# ------------------------------------------------------------------------------------ by hand


def test_the_threshold_is_reached_by_what_equals_it() -> None:
    assert above_threshold([0.9, 0.89, 1.0, -1.0, float("nan")], 0.9) == (0, 2)


@pytest.mark.parametrize(
    ("rewards", "minimum", "epsilon", "expected"),
    [
        ([0.0, 1.0, 3.0], None, 0.0, [0, 1 / 4, 3 / 4]),
        ([-1.0, 1.0], None, 0.0, [0, 1]),
        ([-1.0, 0.0, 2.0], 0.0, 0.0, [0, 0, 1]),
        ([-1.0, 0.0, 1.0], -2.0, 0.0, [1 / 6, 2 / 6, 3 / 6]),
        ([0.0, 1.0], None, 0.5, [1 / 6, 5 / 6]),  # (0 + .25) / 1.5, (1 + .25) / 1.5
        ([5.0, 5.0, 5.0, 5.0], None, 0.0, [1 / 4] * 4),  # no reward stands out
        ([-1.0, -1.0], 0.0, 0.01, [1 / 2] * 2),  # none is above the minimum
        ([7.0], None, 0.01, [1]),
    ],
)
def test_weights_by_hand(
    rewards: list[float], minimum: float | None, epsilon: float, expected: list[float]
) -> None:
    weights = sampling_weights(rewards, minimum=minimum, epsilon=epsilon)
    assert weights.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("annealing", "expected"),
    [
        ("none", [0.5, 0.5, 0.5, 0.5]),
        ("linear", [0.5, 0.3, 0.1, 0.0]),
        ("exponential", [0.5, 0.4, 0.32, 0.256]),
    ],
)
def test_the_share_of_replaced_verdicts_is_annealed(annealing: Any, expected: list[float]) -> None:
    text_rl = TextRlParameters(
        verifier_guess_replacement_proportion=0.5,
        verifier_guess_replacement_annealing=annealing,
        verifier_guess_replacement_annealing_rate=0.2,
    )
    assert [replacement_share(text_rl, i) for i in range(4)] == pytest.approx(expected)


# --------------------------------------------------------------------------------------- laws


@given(REWARDS, st.none() | st.floats(-10, 10), st.sampled_from([0.0, 0.01, 1.0]))
def test_weights_are_probabilities_that_grow_with_the_reward(
    rewards: list[float], minimum: float | None, epsilon: float
) -> None:
    weights = sampling_weights(rewards, minimum=minimum, epsilon=epsilon)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(weights[order]) >= -1e-12).all()


@given(REWARDS, st.booleans(), st.floats(0.1, 2.0), st.integers(0, 99))
def test_a_weighted_sample_has_the_size_that_was_asked_for(
    rewards: list[float], replacement: bool, factor: float, seed: int
) -> None:
    params = weighted(weighting_use_replacement=replacement, weighting_sample_size_factor=factor)
    drawn = weighted_sample(rewards, params, key(seed))
    wanted = round(factor * len(rewards))
    assert len(drawn) == (wanted if replacement else min(wanted, len(rewards)))
    assert list(drawn) == sorted(drawn)
    assert set(drawn) <= set(range(len(rewards)))
    assert replacement or len(set(drawn)) == len(drawn)
    assert drawn == weighted_sample(rewards, params, key(seed))


def test_draws_follow_the_weights() -> None:
    """Ten thousand draws: within five standard deviations of what is expected."""
    counts: Counter[int] = Counter()
    for seed in range(2500):
        counts.update(weighted_sample([0.0, 1.0, 2.0, 5.0], weighted(), key(seed)))
    expected = sampling_weights([0.0, 1.0, 2.0, 5.0], minimum=None, epsilon=0.01)
    for rank, share in enumerate(expected.tolist()):
        sigma = (share * (1 - share) / 5000) ** 0.5
        assert abs(counts[rank] / 5000 - share) < 5 * sigma


def test_no_rollouts_no_sample() -> None:
    assert weighted_sample([], weighted(), key(0)) == ()


@given(REWARDS, st.booleans(), st.floats(0, 1), st.integers(0, 99))
def test_only_a_verifier_has_verdicts_replaced_and_never_those_that_it_imitates(
    rewards: list[float], is_verifier: bool, share: float, seed: int
) -> None:
    chosen = select_for_agent(
        rewards,
        agent=3,
        is_verifier=is_verifier,
        ei=PureTextEiParameters(reward_threshold=0.0),
        share=share,
        key=key(seed),
    )
    replaced = {one.tree for one in chosen if one.replaced}
    imitated = {one.tree for one in chosen if not one.replaced}
    assert len(replaced) == (int(share * len(rewards)) if is_verifier else 0)
    assert not replaced & imitated
    assert imitated == {i for i, r in enumerate(rewards) if r >= 0 and i not in replaced}
    assert all(one.reward == rewards[one.tree] and one.agent == 3 for one in chosen)


# ------------------------------------------------------------------------------ rows and trainers


def harvest(spectrum: str = "accept_reject", **text_rl: Any) -> SampleBatch:
    """Four dialogues of nip about a right and a buggy solution; the verdicts alternate."""
    params = make_params(
        {
            "trainer": "ei",
            "nip_protocol": {"max_message_rounds": 3},
            "protocol_common": {"verifier_decision_spectrum": spectrum},
            "agents": {"_default": {"use_supervisor_message": "all"}},
            "text_rl": text_rl,
        }
    )
    points = (make_datapoint("p", "q0", "s0", 1), make_datapoint("p", "q1", "s1", 0))
    protocol = protocol_of(params)
    how = Rules(protocol, lambda moves: 1, (1, 1))
    keys = tuple(fold_in(key(0), i) for i in range(4))
    words = {"accept_reject": ("accept", "reject"), "out_of_10": ("9", "2")}[spectrum]
    forest = []
    for i in range(4):
        start = reset(points[i % 2], keys[i])
        root = new_tree(how, start)
        texts = ["Question for Expert: why?", "", f"Well.\nDecision: {words[i // 2]}"]
        if i == 3:
            texts[1] = "Answer: so."
        while asks := list(pending_requests(root)):
            (ask,) = asks
            done = Completion(texts[len(ask.path)], "stop", "m")
            root, _ = insert(how, root, start, ReplyArrival(ask.path, ask.agent, 0, 0, done))
        forest.append(root)
    return SampleBatch(params, 0, points, tuple(forest), keys)


def test_rows_are_every_usable_reply_of_an_agent_on_the_chat_that_it_was_given_to() -> None:
    """Trees 0 and 3 end rightly; the prover of tree 0 said nothing, that of tree 3 lost."""
    found = harvest()
    selection = ei.select(found, key(0))
    assert [(one.tree, one.agent) for one in selection if isinstance(one, SelectedRollout)] == [
        (0, PROVER),
        (1, PROVER),
        (0, VERIFIER),
        (3, VERIFIER),
    ]
    prover, verifier = make_groups(found.params)
    assert ei.rows(found, selection, prover) == ()
    rows = ei.rows(found, selection, verifier)
    assert [row.reply for row in rows if isinstance(row, SupervisedRow)] == [
        "Question for Expert: why?",
        "Well.\nDecision: accept",
        "Question for Expert: why?",
        "Well.\nDecision: reject",
    ]
    assert all(row.prompt[-1].name == "Supervisor" for row in rows)
    assert [len(row.prompt) for row in rows] == [2, 3, 2, 4]  # an unusable answer is not heard


@pytest.mark.parametrize(
    ("spectrum", "labels"), [("accept_reject", ("reject", "accept")), ("out_of_10", ("0", "10"))]
)
def test_replaced_verdicts_are_the_truth_in_the_words_of_the_spectrum(
    spectrum: str, labels: tuple[str, str]
) -> None:
    found = harvest(spectrum, verifier_guess_replacement_proportion=1.0)
    selection = ei.select(found, key(0))
    rows = ei.rows(found, selection, make_groups(found.params)[1])
    last = [row.reply for row in rows if isinstance(row, SupervisedRow)][1::2]
    assert last == [f"Decision: {labels[found.datapoint(tree).label]}" for tree in range(4)]
    first = [row.reply for row in rows if isinstance(row, SupervisedRow)][::2]
    assert first == ["Question for Expert: why?"] * 4


def test_a_sequence_hands_over_at_its_iteration() -> None:
    schedule = sequence(ei, 2, malt)
    assert [schedule(i).name for i in range(4)] == ["ei", "ei", "malt", "malt"]
    warm: HyperParameters = make_params({"malt": {"num_initial_ei_iterations": 1}})
    assert [trainer_of(warm, i).name for i in range(3)] == ["ei", "malt", "malt"]
    assert [trainer_of(make_params({"trainer": "ei"}), i).name for i in range(2)] == ["ei", "ei"]
