"""The probability of verdicts: read from tokens by hand, and its laws in trees and runs."""

from collections.abc import Iterator, Mapping
from itertools import product
from math import exp, fsum, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import nip_fn as nip
from nip_fn.config.codec import merge
from nip_fn.game.decision import SPECTRA
from nip_fn.game.episode import Utterance, expected_rewards
from nip_fn.game.verdict_probability import may_state, verdict_probabilities
from nip_fn.run.events import Event, Replied
from nip_fn.trees import by_probability
from nip_fn.trees.node import ReplyRequest
from nip_fn.trees.tree import Tree, flatten

from .trees import grown

REJECT_ACCEPT = ("reject", "accept")
LIKERT = tuple(decision.text for decision in SPECTRA["likert_scale_4"])
OUT_OF_10 = tuple(decision.text for decision in SPECTRA["out_of_10"])


def params_of(table: Mapping[str, object]) -> nip.HyperParameters:
    return nip.from_dict(table).unwrap()


ADP = nip.protocol_of(params_of({"interaction_protocol": "adp"}))
POINT = nip.make_datapoint("p", "A question?", "a solution", 1)

Weights = Mapping[str, float]


def read(tokens: list[str], weights: Mapping[int, Weights], decisions: tuple[str, ...]) -> object:
    """The probabilities, rounded; at tokens without weights only the token itself is likely."""

    def weights_at(index: int) -> Iterator[tuple[str, float]]:
        yield from weights.get(index, {tokens[index]: 1.0}).items()

    found = verdict_probabilities(tokens, weights_at, decisions)
    return tuple(round(probability, 6) for probability in found)


# ------------------------------------------------------------------------------------ from tokens


def test_the_probability_is_the_softmax_of_the_verdicts_logits() -> None:
    """By hand: logits 2, 1 and -1 of accept in two spellings and of reject, 9 of another word."""
    logits = {" accept": 2.0, " Accept": 1.0, " reject": -1.0, " maybe": 9.0}
    weights = {token: exp(logit) for token, logit in logits.items()}
    accept = (exp(2) + exp(1)) / (exp(2) + exp(1) + exp(-1))
    tokens = ["Off", " by", " one", ".", "\n", "Decision", ":", " reject", "."]
    expected = (round(1 - accept, 6), round(accept, 6))
    assert read(tokens, {7: weights}, REJECT_ACCEPT) == expected


@pytest.mark.parametrize(
    ("tokens", "index", "weights"),
    [
        (["Decision", ":", " accept"], 2, {" accept": 3.0, " reject": 1.0}),
        (["Decision", ": accept"], 1, {": accept": 3.0, ": reject": 1.0, " accept": 9.0}),
        (["Decision: accept"], 0, {"Decision: accept": 3.0, "Decision: reject": 1.0, "No.": 9.0}),
        (["**", "Decision", ":**", " ac", "cept"], 3, {" ac": 3.0, " re": 1.0}),
        (["Decision", ":", " **", "Accept", "**"], 3, {"Accept": 3.0, "Reject": 1.0}),
        (["Decision", ":", " ", "a"], 3, {"a": 3.0, "r": 1.0, "x": 9.0}),
        (["Decision", ":", " accept."], 2, {" accept.": 3.0, " reject": 1.0, " accepted": 9.0}),
        (["Decision", ":", " accept"], 2, {" accept": 3.0, " reject": 1.0, " ": 0.01, "": 9.0}),
        (["> Decision: reject", "\n", "Decision:", " accept"], 3, {" accept": 3, " reject": 1}),
    ],
)
def test_the_verdict_is_found_however_it_is_cut_into_tokens(
    tokens: list[str], index: int, weights: Weights
) -> None:
    assert read(tokens, {index: weights}, REJECT_ACCEPT) == (0.25, 0.75)


def test_words_that_begin_alike_are_told_apart_by_a_later_token() -> None:
    """Given "strongly", the verdict is one of two; before it, it could be any of four."""
    tokens = ["Decision", ":", " strongly", " agree"]
    first = {" strongly": 5.0, " agree": 3.0, " disagree": 2.0}
    second = {" agree": 1.0, " disagree": 4.0}
    assert read(tokens, {2: first, 3: second}, LIKERT) == (0.8, 0.0, 0.0, 0.2)
    # Nothing is known of what "strongly" would have gone on with.
    assert read(["Decision", ":", " agree"], {2: first}, LIKERT) == ()


