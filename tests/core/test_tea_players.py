"""The scripted players of the lady's tea: completeness 1, and Fisher's soundness error exactly."""

from itertools import islice

import pytest

from nip_fn.config.codec import from_dict
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.strategies import scripted_reply, strategies_for
from nip_fn.trees.rollouts import Rollout, play
from nip_fn.worlds.tea import (
    MILK,
    NUM_CUPS,
    TEA,
    TeaWorld,
    blind_guess,
    datapoint_of,
    draw_cups,
    pourings,
    worlds,
)
from nip_fn.worlds.tea_players import PROVERS


def played(prover: str, verifier: str, world: TeaWorld, draw: int = 0, rounds: int = 3) -> Rollout:
    """A game of two scripts about a world."""
    cast = {"prover": prover, "verifier": verifier}
    params = from_dict(
        {
            "dataset": "builtin:tea",
            "nip_protocol": {"max_message_rounds": rounds},
            "agents": {
                role: {"model_provider": "scripted", "model_name": name}
                for role, name in cast.items()
            },
        }
    ).unwrap()
    rules, point = protocol_of(params), datapoint_of(world)

    def policy(point: Datapoint, episode: Episode, agent: int, key: Key) -> Completion:
        strategies = strategies_for(params.dataset, rules.agents[agent].role)
        strategy = strategies[params.agents[agent].model_name]
        return Completion(scripted_reply(strategy, rules, point, episode, agent, key), "stop", "")

    (game,) = play(rules, [point], policy, key=key(draw))
    return game


def is_accepted(game: Rollout) -> bool:
    return game.decision is not None and game.decision.discrete == 1


@pytest.mark.parametrize("num", range(1, NUM_CUPS + 1))
def test_a_blind_prover_is_believed_with_fishers_p_value(num: int) -> None:
    """Over all twenty pourings of one table: the same question, the same guess."""
    cups = draw_cups(key(1))
    blindly = (TeaWorld(cups, poured, (TEA,) * NUM_CUPS, pourings()[3]) for poured in pourings())
    games = [played("blind", f"asks_{num}", world, draw=5) for world in blindly]
    assert len({game.rounds[:2] for game in games}) == 1
    assert sum(map(is_accepted, games)) == round(blind_guess(num) * len(pourings()))


@pytest.mark.parametrize("num", range(1, NUM_CUPS + 1))
def test_whoever_tastes_or_guesses_has_completeness_1_and_fishers_soundness_error(num: int) -> None:
    cups = draw_cups(key(1))
    for tastes, rate in ((None, 1.0), ((TEA,) * NUM_CUPS, blind_guess(num))):
        tables = (TeaWorld(cups, poured, tastes or poured, pourings()[3]) for poured in pourings())
        games = [played("tastes_or_guesses", f"asks_{num}", world, draw=5) for world in tables]
        assert sum(map(is_accepted, games)) == round(rate * len(pourings()))


@pytest.mark.parametrize("num", range(1, NUM_CUPS + 1))
def test_one_answer_by_a_coin_convinces_nobody_who_asked_about_more_cups(num: int) -> None:
    kinds = set()
    for draw, world in enumerate(islice(worlds(key(9), "test"), 20)):
        game = played("answers_one", f"asks_{num}", world, draw)
        question, answer = (turn[0].raw.split(": ")[1] for turn in game.rounds[:2])
        assert (answer[0], len(answer)) == (question[0], 2)
        kinds.add(answer[1])
        right = world.kinds(answer[0], world.poured) == answer[1]
        assert is_accepted(game) == (num == 1 and right)
    assert kinds == {TEA, MILK}


@pytest.mark.parametrize("num", range(1, NUM_CUPS + 1))
def test_the_honest_are_believed_where_they_can_tell_and_liars_are_not(num: int) -> None:
    for draw, world in enumerate(islice(worlds(key(2), "test"), 40)):
        if world.able:
            assert is_accepted(played("honest", f"asks_{num}", world, draw))
            assert not is_accepted(played("liar", f"asks_{num}", world, draw))


def test_what_tastes_alike_convinces_nobody_who_asks_about_four_cups() -> None:
    for draw, world in enumerate(islice(worlds(key(3), "test"), 40)):
        honest = played("honest", "asks_4", world, draw)
        assert is_accepted(honest) == world.able


def test_public_saucers_make_the_proof_worth_nothing() -> None:
    for draw, world in enumerate(islice(worlds(key(4), "test", public=True), 40)):
        assert is_accepted(played("saucers", "asks_6", world, draw))


@pytest.mark.parametrize("prover", sorted(PROVERS))
@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_every_prover_answers_whatever_it_is_asked(prover: str, rounds: int) -> None:
    for verifier in ("asks_2", "silent", "random", "liar"):
        for draw, world in enumerate(islice(worlds(key(5), "train"), 6)):
            game = played(prover, verifier, world, draw, rounds)
            assert all(said.error is None for turn in game.rounds for said in turn)


def test_a_forged_comparison_is_that_of_the_guess() -> None:
    world = next(worlds(key(6), "test"))
    said = played("mimic", "asks_2", world).rounds[1][0].raw.splitlines()
    told = said[0].removeprefix("Answer: ").split()
    assert said[1:] == [*(f"{pair}{pair}: same." for pair in told), "Decision: accept"]
    assert len(told) == 2


def test_random_words_are_of_the_provers_own_view_and_of_no_other() -> None:
    point: Datapoint = datapoint_of(next(worlds(key(7), "test")))
    table = {"agents": {"prover": {"model_provider": "scripted", "model_name": "random"}}}
    params = from_dict(table).unwrap()
    rules = protocol_of(params)
    strategy = strategies_for(params.dataset, rules.agents[0].role)[params.agents[0].model_name]
    episode = Episode(key(0), point.label, point.stance, ((),))
    keys = (fold_in(key(8), draw) for draw in range(200))
    said = {
        word
        for own in keys
        for word in scripted_reply(strategy, rules, point, episode, 0, own).split()
    }
    views = {role: set(view.split()) for role, view in point.views}
    assert views["prover"] <= said
    assert not (views["verifier"] - views["prover"] - set(point.question.split())) & said
