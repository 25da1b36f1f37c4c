"""Expert Iteration: the dialogues that are imitated, and the rows that they become."""

from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.config.groups import make_groups
from nip_fn.config.trainers import replacement_of, rollout_rule_of, trainer_of
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.decision import SpectrumName
from nip_fn.game.episode import reset
from nip_fn.keys import fold_in, key
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.rollouts import at_least, sampling_weights, weighted, with_true_labels
from nip_fn.training.trainer import SampleBatch, Update
from nip_fn.trees.grow import Rules, Turn
from nip_fn.trees.node import ReplyRequest
from nip_fn.trees.tree import flatten

from .games import make_params
from .trees import grown

RETURNS = st.lists(st.integers(-1000, 1000).map(lambda n: n / 100), min_size=1, max_size=30)
PROVER, VERIFIER = 0, 1


# ------------------------------------------------------------------------------------ by hand


def test_the_threshold_is_reached_by_what_equals_it() -> None:
    assert at_least(0.9)([0.9, 0.89, 1.0, -1.0, float("nan")], key(0)) == (0, 2)


@pytest.mark.parametrize(
    ("returns", "minimum", "epsilon", "expected"),
    [
        ([0.0, 1.0, 3.0], None, 0.0, [0, 1 / 4, 3 / 4]),
        ([-1.0, 1.0], None, 0.0, [0, 1]),
        ([-1.0, 0.0, 2.0], 0.0, 0.0, [0, 0, 1]),
        ([-1.0, 0.0, 1.0], -2.0, 0.0, [1 / 6, 2 / 6, 3 / 6]),
        ([0.0, 1.0], None, 0.5, [1 / 6, 5 / 6]),  # (0 + .25) / 1.5, (1 + .25) / 1.5
        ([5.0, 5.0, 5.0, 5.0], None, 0.0, [1 / 4] * 4),  # no return stands out
        ([-1.0, -1.0], 0.0, 0.01, [1 / 2] * 2),  # none is above the minimum
        ([7.0], None, 0.01, [1]),
    ],
)
def test_weights_by_hand(
    returns: list[float], minimum: float | None, epsilon: float, expected: list[float]
) -> None:
    weights = sampling_weights(returns, minimum=minimum, epsilon=epsilon)
    assert list(weights) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("annealing", "expected"),
    [
        ("none", [0.5, 0.5, 0.5, 0.5]),
        ("linear", [0.5, 0.3, 0.1, 0.0]),
        ("exponential", [0.5, 0.4, 0.32, 0.256]),
    ],
)
def test_the_share_of_replaced_verdicts_is_annealed(annealing: str, expected: list[float]) -> None:
    text_rl = {
        "verifier_guess_replacement_proportion": 0.5,
        "verifier_guess_replacement_annealing": annealing,
        "verifier_guess_replacement_annealing_rate": 0.2,
    }
    schedule = replacement_of(make_params({"text_rl": text_rl}))
    assert [schedule(i) for i in range(4)] == pytest.approx(expected)


def test_parameters_describe_a_rule() -> None:
    returns = [-1.0, 0.0, 0.5, 2.0, 3.0]
    own = {"rollout_selection_method": "weighted_sampling", "weighting_sample_size_factor": 0.6}
    some = {**own, "weighting_minimum": 0.5, "weighting_use_replacement": False}
    for table, rule in (
        ({"reward_threshold": 0.5}, at_least(0.5)),
        (own, weighted(0.6, epsilon=0.01)),
        (some, weighted(0.6, minimum=0.5, epsilon=0.01, replace=False)),
        ({**some, "weighting_epsilon": 0.0}, weighted(0.6, minimum=0.5, replace=False)),
    ):
        described = rollout_rule_of(make_params({"ei": table}))
        for seed in range(20):
            assert described(returns, key(seed)) == rule(returns, key(seed))


# --------------------------------------------------------------------------------------- laws


@given(RETURNS, st.none() | st.floats(-10, 10), st.sampled_from([0.0, 0.01, 1.0]))
def test_weights_are_probabilities_that_grow_with_the_return(
    returns: list[float], minimum: float | None, epsilon: float
) -> None:
    weights = sampling_weights(returns, minimum=minimum, epsilon=epsilon)
    assert sum(weights) == pytest.approx(1)
    assert all(weight >= 0 for weight in weights)
    ordered = sorted(zip(returns, weights, strict=True))
    assert all(low <= high + 1e-12 for (_, low), (_, high) in pairwise(ordered))


@given(
    RETURNS,
    st.booleans(),
    st.floats(0.1, 2.0),
    st.sampled_from([0.0, 0.01]),
    st.integers(0, 99),
)
def test_a_weighted_sample_has_the_size_that_was_asked_for(
    returns: list[float], replace: bool, factor: float, epsilon: float, seed: int
) -> None:
    """Or, without replacement, that of all rollouts whose weight is positive."""
    rule = weighted(factor, epsilon=epsilon, replace=replace)
    drawn, wanted = rule(returns, key(seed)), round(factor * len(returns))
    weights = sampling_weights(returns, minimum=None, epsilon=epsilon)
    assert len(drawn) == (wanted if replace else min(wanted, sum(w > 0 for w in weights)))
    assert list(drawn) == sorted(drawn)
    assert all(weights[index] > 0 for index in drawn)
    assert replace or len(set(drawn)) == len(drawn)
    assert drawn == rule(returns, key(seed))


