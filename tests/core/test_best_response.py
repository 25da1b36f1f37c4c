"""Best responses: what no reply beats, computed, against every reply tried and games played."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.config.codec import from_dict
from nip_fn.config.resolve import resolve
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import ACCEPT
from nip_fn.game.episode import Episode
from nip_fn.game.protocol import Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key, randint
from nip_fn.metrics.best_response import (
    Case,
    InformationSet,
    Success,
    best_replies,
    systematic_sample,
)
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.strategies import WORLDS
from nip_fn.run import exact
from nip_fn.run.exact import ExactGame, Played, best_responses, exact_problem, honest_games
from nip_fn.trees.grow import Rules, grow
from nip_fn.trees.rollouts import leaf_games
from nip_fn.worlds import POSSIBLE, REPLIES, bughunt, tea
from nip_fn.worlds.tea import blind_guess
from nip_fn.worlds.tea_players import asks

SHARES = st.floats(0, 1)


@st.composite
def information_sets(draw: st.DrawFn) -> tuple[list[float], np.ndarray]:
    """The weights of a set, and the success of each reply in each state."""
    states, replies = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    weights = draw(st.lists(st.floats(0.01, 1), min_size=states, max_size=states))
    success = draw(st.lists(SHARES, min_size=states * replies, max_size=states * replies))
    return weights, np.array(success).reshape(replies, states)


def exactly(values: np.ndarray) -> Success:
    """The success of each reply in each state, of one set, with bounds that meet."""
    return lambda cases: [(values[case.reply, case.state],) * 2 for case in cases]


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=12),
    st.integers(1, 8),
)
def test_what_a_sample_stands_for_is_on_average_its_weight(
    weights: list[float], number: int
) -> None:
    offsets = (np.arange(2000) + 0.5) / 2000
    samples = [systematic_sample(weights, number, offset) for offset in offsets]
    mean = [sum(s.get(index, 0.0) for s in samples) / 2000 for index in range(len(weights))]
    assert mean == pytest.approx(weights, abs=sum(weights) / number / 500)
    for sample in samples[::100]:
        assert sum(sample.values()) == pytest.approx(sum(weights))
        heavy = {i for i, w in enumerate(weights) if w > sum(weights) / number * 1.001}
        assert heavy <= set(sample)


@given(st.lists(information_sets(), min_size=1, max_size=4), SHARES)
def test_the_best_reply_is_that_of_brute_force_and_its_bounds_hold(
    drawn: list[tuple[list[float], np.ndarray]], width: float
) -> None:
    calls: list[Case] = []

    def success(cases: Sequence[Case]) -> list[tuple[float, float]]:
        calls.extend(cases)
        values = [drawn[case.heard][1][case.reply, case.state] for case in cases]
        # Level by level closer, and exact at the last.
        gaps = [width * (2 - case.level) / 2 for case in cases]
        return [
            (max(0.0, value - gap), min(1.0, value + gap))
            for value, gap in zip(values, gaps, strict=True)
        ]

    sets = [InformationSet(tuple(weights), len(values)) for weights, values in drawn]
    best = best_replies(sets, success, levels=3)
    for (weights, values), reply in zip(drawn, best, strict=True):
        most = (values @ np.array(weights)).max()
        assert reply.low == pytest.approx(most, abs=1e-9)
        assert reply.high == pytest.approx(most, abs=1e-9)
        assert values[reply.reply] @ np.array(weights) == pytest.approx(most, abs=1e-9)
    assert len(set(calls)) == len(calls)


@given(information_sets(), st.floats(0, 0.5))
def test_a_tolerance_leaves_bounds_that_hold(
    drawn: tuple[list[float], np.ndarray], tolerance: float
) -> None:
    weights, values = drawn
    (best,) = best_replies(
        [InformationSet(tuple(weights), len(values))],
        exactly(values),
        tolerance=tolerance,
    )
    most = (values @ np.array(weights)).max()
    assert best.low - 1e-9 <= most <= best.high + 1e-9
    assert best.high - best.low <= tolerance + 1e-9


@given(information_sets(), st.integers(0, 40))
def test_whoever_stops_early_has_bounds_that_hold(
    drawn: tuple[list[float], np.ndarray], most: int
) -> None:
    weights, values = drawn
    (best,) = best_replies(
        [InformationSet(tuple(weights), len(values))],
        exactly(values),
        most=most,
    )
    success = (values @ np.array(weights)).max()
    assert best.low - 1e-9 <= success <= best.high + 1e-9


def test_a_reply_that_always_succeeds_is_found_without_valuing_the_others_everywhere() -> None:
    calls: list[Case] = []

    def success(cases: Sequence[Case]) -> list[tuple[float, float]]:
        calls.extend(cases)
        return [(1.0, 1.0) if case.reply == 3 else (0.0, 0.0) for case in cases]

    (best,) = best_replies([InformationSet((0.05,) * 20, 100)], success)
    assert (best.reply, round(best.low, 9)) == (3, 1.0)
    assert len(calls) < 20 * 100 / 2


# ---------------------------------------------------------------------------- scripted verifiers


def believes_what_was_given(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """Asks about three cups, and accepts if there are answers and none of them is wrong."""
    if not episode.rounds:
        return asks(3, protocol, datapoint, episode, agent, key)
    kinds = dict(zip(tea.world_of(datapoint).cups, tea.world_of(datapoint).poured, strict=True))
    given = episode.rounds[-1][0].raw.removeprefix("Answer: ").split()
    right = [len(each) == 2 and kinds.get(each[0]) == each[1] for each in given]
    return f"Decision: {'accept' if right and all(right) else 'reject'}"


def tosses_a_coin(
    protocol: Protocol, datapoint: Datapoint, episode: Episode, agent: int, key: Key
) -> str:
    """Asks about two cups; where an answer is wrong, it accepts one time in four."""
    reply = asks(2, protocol, datapoint, episode, agent, key)
    is_forgiving = reply == "Decision: reject" and randint(fold_in(key, "coin"), 4) == 0
    return "Decision: accept" if is_forgiving else reply


OWN = {"given": believes_what_was_given, "coin": tosses_a_coin}


@pytest.fixture(autouse=True)
def own_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    verifiers = {**WORLDS["builtin:tea"]["verifier"], **OWN}
    monkeypatch.setitem(WORLDS, "builtin:tea", {**WORLDS["builtin:tea"], "verifier": verifiers})
    monkeypatch.setattr(exact, "NUM_KEYS", 3)  # so that fewer questions are gone through


def game_of(verifier: str, prover: str = "honest", **table: Any) -> ExactGame:
    """The game of a scripted verifier."""
    scripted = {"model_provider": "scripted"}
    written = {
        "dataset": "builtin:tea",
        "nip_protocol": {"max_message_rounds": 3},
        "agents": {
            "verifier": {**scripted, "model_name": verifier},
            "prover": {**scripted, "model_name": prover},
        },
        **table,
    }
    params: HyperParameters = from_dict(written).unwrap()
    protocol = protocol_of(params)
    assert exact_problem(params, protocol) is None
    indices = {agent.name: index for index, agent in enumerate(protocol.agents)}
    scripts = exact.enumerated_scripts(resolve(params).unwrap())
    return ExactGame(
        params, protocol, indices["verifier"], indices["prover"], None, scripts, tolerance=0.0
    )


def claims(label: int, number: int = 1) -> list[Datapoint]:
    """Datapoints about tea with a label."""
    points = tea.make_dataset(key(0), num_train=8, num_validation=0, num_test=0).train
    return [point for point in points if point.label == label][:number]


@pytest.mark.parametrize(
    ("verifier", "value"),
    [
        ("asks_1", blind_guess(1)),
        ("asks_3", blind_guess(3)),
        ("believes", 1.0),
        # One of the answers is enough, and half of the time a coin is right about it.
        ("given", 1 / 2),
    ],
)
def test_the_soundness_error_is_the_one_that_theory_gives(verifier: str, value: float) -> None:
    game = game_of(verifier)
    for played in best_responses(game, claims(0, 2)):
        assert (played.low, played.high) == pytest.approx((value, value), abs=1e-9)
    for played in honest_games(game, claims(1, 3)):
        assert played.value == pytest.approx(1.0)


def test_six_cups_are_fisher_s_one_in_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "NUM_KEYS", 1)
    (played,) = best_responses(game_of("asks_6"), claims(0))
    assert (played.low, played.high) == pytest.approx((1 / 20, 1 / 20), abs=1e-9)
    assert {answered.reply.sort for answered in played.answered} == {"full"}


def test_the_hole_is_named() -> None:
    (played,) = best_responses(game_of("given"), claims(0))
    assert {answered.reply.sort for answered in played.answered} <= {"partial", "repeated"}


def test_a_critic_cannot_make_a_verifier_that_checks_reject_a_right_program() -> None:
    table: dict[str, Any] = {
        "dataset": "builtin:bug-hunt",
        "interaction_protocol": "adp",
        "protocol_common": {"prover_stance": "reject"},
    }
    points = bughunt.make_dataset(key(0), num_train=4, num_validation=0, num_test=0).train
    right = [point for point in points if point.label == 1]
    sound = game_of("checks_named", **table)
    assert [played.high for played in best_responses(sound, right)] == pytest.approx([0.0, 0.0])
    assert all(
        played.value == 1.0
        for played in honest_games(sound, [point for point in points if not point.label])
    )
    never = game_of("always_wrong", **table)
    assert [played.low for played in best_responses(never, right)] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    "table",
    [
        {"dataset": "builtin:buggy-apps"},
        {"nip_protocol": {"max_message_rounds": 5}},
        {"interaction_protocol": "debate", "agents": {}},
    ],
)
def test_other_games_are_refused(table: dict[str, Any]) -> None:
    usual = {"dataset": "builtin:tea", "nip_protocol": {"max_message_rounds": 3}}
    params: HyperParameters = from_dict({**usual, **table}).unwrap()
    problem = exact_problem(params, protocol_of(params))
    assert problem is not None
    assert problem.remedy


# ------------------------------------------------------------------------------- games by chance


def played_by_chance(
    game: ExactGame, best: Played, prover: str | None, number: int, seed: int
) -> float:
    """The share of games in which a verifier that draws one of its keys accepts a false claim.

    The prover follows a script, or gives the best replies if `prover` is None.
    """
    replies = {answered.heard: answered.reply.text for answered in best.answered}
    states = POSSIBLE[game.params.dataset](best.datapoint)
    keys = [fold_in(key(game.params.seed), "verifier", n) for n in range(exact.NUM_KEYS)]
    scripts = resolve(game.params).unwrap().strategies
    ((_, verifier),) = scripts[game.verifier].items()

    def accepts(state: Datapoint, coin: Key, draw: Key) -> bool:
        def policy(point: Datapoint, episode: Episode, agent: int, reply_key: Key) -> Completion:
            if agent == game.verifier:
                text = verifier(game.protocol, point, episode, agent, coin)
            elif prover is None:
                text = replies[episode.rounds[0][0].raw]
            else:
                text = exact.script(game, prover, point, episode)
            return Completion(text, "stop", "")

        (rollout,) = leaf_games(grow(Rules(game.protocol), state, policy, key=draw), state)
        return rollout.decision is not None and rollout.decision.discrete == ACCEPT

    # Without a prover that draws something itself, the same draws make the same game.
    known: dict[tuple[int, int, int], bool] = {}
    drawn = np.random.default_rng(seed).integers((len(states), len(keys)), size=(number, 2))
    for index, (state, coin) in enumerate(drawn.tolist()):
        place = (state, coin, 0 if prover is None else index)
        if place not in known:
            known[place] = accepts(states[state], keys[coin], fold_in(key(seed), index))
        drawn[index, 0] = known[place]
    return float(drawn[:, 0].mean())


@pytest.mark.parametrize("verifier", ["asks_2", "asks_3", "given", "coin"])
def test_a_million_games_agree_and_no_script_does_better(verifier: str) -> None:
    game = game_of(verifier)
    (best,) = best_responses(game, claims(0))
    number = 1_000_000
    error = 4 * np.sqrt(best.value * (1 - best.value) / number)
    assert played_by_chance(game, best, None, number, 1) == pytest.approx(best.value, abs=error)
    for prover in ("answers_one", "blind", "mimic", "repeat", "random"):
        assert played_by_chance(game, best, prover, 200, 2) <= best.high + 4 * np.sqrt(0.25 / 200)


# ------------------------------------------------------------------------------ sets of replies


def test_the_replies_about_tea_are_all_full_answers_and_parts_of_two() -> None:
    (point,) = claims(0)
    cups = tea.world_of(point).cups[:3]
    replies = REPLIES["builtin:tea"](point, f"Question for Expert: {''.join(cups)}")
    by_sort: dict[str, set[str]] = {}
    for reply in replies:
        by_sort.setdefault(reply.sort, set()).add(reply.text)
    full = {
        "Answer: " + " ".join(map("".join, zip(cups, kinds, strict=True)))
        for kinds in product("TM", repeat=3)
    }
    assert by_sort["full"] == full
    assert len(by_sort["partial"]) == 2 * (2**3 - 2)
    assert len(by_sort["reordered"]) == 2 * 5
    assert by_sort["silent"] == {"Answer: ..."}
    assert len(by_sort["forged"]) == 2
    assert not any(cup in text for text in by_sort["absent"] for cup in tea.world_of(point).cups)
