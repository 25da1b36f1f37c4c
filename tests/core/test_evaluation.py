"""The two measures of a test, and their intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.decision import strongest
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Status
from nip_fn.metrics.evaluation import Verdicts, accuracy, always_fails, verdicts
from nip_fn.metrics.formulas import wilson_interval
from nip_fn.metrics.inference import Estimate, crossed_share
from nip_fn.protocols.nip import VERIFIER
from nip_fn.trees.node import Node

from .trees import flat


def of(*right: int, games: int = 1) -> Verdicts:
    return Verdicts(tuple(f"p{i}" for i in range(len(right))), right, games)


found = (st.integers(1, 4) | st.just(8)).flatmap(
    lambda games: st.lists(st.integers(0, games), min_size=1, max_size=12).map(
        lambda right: of(*right, games=games)
    )
)


def test_one_game_about_each_gives_the_interval_of_wilson() -> None:
    assert accuracy(of(1, 1, 0, 1)) == Estimate(0.75, *wilson_interval(3, 4))


def test_several_games_about_one_are_one_observation() -> None:
    assert accuracy(of(4, 4, 0, 0, games=4)) == crossed_share([[1, 1, 0, 0]])
    expected = pytest.approx(crossed_share([[1, 2 / 3, 1 / 3, 0]]))
    assert accuracy(of(3, 2, 1, 0, games=3)) == expected


def test_a_datapoint_always_fails_when_no_game_about_it_is_right() -> None:
    assert always_fails(of(0, 8, 1, 0, games=8)) == Estimate(0.5, *wilson_interval(2, 4))
    assert always_fails(of(0, 7, 1, 0, games=7)) is None


@given(found)
def test_values_lie_in_their_intervals_and_these_between_0_and_1(one: Verdicts) -> None:
    for value, low, high in filter(None, (accuracy(one), always_fails(one))):
        assert 0 <= low <= value + 1e-12
        assert value - 1e-12 <= high <= 1 + 1e-12


def test_verdicts_are_counted_by_datapoint() -> None:
    """Two games about each of three solutions; the last one ran out of rounds once."""
    points = [make_datapoint("p", "q", f"s{i}", label) for i, label in enumerate((1, 0, 0))]

    def game(datapoint: int, verdict: int | None) -> Node:
        decision = None if verdict is None else strongest("accept_reject", verdict)
        end: Status = "truncated" if verdict is None else "decided"
        said = Node(
            utterances=(Utterance(VERIFIER, "x", decision=decision),), reward=(0.0, 0.0), status=end
        )
        return Node(reward=(0.0, 0.0), children=(said,))

    games = [(0, 1), (1, 0), (2, None), (0, 1), (1, 1), (2, 1)]
    found = verdicts(points, [flat(game(*each), each[0]) for each in games])
    assert found == Verdicts(tuple(point.id for point in points), (2, 1, 0), 2)
    assert found.accuracies == [1.0, 0.5, 0.0]


def test_an_empty_test_has_no_verdicts() -> None:
    assert verdicts((), ()) == Verdicts((), (), 0)
