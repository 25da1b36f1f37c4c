"""Trees of replies made by hand or at random, and their golden files."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn.game.episode import Episode, Round, Utterance
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.trees.grow import Rules, insert, new_tree
from nip_fn.trees.node import GameTree, Node, ReplyArrival, ReplyRequest, pending_requests
from nip_fn.trees.tree import Tree, flatten

from .games import make_params

GOLDEN = Path(__file__).parent / "golden"
AGENTS = {"prover": PROVER, "verifier": VERIFIER}
QUARTERS = st.sampled_from([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])

Name = str
Eligible = set[tuple[Name, int, Name, Name]]  # (parent, agent, chosen, rejected)


def name_of(turn: Round) -> Name:
    """What a node is called: the words that led to it; every node of these trees has its own."""
    return turn[0].raw if turn else "root"


def flat(root: Node, datapoint_index: int = 0) -> Tree:
    """A tree made by hand, as arrays."""
    return flatten(GameTree("nip", datapoint_index, key(0), root))


def family(*said: Utterance, rewards: tuple[float, ...] = ()) -> Tree:
    """A root and a child for each reply, worth its reward to its agent: child i is node i + 1."""
    children = (
        Node(
            utterances=(each,),
            reward=(own, 0.0) if each.agent == PROVER else (0.0, own),
        )
        for each, own in zip(said, rewards or (0.0,) * len(said), strict=True)
    )
    return flat(Node(reward=(0.0, 0.0), children=tuple(children)))


def names_of(tree: Tree) -> list[Name]:
    """`[N]` the names of a tree's nodes."""
    return [name_of(turn) for turn in tree.utterances_N]


Speak = Callable[[ReplyRequest, int], str | Completion]  # (request, index) -> that reply


def grown(rules: Rules, start: Episode, speak: Speak, order: Random | None = None) -> GameTree:
    """A whole tree, its replies given in the order of asking, or in any other."""
    root = new_tree(rules, start)
    while places := [(ask, i) for ask in pending_requests(root) for i in ask.indices]:
        ask, index = order.choice(places) if order else places[0]
        said = speak(ask, index)
        completion = Completion(said, "stop", "m") if isinstance(said, str) else said
        arrival = ReplyArrival(ask.path, ask.agent, index, ask.attempt, completion)
        root, _ = insert(rules, root, start, arrival)
    return GameTree("nip", 0, start.key, root)


def walk(node: Node) -> Iterator[Node]:
    """All nodes below and including `node`."""
    yield node
    for child in node.children:
        yield from walk(child)


def shuffle(node: Node, random: Random) -> Node:
    """The same tree with the siblings of every family in another order."""
    children = [shuffle(child, random) for child in node.children]
    random.shuffle(children)
    return replace(node, children=tuple(children))


def _named(node: Node, movers: tuple[tuple[int, ...], ...], path: Name = "root") -> Node:
    """The tree with words on every node; who speaks cycles through `movers` with the depth."""
    depth = path.count("-")
    children = tuple(
        replace(
            _named(child, movers, f"{path}-{rank}"),
            utterances=tuple(
                Utterance(agent, f"{path}-{rank}") for agent in movers[depth % len(movers)]
            ),
        )
        for rank, child in enumerate(node.children)
    )
    return replace(node, children=children)


def trees(rewards: st.SearchStrategy[float]) -> st.SearchStrategy[Node]:
    """Trees of any shape: unequal depths, rewards everywhere, one or two agents at a time."""
    both = st.tuples(rewards, rewards)
    leaves = st.builds(lambda reward: Node(reward=reward, status="decided"), both)
    bare = st.recursive(
        leaves,
        lambda below: st.builds(
            lambda reward, children: Node(reward=reward, children=tuple(children)),
            both,
            st.lists(below, min_size=1, max_size=4),
        ),
        max_leaves=20,
    )
    movers = st.lists(st.sampled_from([(0,), (1,), (0, 1)]), min_size=1, max_size=3).map(tuple)
    return st.builds(_named, bare, movers)


class Golden(NamedTuple):
    """A tree whose values and pairs were worked out by hand."""

    params: HyperParameters
    root: Node
    values: Mapping[str, Mapping[Name, tuple[float, float]]]  # backup -> node -> [A]
    pairs: Mapping[str, Mapping[str, Eligible]]  # backup -> selection method -> eligible


def golden(file: str) -> Golden:
    """One of the golden files."""
    content = json.loads((GOLDEN / file).read_text("utf-8"))
    return Golden(
        params=make_params(content["parameters"]),
        root=_node(content["tree"]),
        values={
            backup: {name: (values[0], values[1]) for name, values in of_nodes.items()}
            for backup, of_nodes in content["values"].items()
        },
        pairs={
            backup: {
                method: {(parent, AGENTS[agent], c, r) for parent, agent, c, r in eligible}
                for method, eligible in of_methods.items()
            }
            for backup, of_methods in content["pairs"].items()
        },
    )


def golden_files() -> list[str]:
    """Their names."""
    return sorted(path.name for path in GOLDEN.glob("*.json"))


def _node(table: Mapping[str, Any]) -> Node:
    agent = table.get("by")
    return Node(
        utterances=(Utterance(AGENTS[agent], table["name"]),) if agent else (),
        reward=tuple(float(value) for value in table["reward"]),
        children=tuple(_node(child) for child in table.get("children", ())),
    )
