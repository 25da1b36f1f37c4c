"""Parts that the pages of trees, games and comparisons share: replies, values and outcomes."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import ACCEPT, REJECT, Decision
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Protocol, Status
from nip_fn.metrics.forest import GameEnd
from nip_fn.params.agent import max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.trees.rollouts import Rollout

VERDICT_WORDS = {REJECT: "reject", ACCEPT: "accept"}
CLASSES = {REJECT: "buggy", ACCEPT: "right"}


class PageLimits(NamedTuple):
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


ONE_PAGE = PageLimits()


class ReplyView(NamedTuple):
    """A reply: who gave it, its text, and remarks, such as that it was cut."""

    agent: int
    speaker: str
    text: str
    remarks: tuple[str, ...] = ()


class Value(NamedTuple):
    """An agent's expected reward at a node, and its bin (`svg.value_bins`)."""

    letter: str  # of the agent
    written: str
    bin: int


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


def game_end(game: Rollout | GameEnd) -> tuple[str, str]:
    """(kind, words) of a game's end; the kinds are right, wrong, undecided and broken."""
    return end_of(game.status, game.decision, game.label)


def label_word(point: Datapoint, label: int | None) -> str:
    """The word for a game's label: "buggy" of a given solution, "wrong" of a written answer."""
    if label is None:
        return "unknown"
    return "right" if label else "wrong" if point.label is None else "buggy"


def end_of(status: Status, decision: Decision | None, label: int | None) -> tuple[str, str]:
    """(kind, words) of an end with this status and decision where this is the label."""
    if decision is not None:
        verdict = VERDICT_WORDS.get(decision.discrete, "neither")
        words = verdict if decision.text == verdict else f"{decision.text} ({verdict})"
        outcome = "right" if decision.discrete == label else "wrong"
        return outcome, f"{words}: {outcome}"
    if status == "aborted":
        return "broken", "broken off by an unusable reply"
    if status == "unchecked":
        return "broken", "the answer could not be checked"
    if status == "truncated":
        return "undecided", "undecided: out of rounds"
    return "undecided", "still open"


def cut_remark(params: HyperParameters, utterance: Utterance) -> str | None:
    """The token limit at which a reply was cut, in words; None if it was not."""
    limit = max_tokens(params.agents[utterance.agent])
    return f"cut at {limit:,} tokens" if utterance.token_limit else None


def view_reply(params: HyperParameters, protocol: Protocol, utterance: Utterance) -> ReplyView:
    """The reply, with remarks if it was cut, unusable or not the first attempt."""
    remarks = (
        cut_remark(params, utterance),
        f"unusable: {utterance.error.replace('_', ' ')}" if utterance.error else None,
        f"attempt {utterance.attempts}" if utterance.attempts > 1 else None,
    )
    speaker = protocol.agents[utterance.agent].name
    return ReplyView(utterance.agent, speaker, utterance.raw, tuple(filter(None, remarks)))
