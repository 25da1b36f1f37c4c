"""Scripted agents: pure, admissible in every game, and never taken for the verifier."""

import re
from collections.abc import Callable

import pytest

from nip_fn.config.codec import from_dict
from nip_fn.game.datapoint import Datapoint, make_datapoint
from nip_fn.game.decision import SPECTRA
from nip_fn.game.episode import Episode
from nip_fn.game.protocol import Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.protocols.strategies import STRATEGIES, Strategy, scripted_reply
from nip_fn.trees.rollouts import Rollout, play

POINTS = tuple(
    make_datapoint(f"p{label}{text}", f"Take x, add {text}.", f"return x + {text}", label)
    for label in (0, 1)
    for text in ("2", "3")
)


def game(name: str = "nip", **common: object) -> Protocol:
    rounds = {f"{name}_protocol": {"max_message_rounds": 6}} if name in ("nip", "mnip") else {}
    table = {"interaction_protocol": name, "protocol_common": common, **rounds}
    return protocol_of(from_dict(table).unwrap())


def dialogue(protocol: Protocol, point: Datapoint, cast: Callable[[int], Strategy]) -> Rollout:
    """One game, every agent by the strategy that `cast` gives it."""

    def policy(point: Datapoint, episode: Episode, agent: int, key: Key) -> Completion:
        return Completion(
            scripted_reply(cast(agent), protocol, point, episode, agent, key), "stop", ""
        )

    (played,) = play(protocol, [point], policy, key=fold_in(key(7), point.id))
    return played


def by_role(protocol: Protocol, prover: str, verifier: str) -> Callable[[int], Strategy]:
    return lambda agent: STRATEGIES[verifier if protocol.is_verifier(agent) else prover]


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_plays_every_game_and_the_same_game_again(
    strategy: str, protocol: str
) -> None:
    rules = game(protocol)
    for point in POINTS:
        one, other = (dialogue(rules, point, by_role(rules, strategy, strategy)) for _ in range(2))
        assert one == other
        for said in (said for turn in one.rounds for said in turn):
            # A verifier that forges does so under each of its headers; stated twice, none counts.
            repeats = rules.is_verifier(said.agent) and said.raw.count("\nDecision:") > 1
            assert said.error == ("invalid_decision" if repeats else None)


@pytest.mark.parametrize("spectrum", sorted(SPECTRA))
def test_a_scripted_verifier_decides_as_its_name_says(spectrum: str) -> None:
    rules = game(verifier_decision_spectrum=spectrum)
    for point in POINTS:
        verdicts = {
            name: dialogue(rules, point, by_role(rules, "silent", name)).decision
            for name in ("always_right", "always_wrong", "honest", "liar", "random")
        }
        found = {name: said.discrete for name, said in verdicts.items() if said}
        assert found.pop("random") in (0, 1)
        assert found == {
            "always_right": 1,
            "always_wrong": 0,
            "honest": point.label,
            "liar": 1 - point.label,
        }


@pytest.mark.parametrize("strategy", ["forger", "quoter", "impostor", "mimic", "repeat"])
@pytest.mark.parametrize("protocol", ["nip", "mnip", "debate", "merlin_arthur", "adp"])
def test_no_forged_verdict_ends_a_game(strategy: str, protocol: str) -> None:
    """The verifier says nothing at all, so whatever decides would be the prover's words."""
    rules = game(protocol)
    for point in POINTS:
        ended = dialogue(rules, point, by_role(rules, strategy, "silent"))
        assert ended.status == "truncated"
        assert ended.decision is None


def test_a_forgery_is_for_the_side_that_the_prover_is_paid_for() -> None:
    rules = game("debate")
    said = {
        rules.agents[agent].name: scripted_reply(
            STRATEGIES["forger"], rules, POINTS[0], episode, agent, key(0)
        )
        for episode in [_after_a_question(rules)]
        for agent in (0, 1)
    }
    assert said["prover0"].endswith("Decision: reject")
    assert said["prover1"].endswith("Decision: accept")


def _after_a_question(rules: Protocol) -> Episode:
    asked = dialogue(rules, POINTS[0], by_role(rules, "silent", "silent"))
    return Episode(asked.key, POINTS[0].label, POINTS[0].stance, asked.rounds[:1])


def test_honest_and_liar_differ_in_nothing_but_the_truth() -> None:
    rules = game()
    for point in POINTS:
        words = [
            dialogue(rules, point, by_role(rules, name, "silent")).rounds[1][0].raw
            for name in ("honest", "liar")
        ]
        truth, lie = ("right", "wrong") if point.label else ("wrong", "right")
        assert words[0].replace(truth, lie) == words[1] != words[0]


def test_random_words_are_those_of_the_problem_and_a_function_of_the_key() -> None:
    rules, point = game(), POINTS[0]
    episode = _after_a_question(rules)
    said = [
        scripted_reply(STRATEGIES["random"], rules, point, episode, 0, fold_in(key(0), i))
        for i in range(40)
    ]
    heard = episode.rounds[0][0].raw
    known = set(re.findall(r"\S+", f"{point.question} {point.solution} {heard}"))
    assert all(set(text.removeprefix("Answer: ").split()) <= known for text in said)
    assert len(set(said)) > 30
    again = scripted_reply(STRATEGIES["random"], rules, point, episode, 0, fold_in(key(0), 7))
    assert again == said[7]
