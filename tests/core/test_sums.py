"""The world of sums, and the optimum of each game with written answers that its players reach."""

from collections import Counter
from itertools import combinations, islice, product
from typing import Any

import pytest

from nip_fn.game.checkers import number
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import ACCEPT
from nip_fn.game.episode import Episode
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.strategies import scripted_reply, strategies_for
from nip_fn.trees.grow import Rules, batched, grow_many
from nip_fn.trees.rollouts import Rollout, dialogue_of
from nip_fn.worlds.sums import (
    MOST,
    NUMBERS,
    SEEN,
    SumsWorld,
    datapoint_of,
    explained,
    fits,
    make_dataset,
    measures,
    possible,
    read_totals,
    running_totals,
    world_of,
    worlds,
)

from .games import make_params

DATA = make_dataset(key(0), num_train=200, num_validation=20, num_test=200)


def params_of(protocol: str) -> HyperParameters:
    answers = {"protocol_common": {"answers": "written"}}
    return make_params({"interaction_protocol": protocol, "dataset": "builtin:sums"}, answers)


def played(protocol: str, num: int = 200, **scripts: str) -> list[Rollout]:
    """A game about each of so many problems, by scripts."""
    params = params_of(protocol)
    game = protocol_of(params)

    def policy(point: Datapoint, episode: Episode, agent: int, reply_key: Key) -> Completion:
        spec = game.agents[agent]
        strategy = strategies_for("builtin:sums", spec.role)[scripts.get(spec.name, "honest")]
        text = scripted_reply(strategy, game, point, episode, agent, reply_key)
        return Completion(text, "stop", spec.name)

    points = DATA.test[:num]
    keys = [fold_in(key(1), index) for index in range(num)]
    trees = grow_many(Rules(game, checker=number), points, batched(policy), keys=keys)
    return [dialogue_of(tree, point) for tree, point in zip(trees, points, strict=True)]


def accepted(games: list[Rollout], label: int) -> float:
    verdicts = [game.decision for game in games if game.label == label]
    assert verdicts
    return sum(d is not None and d.discrete == ACCEPT for d in verdicts) / len(verdicts)


# ----------------------------------------------------------------------------------------- the data


def test_splits_share_no_list_and_every_datapoint_is_read_back() -> None:
    lists = [
        {point.problem_id for point in split} for split in (DATA.train, DATA.validation, DATA.test)
    ]
    assert all(not first & second for first, second in combinations(lists, 2))
    for point in DATA.train:
        world = world_of(point)
        assert datapoint_of(world) == point
        assert (point.label, point.reference) == (None, str(sum(world.numbers)))
        assert point.view("verifier").count("?") == NUMBERS - SEEN


def test_all_that_the_prover_cannot_tell_apart_is_seen_otherwise() -> None:
    point = DATA.train[0]
    alike = possible(point)
    assert point in alike
    assert len({other.view("verifier") for other in alike}) == len(alike) == 6
    assert {other.view("prover") for other in alike} == {point.view("prover")}


def test_running_totals_are_read_back_and_nothing_else() -> None:
    for world in islice(worlds(key(2), "train"), 50):
        totals = running_totals(world.numbers)
        assert read_totals(explained(totals)) == totals
        assert fits(dict(enumerate(world.numbers)), totals)
    for text in (
        "7 12 20 26",
        "7 12 20 26\nFinal answer: 27",
        "Final answer: 26",
        "7 12 26\nFinal answer: 26",
    ):
        assert read_totals(text) is None


# -------------------------------------------------------------------------------------- the optimum