def test_a_number_that_may_be_the_beginning_of_another_tells_nothing() -> None:
    tokens = ["Decision", ":", " ", "1", "0"]
    assert read(tokens, {3: {"1": 0.7, "7": 0.3}, 4: {"0": 1.0}}, OUT_OF_10) == ()
    sevens = read(["Decision", ":", " ", "7"], {3: {"7": 3.0, "8": 1.0}}, OUT_OF_10)
    assert sevens == (0.0,) * 7 + (0.75, 0.25, 0.0, 0.0)


@pytest.mark.parametrize(
    "tokens",
    [
        ["Why", "?"],
        ["Decision", ":"],
        ["Decision: accept", "\n", "Decision: accept"],
        ["```", "\n", "Decision: accept", "\n", "```"],
    ],
)
def test_without_one_verdict_there_is_no_probability(tokens: list[str]) -> None:
    weights = {index: {" accept": 1.0, " reject": 1.0} for index in range(len(tokens))}
    assert read(tokens, weights, REJECT_ACCEPT) == ()


def test_tokens_that_may_state_a_verdict() -> None:
    stating = [" accept", "Acc", "ept", "r", " **", ": accept", "Decision: reject", "reject."]
    others = ["", "why", " accepted", "z", "0", "Decision"]
    assert all(may_state(token, REJECT_ACCEPT) for token in stating)
    assert not any(may_state(token, REJECT_ACCEPT) for token in others)


# --------------------------------------------------------------------------------------- in trees


def verdict_of(accepts: bool, probability: float) -> nip.Completion:
    text = "Decision: accept" if accepts else "Decision: reject"
    scored = (1 - probability, probability)
    return nip.Completion(text, "stop", "m", verdict_probabilities=scored)


def tree_of(accepts: tuple[bool, ...], probabilities: tuple[float, ...]) -> Tree:
    """Replies of the prover, two verdicts on each, accepted with the probability of the reply."""

    def speak(ask: ReplyRequest, index: int) -> str | nip.Completion:
        if not ask.path:
            return f"Reply {index}."
        return verdict_of(accepts[2 * ask.path[0] + index], probabilities[ask.path[0]])

    start = nip.game.reset(POINT, nip.key(0))
    return flatten(grown(nip.Rules(ADP, branching=2), start, speak))


shares = st.floats(0.0, 1.0)


@given(shares, shares)
def test_the_expectation_of_sampled_values_is_the_value_by_probability(
    first: float, second: float
) -> None:
    """By enumeration of all draws of four verdicts; a prover earns 1 if the verifier accepts."""
    expected = by_probability()
    weighed, by_draw = [], []
    for accepts in product((False, True), repeat=4):
        tree = tree_of(accepts, (first, second))
        chances = (first, first, second, second)
        weight = prod(p if a else 1 - p for a, p in zip(accepts, chances, strict=True))
        weighed.append(weight * nip.mean_children(tree)[:3])
        by_draw.append(expected(tree)[:3])
    mean = np.sum(weighed, axis=0)
    # The draws of the verdicts no longer show above them: the variance that is left is 0.
    for values in by_draw:
        np.testing.assert_allclose(values, mean, atol=1e-12)
    prover = [(first + second) / 2, first, second]
    np.testing.assert_allclose(by_draw[0][:, 0], prover, atol=1e-12)


def test_a_verdict_keeps_its_own_worth_or_the_verifier_would_learn_nothing() -> None:
    tree = tree_of((True, False, True, True), (0.25, 0.75))
    values, sampled = by_probability()(tree), nip.mean_children(tree)
    assert values[3:].tolist() == sampled[3:].tolist()
    assert values[1].tolist() == [0.25, -0.5]
    assert sampled[1].tolist() == [0.5, 0.0]


def test_backups_of_all_kinds_take_the_expectation() -> None:
    tree = tree_of((True, False, True, True), (0.25, 0.75))
    discounted = by_probability(nip.discounted(0.5))(tree)
    assert discounted[:3, 0].tolist() == [0.125, 0.125, 0.375]
    assert np.array_equal(nip.discounted(0.5, by_probability())(tree), discounted)
    doubled = nip.trees.map_rewards(lambda reward_NA: 2 * reward_NA, by_probability())(tree)
    assert np.array_equal(doubled, 2 * by_probability()(tree))
    leaves = by_probability(nip.trees.mean_leaves)(tree)
    assert leaves[:3, 0].tolist() == [0.5, 0.25, 0.75]


