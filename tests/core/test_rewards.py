from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.decision import SPECTRA, Decision
from nip_fn.game.episode import Episode, Utterance, movers, play_round, reset
from nip_fn.game.protocol import Protocol, reward_mid_point
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.rewards import neither_reward
from nip_fn.trees.grow import Node

from .games import Setup, ends, make_params, play, setups

REJECT, ACCEPT = SPECTRA["accept_reject"]

# Every outcome has an amount of its own.
AMOUNTS = {
    "prover_reward": 3.0,
    "verifier_reward": 5.0,
    "verifier_incorrect_penalty": -7.0,
    "verifier_terminated_penalty": -11.0,
    "verifier_no_guess_reward": 0.25,
}


def game(label: int, stance: int, common: dict[str, Any], rounds: int = 3) -> tuple[Any, Episode]:
    params = make_params(
        {
            "protocol_common": {**AMOUNTS, **common},
            "nip_protocol": {"max_message_rounds": rounds},
        }
    )
    episode = Episode(key=key(0), label=label, stance=stance)
    return protocol_of(params), episode


def verifier(decision: Decision | None = None, error: str | None = None) -> tuple[Utterance, ...]:
    return (Utterance(VERIFIER, "v", decision=decision, error=error),)  # type: ignore[arg-type]


def prover(error: str | None = None) -> tuple[Utterance, ...]:
    return (Utterance(PROVER, "p", error=error),)  # type: ignore[arg-type]


# What the verifier decides, the label, the side of the prover -> [prover, verifier]
DECIDED = [
    (ACCEPT, 1, "accept", (3.0, 5.0)),
    (ACCEPT, 0, "accept", (3.0, -7.0)),
    (REJECT, 1, "accept", (0.0, -7.0)),
    (REJECT, 0, "accept", (0.0, 5.0)),
    (ACCEPT, 1, "reject", (0.0, 5.0)),
    (ACCEPT, 0, "reject", (0.0, -7.0)),
    (REJECT, 1, "reject", (3.0, -7.0)),
    (REJECT, 0, "reject", (3.0, 5.0)),
]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("decision", "label", "side", "expected"), DECIDED)
def test_a_decision_pays_by_label_and_side(
    decision: Decision, label: int, side: str, expected: tuple[float, float], shared: bool
) -> None:
    protocol, episode = game(
        label, int(side == "accept"), {"randomize_prover_stance": True, "shared_reward": shared}
    )
    ended, reward = play_round(protocol, episode, verifier(decision))
    assert ended.end == "decided"
    assert reward == ((expected[1], expected[1]) if shared else expected)


@pytest.mark.parametrize(("decision", "label", "side", "expected"), DECIDED[:4])
def test_without_randomised_stances_every_prover_argues_for_accept(
    decision: Decision, label: int, side: str, expected: tuple[float, float]
) -> None:
    for stance in (0, 1):
        protocol, episode = game(label, stance, {"randomize_prover_stance": False})
        assert play_round(protocol, episode, verifier(decision))[1] == expected


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("label", "stance"), list(product((0, 1), (0, 1))))
def test_a_question_pays_for_no_guess_an_answer_nothing_and_the_last_turn_the_penalty(
    label: int, stance: int, shared: bool
) -> None:
    protocol, episode = game(label, stance, {"shared_reward": shared})
    episode, asked = play_round(protocol, episode, verifier())
    episode, answered = play_round(protocol, episode, prover())
    episode, ended = play_round(protocol, episode, verifier())
    assert asked == ((0.25, 0.25) if shared else (0.0, 0.25))
    assert answered == (0.0, 0.0)
    assert ended == ((-11.0, -11.0) if shared else (0.0, -11.0))
    assert episode.end == "rounds"
    assert movers(protocol, episode) == ()