def test_no_wrong_answer_is_accepted_by_more_than_half_of_the_verifiers() -> None:
    """Brute force over all messages of running totals: one wrong step is the best deception."""
    numbers = (7, 5, 8, 6)
    views = [{i: numbers[i] for i in seen} for seen in combinations(range(NUMBERS), SEEN)]
    best = 0.0
    for steps in product(range(1, MOST + 1), repeat=NUMBERS):
        share = sum(fits(view, running_totals(steps)) for view in views) / len(views)
        if sum(steps) == sum(numbers):
            continue
        best = max(best, share)
        wrong = sum(step != number for step, number in zip(steps, numbers, strict=True))
        assert (share == best == 0.5) if wrong == 1 else share <= 0.5
    assert best == 1 - SEEN / NUMBERS
    assert all(fits(view, running_totals(numbers)) for view in views)


def test_pvg_is_played_at_its_optimum_by_scripts() -> None:
    games = played("pvg", helpful="helps", sneaky="errs_once", verifier="checks_steps")
    writers = Counter((game.rounds[0][0].agent, game.label) for game in games)
    assert writers.keys() == {(0, 1), (1, 0)}
    assert min(writers.values()) > 70
    assert accepted(games, 1) == 1.0
    assert 0.38 < accepted(games, 0) < 0.62
    returns = [sum(game.returns[a] for game in games) for a in (0, 1)]
    assert returns == [
        writers[0, 1],
        sum(g.decision.discrete for g in games if g.label == 0 and g.decision),
    ]
    assert dict(measures(games))["sums.checks"] == 1.0


def test_a_helpful_prover_that_explains_nothing_convinces_nobody() -> None:
    games = played("pvg", helpful="answers_barely", sneaky="errs_once", verifier="checks_steps")
    assert accepted(games, 1) == 0.0
    assert dict(measures(games))["sums.explains.right"] == 0.0


def test_an_oracle_that_is_asked_twice_shows_every_wrong_answer() -> None:
    for prover, label in (("helps", 1), ("errs_once", 0)):
        games = played("oracle", 60, prover=prover, verifier="asks_and_checks")
        assert accepted(games, label) == label
        assert {len(game.rounds) for game in games} == {6}
        assert all(game.returns[2] == 0.0 for game in games)


GAMES: list[tuple[str, dict[str, str]]] = [
    ("solo_judge", {}),
    ("proposer_critic", {"critic": "liar"}),
    ("open_consultancy", {}),
    ("open_debate", {"prover0": "liar"}),
    ("nip", {}),
    ("adp", {}),
    ("debate", {"prover0": "liar"}),
]


@pytest.mark.parametrize(("protocol", "scripts"), GAMES)
@pytest.mark.parametrize(("writer", "label"), [("helps", 1), ("errs_once", 0)])
def test_in_every_game_with_a_written_answer_honest_players_come_to_the_truth(
    protocol: str, scripts: dict[str, str], writer: str, label: int
) -> None:
    name = {"proposer_critic": "proposer"}.get(
        protocol, "prover1" if "debate" in protocol else "prover"
    )
    games = played(protocol, 40, **{**scripts, name: writer, "verifier": "honest"})
    assert {game.label for game in games} == {label}
    assert accepted(games, label) == label
    seen = played(protocol, 40, **{**scripts, name: writer, "verifier": "checks_steps"})
    assert accepted(seen, label) == 1.0 if label else 0.2 < accepted(seen, label) < 0.8


def test_two_judges_that_disagree_decide_nothing() -> None:
    given: Any = make_params({"interaction_protocol": "symmetric_debate"})
    game = protocol_of(given)
    for verdicts, discrete in (
        (("accept", "accept"), 1),
        (("accept", "reject"), 3),
        (("reject", "reject"), 0),
    ):

        def policy(
            point: Datapoint,
            episode: Episode,
            agent: int,
            reply_key: Key,
            verdicts: tuple[str, ...] = verdicts,
        ) -> Completion:
            return Completion(
                "So." if agent < 2 else f"Decision: {verdicts[agent - 2]}", "stop", "m"
            )

        point = datapoint_of(SumsWorld((1, 2, 3, 4), (0, 1)))
        (tree,) = grow_many(Rules(game), [point], batched(policy), keys=[key(0)])
        decision = dialogue_of(tree, point).decision
        assert decision is not None
        assert decision.discrete == discrete
