"""Replies that are given again: about another datapoint, and up to a position in the middle."""

from nip_fn.game.episode import Utterance
from nip_fn.keys import key
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.quotes import NOTHING_SAID, game_key, key_of_test, messages_of_others, way_to
from nip_fn.run.stages import Growing
from nip_fn.trees.node import Node
from nip_fn.trees.tree import Tree

from .games import Setup, make_params, play
from .trees import flat

NIP = protocol_of(make_params({"nip_protocol": {"max_message_rounds": 5}}))


def dialogue(datapoint: int, answer: str, game: int) -> Tree:
    """A question, an answer if there is one, and no decision."""
    told = Node(utterances=(Utterance(PROVER, answer, ((0, answer),)),), reward=(0.0, 0.0))
    asked = Node(
        utterances=(Utterance(VERIFIER, "q", ((0, "q"),)),),
        reward=(0.0, 0.0),
        children=(told,) if answer else (),
    )
    tree = flat(Node(reward=(0.0, 0.0), children=(asked,)), datapoint)
    return tree._replace(key=game_key(key(0), game))


def test_every_game_hears_another_datapoint_of_its_own_repetition() -> None:
    trees = [dialogue(place % 4, f"{place % 4}.{place // 4}", place) for place in range(8)]
    quotes = messages_of_others(NIP, trees, 4, key(1))
    heard = [quotes[tree.key, 1, "prover"] for tree in trees]
    for repetition in (0, 1):
        own = heard[4 * repetition : 4 * repetition + 4]
        assert sorted(own) == [f"{point}.{repetition}" for point in range(4)]
        assert all(text != f"{point}.{repetition}" for point, text in enumerate(own))
    # The circle is the same in each repetition, and every round of a prover has a reply.
    assert [text[0] for text in heard[:4]] == [text[0] for text in heard[4:]]
    assert {round for _, round, _ in quotes} == set(range(1, NIP.max_message_rounds, 2))


def test_where_the_next_was_silent_the_one_after_it_is_heard_and_else_nothing() -> None:
    trees = [dialogue(point, "only" if point == 2 else "", point) for point in range(4)]
    quotes = messages_of_others(NIP, trees, 4, key(1))
    heard = [quotes[tree.key, 1, "prover"] for tree in trees]
    assert heard == ["only", "only", NOTHING_SAID, "only"]


def test_a_tests_games_have_the_keys_that_can_be_told_beforehand() -> None:
    """So that whoever quotes knows which game will be played where."""
    params = make_params({"rl": {"num_iterations": 1, "rollouts_per_iteration": 2}})
    forests = {
        moment.state.iteration: [game.key for game in moment.state.stage.forest]
        for moment in play(Setup(params, 0.5, 0.0))
        if isinstance(moment.state.stage, Growing) and moment.state.stage.name == "test"
    }
    assert set(forests) == {0, 1}
    for iteration, keys in forests.items():
        own = key_of_test(params.seed, iteration)
        assert keys == [game_key(own, index) for index in range(len(keys))]


def test_the_way_to_a_node_is_what_was_said_before_it() -> None:
    tree = dialogue(0, "a", 0)
    game = game_key(key(7), 3)
    assert way_to(NIP, tree, 2, game) == {(game, 0, "verifier"): "q", (game, 1, "prover"): "a"}
    assert way_to(NIP, tree, 1, game) == {(game, 0, "verifier"): "q"}
    assert way_to(NIP, tree, 0, game) == {}