def test_an_unusable_reply_of_the_verifier_is_a_turn_without_a_decision() -> None:
    protocol, episode = game(1, 1, {"prover_invalid_response_penalty": -2.0})
    episode, first = play_round(protocol, episode, verifier(error="invalid_decision"))
    assert (episode.end, first) == ("open", (0.0, 0.25))
    episode, _ = play_round(protocol, episode, prover())
    episode, last = play_round(protocol, episode, verifier(error="no_content"))
    assert (episode.end, last) == ("rounds", (0.0, -11.0))


@pytest.mark.parametrize("shared", [False, True])
def test_an_unusable_reply_of_the_prover_ends_the_game_where_there_is_a_penalty(
    shared: bool,
) -> None:
    for penalty, end, reward in ((-2.0, "invalid", (-2.0, 0.0)), (None, "open", (0.0, 0.0))):
        protocol, episode = game(
            1, 1, {"prover_invalid_response_penalty": penalty, "shared_reward": shared}
        )
        episode, _ = play_round(protocol, episode, verifier())
        episode, received = play_round(protocol, episode, prover(error="content_filter"))
        assert (episode.end, received) == (end, reward)


def test_a_prover_may_open_the_game() -> None:
    protocol, episode = game(0, 1, {"verifier_first": False}, rounds=2)
    episode, opened = play_round(protocol, episode, prover())
    episode, ended = play_round(protocol, episode, verifier(REJECT))
    assert (opened, ended) == ((0.0, 0.0), (0.0, 5.0))


def test_only_those_whose_turn_it_is_may_speak() -> None:
    protocol, episode = game(1, 1, {})
    with pytest.raises(ValueError, match="round 0"):
        play_round(protocol, episode, prover())
    decided, _ = play_round(protocol, episode, verifier(ACCEPT))
    with pytest.raises(ValueError, match="over after 1 rounds"):
        play_round(protocol, decided, prover())


@pytest.mark.parametrize(
    ("given", "f", "label", "expected"),
    [  # piecewise linear through (-1, -7), (0, neither), (1, 5)
        (None, 0.0, 1, -1.0),  # half-way between 5 and -7
        (None, 0.5, 1, 2.0),
        (None, 0.5, 0, -4.0),
        (2.0, 0.0, 0, 2.0),
        (2.0, 0.5, 1, 3.5),
        (2.0, -0.5, 1, -2.5),
        (2.0, -0.5, 0, 3.5),
    ],
)
def test_a_graded_decision_pays_piecewise_linearly(
    given: float | None, f: float, label: int, expected: float
) -> None:
    protocol, episode = game(label, 1, {"verifier_neither_accept_nor_reject_reward": given})
    _, reward = play_round(protocol, episode, verifier(Decision("graded", 3, f)))
    assert reward == pytest.approx((3.0 * (f + 1) / 2, expected))


def test_neither_is_half_way_unless_it_is_given() -> None:
    half_way = make_params({"protocol_common": AMOUNTS}).protocol_common
    given = make_params(
        {"protocol_common": {**AMOUNTS, "verifier_neither_accept_nor_reject_reward": 0.0}}
    ).protocol_common
    assert neither_reward(half_way) == -1.0
    assert neither_reward(given) == 0.0


# --------------------------------------------------------------------------------------- bounds


def totals(protocol: Protocol, episode: Episode, minimum: int) -> Iterator[tuple[float, ...]]:
    """What the agents get in all, for every way in which the game can go on."""
    moves = movers(protocol, episode)
    if not moves:
        yield (0.0, 0.0)
        return
    deciding = len(episode.turns) >= minimum - 1
    turns = (
        (prover(), prover(error="no_content"))
        if moves[0].agent == PROVER
        else (verifier(), *((verifier(ACCEPT), verifier(REJECT)) if deciding else ()))
    )
    for turn in turns:
        after, reward = play_round(protocol, episode, turn)
        for rest in totals(protocol, after, minimum):
            yield tuple(now + later for now, later in zip(reward, rest, strict=True))


AMOUNT = st.sampled_from([-3.0, -1.0, -0.25, 0.0, 0.25, 1.0, 3.0])


