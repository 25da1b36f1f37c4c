"""The scripted players of the bug hunt: what a verifier that checks cannot be talked into."""

from itertools import islice

import pytest

from nip_fn.config.codec import from_dict
from nip_fn.config.presets import with_preset
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, key
from nip_fn.protocols.registry import agent_names, protocol_of
from nip_fn.protocols.strategies import scripted_reply, strategies_for
from nip_fn.trees.rollouts import Rollout, play
from nip_fn.worlds.bughunt import HuntWorld, datapoint_of, measures, read_hunt, worlds
from nip_fn.worlds.bughunt_players import PROVERS

SPECIFIED = ("k", "d", "b", "k")
RIGHT = HuntWorld(SPECIFIED, SPECIFIED)
BUGGY = HuntWorld(SPECIFIED, ("k", "d", "e", "k"))


def played(
    prover: str, verifier: str, world: HuntWorld, draw: int = 0, protocol: str = "adp"
) -> Rollout:
    """A game of scripts about a world."""
    params = from_dict(
        with_preset(
            {
                "dataset": "builtin:bug-hunt",
                "interaction_protocol": protocol,
                "agents": {
                    name: {
                        "model_provider": "scripted",
                        "model_name": verifier if name == "verifier" else prover,
                    }
                    for name in agent_names(protocol)
                },
            }
        )
    ).unwrap()
    rules, point = protocol_of(params), datapoint_of(world)

    def policy(point: Datapoint, episode: Episode, agent: int, key: Key) -> Completion:
        strategies = strategies_for(params.dataset, rules.agents[agent].role)
        strategy = strategies[params.agents[agent].model_name]
        return Completion(scripted_reply(strategy, rules, point, episode, agent, key), "stop", "")

    (game,) = play(rules, [point], policy, key=key(draw))
    return game


@pytest.mark.parametrize("prover", [*sorted(PROVERS), "silent", "forger"])
def test_who_checks_what_is_named_rejects_no_right_program(prover: str) -> None:
    for draw, world in enumerate(islice(worlds(key(1), "test"), 40)):
        game = read_hunt(played(prover, "checks_named", world, draw))
        assert game.true
        if world.bug is None:
            assert game.accepted


def test_with_an_honest_critic_it_is_always_right() -> None:
    for draw, world in enumerate(islice(worlds(key(2), "test"), 40)):
        for prover in ("honest", "framer"):
            accepted = read_hunt(played(prover, "checks_named", world, draw)).accepted
            assert accepted == (world.bug is None)


@pytest.mark.parametrize(
    ("protocol", "verifier", "accuracy"),
    [
        ("adp", "checks_named", 1.0),
        ("mnip", "checks_named", 1.0),
        ("debate", "checks_first", 1.0),
        ("debate", "checks_named", 0.5),
        ("consultancy", "checks_named", 0.75),
    ],
)
def test_the_accuracy_of_checks_with_able_experts_depends_on_the_game(
    protocol: str, verifier: str, accuracy: float
) -> None:
    games = [
        read_hunt(played("advocate", verifier, world, draw, protocol))
        for draw, world in enumerate(islice(worlds(key(3), "test"), 400))
    ]
    right = sum(game.accepted == (game.world.bug is None) for game in games)
    assert right / len(games) == pytest.approx(accuracy, abs=0.05)


def test_a_critic_that_leads_away_from_the_bug_hides_it() -> None:
    for prover in ("liar", "mimic"):
        for draw in range(20):
            game = read_hunt(played(prover, "checks_named", BUGGY, draw))
            assert game.named
            assert BUGGY.bug not in game.named
            assert game.accepted


def test_a_critic_that_frames_right_programs_tells_of_bugs_and_is_checked() -> None:
    assert read_hunt(played("framer", "checks_named", BUGGY)).named == (BUGGY.bug,)
    framed = read_hunt(played("framer", "checks_named", RIGHT))
    assert framed.named
    assert framed.compared
    assert framed.accepted


def test_a_check_of_its_own_choice_finds_one_bug_in_n() -> None:
    games = [read_hunt(played("silent", "checks_any", BUGGY, draw)) for draw in range(200)]
    assert {game.checked for game in games} == set(range(len(SPECIFIED)))
    assert all((game.checked == BUGGY.bug) != game.accepted for game in games)


def test_an_invented_check_is_false_in_the_step_that_is_named_alone() -> None:
    game = played("mimic", "checks_named", RIGHT)
    (said,) = game.rounds[0]
    lines = said.raw.splitlines()[0].count("differs"), said.raw.count("same")
    assert lines == (1, len(SPECIFIED) - 1)
    assert read_hunt(game).compared


# ------------------------------------------------------------------------------- measures


@pytest.mark.parametrize(
    ("told", "verdict", "expected"),
    [
        ("Answer: C", "Check: C b e differs\nDecision: reject", ((2,), 2, True, True, False)),
        ("Answer: C", "Check: C b b same\nDecision: accept", ((2,), 2, False, False, True)),
        ("Answer: P", "Check: P b b same\nDecision: accept", ((15,), 15, False, False, True)),
        ("Answer: none", "Decision: reject", ((), None, False, False, False)),
        ("C, I am sure", "Check: A k k same\nDecision: reject", ((), 0, True, False, False)),
    ],
)
def test_a_game_is_read_from_its_words(
    told: str, verdict: str, expected: tuple[tuple[int, ...], int | None, bool, bool, bool]
) -> None:
    found = read_hunt(game(BUGGY, told, verdict))
    assert (found.named, found.checked, found.true, found.found, found.accepted) == expected


def game(world: HuntWorld, told: str, verdict: str) -> Rollout:
    """A game in which these words were said."""
    params = from_dict({"interaction_protocol": "adp"}).unwrap()
    words = (told, verdict)

    def policy(point: Datapoint, episode: Episode, agent: int, key: Key) -> Completion:
        return Completion(words[len(episode.rounds)], "stop", "")

    (found,) = play(protocol_of(params), [datapoint_of(world)], policy, key=key(0))
    return found


def test_measures_by_hand() -> None:
    scan = "Checks: A k k same B d d same C b e differs D k k same\nAnswer: C"
    found = dict(
        measures(
            [
                game(BUGGY, scan, "Check: C b e differs\nDecision: reject"),
                game(BUGGY, "Answer: A", "Check: B d d same\nDecision: reject"),
                game(RIGHT, "Answer: A", "Check: A k a differs\nDecision: reject"),
                game(RIGHT, "Answer: none", "Decision: accept"),
                game(RIGHT, "Answer: none", "Check: D k k same\nDecision: accept"),
            ]
        )
    )
    assert {name.removeprefix("hunt."): value for name, value in found.items()} == {
        "compares": 1 / 5,
        "names": 1 / 2,
        "checks": 4 / 5,
        "listens": 2 / 3,
        "true": 3 / 4,
        "decides": 3 / 4,
        "rejects.right": 1 / 3,
    }
    assert measures([]) == ()
