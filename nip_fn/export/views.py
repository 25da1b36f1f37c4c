"""The records of a page: what it shows of a run, its trees and its games.

Nothing here is markup but the pictures; `page` renders the records.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from nip_fn.export.curves import (
    Spent,
)
from nip_fn.export.svg import Chart, Series
from nip_fn.game.decision import ACCEPT, REJECT, Decision
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Protocol, Status
from nip_fn.params.agent import max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.run.replay import StageForest
from nip_fn.trees.rollouts import Rollout

VERDICTS = {REJECT: "reject", ACCEPT: "accept"}
CLASSES = {REJECT: "buggy", ACCEPT: "right"}


class Limits(NamedTuple):
    """The most that one page shows.

    whole: nodes of all trees together, up to which all are shown.
    nodes: of the trees that are shown otherwise; one of each iteration is shown in any case.
    packed: nodes of trees beyond these, which the page holds compressed.
    games: of each kind (wrong, undecided, cut) in a test.
    problems: whose games before and after are compared.
    """

    whole: int = 3_000
    nodes: int = 1_000
    packed: int = 50_000
    games: int = 12
    problems: int = 8


ONE_PAGE = Limits()


class Said(NamedTuple):
    """A reply: who gave it, its text, and what is to be known of it beside the text."""

    agent: int
    speaker: str
    text: str
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of its characters."""
        return len(self.text)


class Value(NamedTuple):
    """An agent's expected reward at a node, and its bin (`svg.value_bins`)."""

    letter: str  # of the agent
    written: str
    bin: int


class Mark(NamedTuple):
    """A reply that was chosen, or rejected, in pairs of an agent."""

    chosen: bool
    letter: str  # of the agent
    times: int


class Node(NamedTuple):
    """A node of a tree.

    said: the replies that led to it.
    values: expected rewards, by agent.
    marks: in pairs.
    end: (kind, words) if the game ends here; kinds as of `outcome_of`.
    copies: ends with the same words, rewards and no marks that are shown as this one.
    children: in their order.
    """

    said: tuple[Said, ...]
    values: tuple[Value, ...]
    marks: tuple[Mark, ...]
    end: tuple[str, str] | None
    copies: int
    children: tuple["Node", ...]


class TreeView(NamedTuple):
    """A tree with everything that is known of it."""

    id: str
    about: "About"
    nodes: int
    games: int
    right: str
    pairs: int
    imitated: tuple[str, ...]  # the agents that learn from it as it is
    pictures: tuple[tuple[str, Markup], ...]  # (agent, the tree in the colours of its values)
    root: Node


class About(NamedTuple):
    """The datapoint of a tree or a game."""

    id: str
    label: str
    question: str
    solution: str
    views: tuple[tuple[str, str], ...]


class ForestView(NamedTuple):
    """The trees of an iteration, as many as a page has room for.

    total, nodes: of the iteration.
    trees: those that are shown.
    packs: those that are held compressed, as many in each as are opened at a time.
    """

    iteration: int
    total: int
    nodes: int
    trees: tuple[TreeView, ...]
    packs: tuple[tuple[TreeView, ...], ...] = ()

    @property
    def held(self) -> int:
        """The number of trees in the page."""
        return len(self.trees) + sum(map(len, self.packs))

    @property
    def is_plain(self) -> bool:
        """True if all trees are shown."""
        return len(self.trees) == self.total


class Turn(NamedTuple):
    """An agent's last turn in a game: the chat that its model was shown, and its reply."""

    agent: int
    speaker: str
    model: str
    chat: tuple[tuple[str, str, str], ...]  # (role, speaker, text)
    reply: Said


class GameView(NamedTuple):
    """A game with the chats as its models saw them."""

    id: str
    about: About
    end: tuple[str, str]
    rewards: tuple[Value, ...]
    turns: tuple[Turn, ...]


class Listing(NamedTuple):
    """Games of a test that have something in common."""

    kind: str
    total: int
    games: tuple[GameView, ...]


class TestView(NamedTuple):
    """A test: its games that went wrong, by kind."""

    iteration: int
    games: int
    listings: tuple[Listing, ...]