@st.composite
def rewarding(draw: st.DrawFn) -> HyperParameters:
    first = draw(st.booleans())
    return make_params(
        {
            "protocol_common": {
                **{name: draw(AMOUNT) for name in AMOUNTS},
                "verifier_first": first,
                "shared_reward": draw(st.booleans()),
                "randomize_prover_stance": draw(st.booleans()),
                "prover_invalid_response_penalty": draw(st.none() | AMOUNT),
                "verifier_neither_accept_nor_reject_reward": draw(st.none() | AMOUNT),
            },
            "nip_protocol": {"max_message_rounds": draw(st.integers(1 if first else 2, 5))},
        }
    )


@settings(max_examples=200)
@given(rewarding(), st.integers(0, 1), st.integers(0, 1))
def test_no_way_to_play_leaves_the_reward_bounds(
    params: HyperParameters, label: int, stance: int
) -> None:
    protocol = protocol_of(params)
    episode = Episode(key=key(0), label=label, stance=stance)
    for total in totals(protocol, episode, params.nip_protocol.min_message_rounds):
        for agent in (PROVER, VERIFIER):
            least, most = protocol.reward_bounds(agent)
            assert least - 1e-9 <= total[agent] <= most + 1e-9


@settings(max_examples=35)
@given(setups())
def test_total_rewards_of_random_games_are_within_the_bounds(setup: Setup) -> None:
    protocol = protocol_of(setup.params)
    for state in ends(play(setup), "test", "sample"):
        for total in (total for root in state.forest for total in _sums(root, (0.0, 0.0))):
            for agent in (PROVER, VERIFIER):
                least, most = protocol.reward_bounds(agent)
                assert least - 1e-9 <= total[agent] <= most + 1e-9


def _sums(node: Node, before: tuple[float, float]) -> Iterator[tuple[float, float]]:
    total = (before[0] + node.reward[0], before[1] + node.reward[1])
    if not node.children:
        yield total
    for child in node.children:
        yield from _sums(child, total)


@pytest.mark.parametrize(
    ("common", "rounds", "prover_bounds", "verifier_bounds"),
    [
        ({}, 3, (0.0, 3.0), (-10.75, 5.25)),
        ({"prover_reward": -3.0}, 3, (-3.0, 0.0), (-10.75, 5.25)),
        ({"verifier_no_guess_reward": -0.25}, 8, (0.0, 3.0), (-11.75, 5.0)),
        ({"verifier_first": False}, 8, (0.0, 3.0), (-10.25, 5.75)),
        ({"verifier_first": False}, 3, (0.0, 3.0), (-11.0, 5.0)),
        ({"shared_reward": True}, 3, (-10.75, 5.25), (-10.75, 5.25)),
        ({"prover_invalid_response_penalty": -2.0}, 3, (-2.0, 3.0), (-10.75, 5.25)),
        # no decision of this spectrum is neither, one of the next is
        ({"verifier_neither_accept_nor_reject_reward": 9.0}, 3, (0.0, 3.0), (-10.75, 5.25)),
        (
            {
                "verifier_neither_accept_nor_reject_reward": 9.0,
                "verifier_decision_spectrum": "likert_scale_5",
            },
            3,
            (0.0, 3.0),
            (-10.75, 9.25),
        ),
    ],
)
def test_bounds_by_hand(
    common: dict[str, Any],
    rounds: int,
    prover_bounds: tuple[float, float],
    verifier_bounds: tuple[float, float],
) -> None:
    protocol, _ = game(1, 1, common, rounds)
    assert protocol.reward_bounds(PROVER) == prover_bounds
    assert protocol.reward_bounds(VERIFIER) == verifier_bounds
    assert reward_mid_point(protocol, PROVER) == sum(prover_bounds) / 2


def test_the_game_knows_its_datapoint() -> None:
    point = make_datapoint("p", "q", "s", 0)
    episode = reset(point, key(3))
    assert (episode.label, episode.stance, episode.key) == (0, point.stance, key(3))