def test_without_probabilities_nothing_changes() -> None:
    start = nip.game.reset(POINT, nip.key(0))
    rules = nip.Rules(ADP, branching=2)
    tree = flatten(grown(rules, start, lambda ask, i: "Why?" if not ask.path else "Decision: 1"))
    assert tree.expected_NA is tree.reward_NA
    assert np.array_equal(by_probability()(tree), nip.mean_children(tree))


@pytest.mark.parametrize("spectrum", sorted(SPECTRA))
def test_expected_rewards_are_the_mean_over_the_spectrum(spectrum: str) -> None:
    common = {"verifier_decision_spectrum": spectrum, "prover_reward": 2.0}
    protocol = nip.protocol_of(
        params_of({"interaction_protocol": "solo_verifier", "protocol_common": common})
    )
    decisions = SPECTRA[protocol.spectrum]
    weights = [rank + 1 for rank in range(len(decisions))]
    probabilities = tuple(weight / sum(weights) for weight in weights)
    start = nip.game.reset(POINT, nip.key(0))

    def reward(text: str) -> float:
        said = Utterance(0, "x", decision=next(d for d in decisions if d.text == text))
        return nip.game.play_round(protocol, start, (said,))[1][0]

    said = Utterance(0, "x", decision=decisions[0], verdict_probabilities=probabilities)
    mean = fsum(p * reward(d.text) for p, d in zip(probabilities, decisions, strict=True))
    assert expected_rewards(protocol, start, (said,)) == pytest.approx((mean,))
    assert nip.game.play_round(protocol, start, (said,))[1] == (reward(decisions[0].text),)


def test_a_forced_verdict_has_no_probability() -> None:
    params = params_of(
        {"interaction_protocol": "solo_verifier", "protocol_common": {"force_guess": "one"}}
    )
    rules = nip.Rules(nip.protocol_of(params))
    tree = nip.grow(rules, POINT, lambda *_: verdict_of(False, 0.25), key=nip.key(0))
    assert tree.expected_NA is tree.reward_NA


# ---------------------------------------------------------------------------------------- in runs


def certain(event: Event) -> Event:
    """The event with the probability 1 for each verdict that was drawn."""
    if not isinstance(event, Replied) or not event.completion.verdict_probabilities:
        return event
    first, *others = (
        replace(completion, verdict_probabilities=(float(rejects), float(not rejects)))
        for _, completion in event.completions
        for rejects in ["reject" in (completion.text or "")]
    )
    indices = (index for index, _ in event.others)
    return replace(event, completion=first, others=tuple(zip(indices, others, strict=True)))


def test_a_replay_selects_as_a_run_by_probability_would_have() -> None:
    """Verdicts and their rewards are as they were drawn; only what is above them is worth more."""
    table = {
        "interaction_protocol": "adp",
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 4},
        "malt": {"num_responses_per_timestep": 3},
    }
    points = tuple(nip.make_datapoint(f"p{i}", "?", f"{i}", i % 2) for i in range(4))
    data = nip.game.Dataset("d", points, (), points)

    def sampler(asked: nip.run.Request) -> tuple[nip.Completion, ...]:
        if not asked.decisions:
            return tuple(nip.Completion(key.hex()[:4], "stop", "m") for key in asked.keys)
        chance = nip.keys.uniform(nip.keys.fold_in(nip.key(0), asked.chat[-1].content))
        return tuple(
            verdict_of(nip.keys.uniform(nip.keys.fold_in(key, "coin")) < chance, chance)
            for key in asked.keys
        )

    def run_by(verdict: str) -> nip.run.Replayed:
        params = nip.from_dict(merge(table, {"malt": {"verdict": verdict}})).unwrap()
        events = nip.simulate(nip.run.started(params, data), nip.run.pure_world(data, sampler))
        recorded[verdict] = [event for event, _ in events]
        replayed = nip.replay(recorded[verdict]).unwrap()
        assert replayed.state.faults == ()
        return replayed

    recorded: dict[str, list[Event]] = {}
    sampled, by_chance = run_by("sampled"), run_by("probability")
    ((_, reselected),) = nip.run.reselect(sampled, by_chance.state.params).unwrap()
    assert reselected == by_chance.stages[0].selection
    assert reselected != sampled.stages[0].selection
    first, second = sampled.stages[0].batch.trees, by_chance.stages[0].batch.trees
    assert first == second
    # The digest covers probabilities by what was selected by them.
    for verdict, is_covered in (("sampled", False), ("probability", True)):
        altered = [certain(event) for event in recorded[verdict]]
        assert bool(nip.replay(altered).unwrap().state.faults) == is_covered