class Episodes(NamedTuple):
    """The same problem in the first and in the last test."""

    id: str
    about: About
    outcomes: tuple[tuple[int, str], ...]  # (iteration, kind) of every test
    first: tuple[int, tuple[Said, ...], tuple[str, str]]
    last: tuple[int, tuple[Said, ...], tuple[str, str]]


class Changes(NamedTuple):
    """The outcomes of all problems in all tests, and what changed from the first to the last."""

    rows: tuple[tuple[str, Markup, str], ...]  # (test, its outcomes as a bar, the share of right)
    problems: int
    gained: int
    lost: int
    shown: tuple[Episodes, ...]


class AdapterView(NamedTuple):
    """An adapter of a lineage and the numbers of its training."""

    name: str
    iteration: int
    method: str
    parent: str
    reference: str
    data_hash: str
    serving: bool
    numbers: tuple[str, ...]


class GroupView(NamedTuple):
    """A model group and its lineage."""

    name: str
    agents: tuple[str, ...]
    model: str
    trainable: bool
    base_serves: bool
    adapters: tuple[AdapterView, ...]


class RunView(NamedTuple):
    """A run, ready to be shown; its fields are the parts of a page."""

    id: str
    name: str
    lede: str
    tiles: tuple[tuple[str, str, str], ...]  # (name, value, remark)
    facts: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    agents: tuple[tuple[str, str, str, str], ...]  # (letter, name, role, model)
    charts: tuple[Chart, ...]
    decisions: tuple[Chart, ...]  # of the last test, over credences
    accuracy: Series
    changes: Changes | None
    forests: tuple[ForestView, ...]
    tests: tuple[TestView, ...]
    groups: tuple[GroupView, ...]
    spent: tuple[Spent, ...]
    settings: tuple[tuple[str, str, str], ...]  # (address, value, default) where they differ
    data: Mapping[str, Any]


# ------------------------------------------------------------------------------ small records


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """One or two capitals for each name, all different where the names allow it.

    >>> short_names(["prover0", "prover1", "verifier"])
    ('P0', 'P1', 'V')
    """
    firsts = Counter(name[:1] for name in names)
    return tuple(
        (name[:1] if firsts[name[:1]] == 1 else f"{name[:1]}{name[-1:]}").upper() for name in names
    )


def letters_of(protocol: Protocol) -> tuple[str, ...]:
    """The short names of a game's agents."""
    return short_names([agent.name for agent in protocol.agents])


def outcome_of(game: Rollout) -> tuple[str, str]:
    """(kind, words) of a game's end; the kinds are right, wrong, undecided and broken."""
    return end_of(game.status, game.decision, game.datapoint.label)


def end_of(status: Status, decision: Decision | None, label: int) -> tuple[str, str]:
    """(kind, words) of an end with this status and decision about a datapoint with this label."""
    if decision is not None:
        verdict = VERDICTS.get(decision.discrete, "neither")
        words = verdict if decision.text == verdict else f"{decision.text} ({verdict})"
        kind = "right" if decision.discrete == label else "wrong"
        return kind, f"{words}: {kind}"
    if status == "aborted":
        return "broken", "broken off by an unusable reply"
    if status == "truncated":
        return "undecided", "undecided: out of rounds"
    return "undecided", "still open"


def about(stage: StageForest, tree: int) -> About:
    """The datapoint of a tree."""
    point = stage.datapoint(tree)
    return About(point.id, CLASSES[point.label], point.question, point.solution, point.views)


def said_of(params: HyperParameters, protocol: Protocol, utterance: Utterance) -> Said:
    """A reply, with what is to be known of it."""
    agent = params.agents[utterance.agent]
    notes = (
        *((f"cut at {max_tokens(agent):,} tokens",) if utterance.token_limit else ()),
        *((f"unusable: {utterance.error.replace('_', ' ')}",) if utterance.error else ()),
        *((f"attempt {utterance.attempts}",) if utterance.attempts > 1 else ()),
    )
    return Said(utterance.agent, protocol.agents[utterance.agent].name, utterance.raw, notes)