def test_draws_follow_the_weights() -> None:
    """Five thousand draws: within five standard deviations of what is expected."""
    returns, rule = [0.0, 1.0, 2.0, 5.0], weighted(0.5, epsilon=0.01)
    counts = Counter(rank for seed in range(2500) for rank in rule(returns, key(seed)))
    for rank, share in enumerate(sampling_weights(returns, minimum=None, epsilon=0.01)):
        sigma = (share * (1 - share) / 5000) ** 0.5
        assert abs(counts[rank] / 5000 - share) < 5 * sigma


def test_no_rollouts_no_sample() -> None:
    assert weighted(0.5)([], key(0)) == at_least(0.5)([], key(0)) == ()
    assert with_true_labels([], weighted(0.5), 1.0, key(0)) == ((), ())


@given(RETURNS, st.floats(0, 1), st.integers(0, 99))
def test_a_share_of_verdicts_is_replaced_and_never_those_that_are_imitated(
    returns: list[float], share: float, seed: int
) -> None:
    picked, replaced = with_true_labels(returns, at_least(0.0), share, key(seed))
    assert len(replaced) == len(set(replaced)) == int(Fraction(str(share)) * len(returns))
    assert list(picked) == [i for i, r in enumerate(returns) if r >= 0 and i not in replaced]
    assert set(replaced) <= set(range(len(returns)))


def test_every_verdict_is_as_likely_to_be_replaced() -> None:
    """Two of four, 600 draws: six subsets, 100 of each expected."""
    counts = Counter(with_true_labels([1.0] * 4, at_least(0), 0.5, key(s))[1] for s in range(600))
    assert len(counts) == 6
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 26  # 5 degrees of freedom: beyond 1 in 10_000


# ------------------------------------------------------------------------------ rows and trainers


def imitation(
    spectrum: SpectrumName = "accept_reject", **text_rl: Any
) -> tuple[HyperParameters, SampleBatch]:
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
    rules = Rules(protocol)
    words = {"accept_reject": ("accept", "reject"), "out_of_10": ("9", "2")}[spectrum]
    trees = []
    for i in range(4):
        texts = (
            "Question for Expert: why?",
            "Answer: so." if i == 3 else "",
            f"Well.\nDecision: {words[i // 2]}",
        )

        def speak(ask: ReplyRequest, index: int, texts: tuple[str, ...] = texts) -> str:
            return texts[len(ask.path)]

        game = grown(rules, reset(points[i % 2], fold_in(key(0), i)), speak)
        trees.append(flatten(game)._replace(datapoint_index=i % 2))
    chat = partial(build_chat, params, protocol)
    return params, SampleBatch(protocol, chat, make_groups(params), points, tuple(trees))


def updated(params: HyperParameters, batch: SampleBatch) -> Update[Any]:
    trainer = trainer_of(params)
    return trainer.update(batch, trainer.init(batch.groups), key(0))


def replies(update: Update[Any], group: str) -> list[str]:
    return [row.replies[0] for row in update.rows[group] if row.is_imitation]


def test_rows_are_every_usable_reply_of_an_agent_on_the_chat_that_it_was_given_to() -> None:
    """Trees 0 and 3 end rightly; the prover said nothing in 0 to 2, and lost in 3."""
    update = updated(*imitation())
    found = [(one.tree, one.agent) for one in update.selection.rollouts]
    assert found == [(0, VERIFIER), (3, VERIFIER)]
    assert all(not one.replaced and one.reward == 1.0 for one in update.selection.rollouts)
    assert update.selection.pairs == ()
    assert update.rows["prover"] == ()
    assert replies(update, "verifier") == [
        "Question for Expert: why?",
        "Well.\nDecision: accept",
        "Question for Expert: why?",
        "Well.\nDecision: reject",
    ]
    prompts = [row.prompt for row in update.rows["verifier"]]
    assert all(prompt[-1].name == "Supervisor" for prompt in prompts)
    assert list(map(len, prompts)) == [2, 3, 2, 4]  # an unusable answer is not heard


@pytest.mark.parametrize(
    ("spectrum", "labels"), [("accept_reject", ("reject", "accept")), ("out_of_10", ("0", "10"))]
)
def test_replaced_verdicts_are_the_truth_in_the_words_of_the_spectrum(
    spectrum: SpectrumName, labels: tuple[str, str]
) -> None:
    """Of the verifier's dialogues alone: the prover imitates as if there was no such thing."""
    params, batch = imitation(spectrum, verifier_guess_replacement_proportion=1.0)
    update, plain = updated(params, batch), updated(*imitation(spectrum))
    last = [f"Decision: {labels[batch.datapoint(tree).label]}" for tree in range(4)]
    assert replies(update, "verifier")[1::2] == last
    assert replies(update, "verifier")[::2] == ["Question for Expert: why?"] * 4
    provers = [[r for r in u.selection.rollouts if r.agent == PROVER] for u in (update, plain)]
    assert provers[0] == provers[1]
    assert all(one.replaced == (one.agent == VERIFIER) for one in update.selection.rollouts)


def test_expert_iteration_comes_first_where_malt_is_asked_to_warm_up() -> None:
    table = {"nip_protocol": {"max_message_rounds": 3}, "malt": {"num_initial_ei_iterations": 1}}
    _, batch = imitation()
    trainer = trainer_of(make_params(table))
    state, turns = trainer.init(batch.groups), (Turn(VERIFIER, 0, key(0)),)
    assert trainer.branching(state, turns) == 1
    first = trainer.update(batch, state, key(0))
    assert first.selection.rollouts
    assert trainer.branching(first.state, turns) == 2
    assert trainer.update(batch, first.state, key(0)).selection == ((), ())
