"""Recorded replies to be given again: about another datapoint, or up to a position in the middle.

Games are told apart by their keys, which follow from the seed, the stage and the index of the tree.
A test that repeats another one's seed therefore plays the same games, and only what is quoted in it
differs: a counterfactual of the recorded test.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, key, permutation
from nip_fn.trees.tree import Tree, leaves_of, line_to

# (a game's key, round, agent's name) -> the reply that is given there.
Quotes = Mapping[tuple[Key, int, str], str]

NOTHING_SAID = "..."  # where no recorded game has a message for the place


def game_key(stage: Key, tree: int) -> Key:
    """The key of the game that a stage's tree is about."""
    return fold_in(stage, "tree", tree)


def key_of_test(seed: int, iteration: int = 0) -> Key:
    """The key of the test before an iteration."""
    return fold_in(key(seed), "test", iteration)


def messages_of_others(
    protocol: Protocol, trees: Sequence[Tree], num_datapoints: int, draw: Key
) -> Quotes:
    """For each game of a test, what the provers said in the same round about another datapoint.

    The datapoints stand in a circle in a random order, and each game hears the game of the same
    number about the next one; or if the prover was silent there in that round, the one after it.

    Args:
        protocol: The game.
        trees: The dialogues of a test, each repetition with all datapoints in their order.
        num_datapoints: In the test.
        draw: The key of the order; consumed.
    """
    order = permutation(draw, num_datapoints)
    after = dict(pairwise((*order, order[0])))
    provers = {
        agent: spec.name for agent, spec in enumerate(protocol.agents) if spec.role == "prover"
    }
    messages = {
        (index, round, utterance.agent): utterance.raw
        for index, tree in enumerate(trees)
        for round, node in enumerate(line_to(tree, leaves_of(tree)[0]))
        for utterance in tree.utterances_N[node]
        if utterance.agent in provers and utterance.messages
    }
    quotes = {}
    for index, tree in enumerate(trees):
        own_point = tree.datapoint_index
        first = index - own_point  # the repetition's
        for round in range(protocol.max_message_rounds):
            for move in protocol.schedule(round, tree.key):
                if move.agent in provers:
                    point, text = after[own_point], None
                    while text is None and point != own_point:
                        text = messages.get((first + point, round, move.agent))
                        point = after[point]
                    turn = (tree.key, round, provers[move.agent])
                    quotes[turn] = NOTHING_SAID if text is None else text
    return quotes


def way_to(protocol: Protocol, tree: Tree, node: int, game: Key) -> Quotes:
    """The replies that lead a game with that key to where a recorded tree's node is."""
    return {
        (game, round, protocol.agents[utterance.agent].name): utterance.raw
        for round, above in enumerate(line_to(tree, node))
        for utterance in tree.utterances_N[above]
    }
