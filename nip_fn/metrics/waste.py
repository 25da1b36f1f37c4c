"""Wasted replies and games: cut at the token limit, unusable, without a verdict.

A few of them are the rule.  More than a tenth usually have a cause that is not the models' skill: a
limit that is too low, a prompt that is not understood; and what is measured beside them is wrong.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from nip_fn.game.episode import was_empty_at_limit
from nip_fn.game.reply import MOST_EMPTY
from nip_fn.params.agent import AgentParameters, max_tokens
from nip_fn.trees.node import GameTree, Node

ALARMING = 0.1  # share
ENOUGH = 20  # replies or games, fewer of which raise no alarm while others are to come


class Waste(NamedTuple):
    """A share of replies or games that were wasted.

    kind: replies that were cut, replies that were empty at the limit, other attempts at a reply
        that were unusable, or games without a verdict.
    agent: whose replies; None for games.
    share: of `total`.
    total: the number of replies, attempts or games.
    """

    kind: Literal["cut", "empty", "invalid", "undecided"]
    agent: AgentParameters | None
    share: float
    total: int

    def __str__(self) -> str:
        """The share as a clause."""
        of = f"{self.share:.0%} of"
        match self.agent, self.kind:
            case None, _:
                return f"{of} {self.total:,} games ended without a verdict"
            case agent, "cut":
                limit = f"the limit of {max_tokens(agent):,} tokens"
                return f"{of} {self.total:,} replies of {agent.name} were cut at {limit}"
            case agent, "empty":
                limit = f"the limit of {max_tokens(agent):,} tokens"
                return f"{of} {self.total:,} replies of {agent.name} were empty at {limit}"
            case agent, _:
                return f"{of} {self.total:,} attempts of {agent.name} at a reply were unusable"

    @property
    def remedy(self) -> str:
        """A change that may help."""
        if self.agent is None:
            return "see what the verifier writes"
        if self.kind in ("cut", "empty"):
            return f"raise agents.{self.agent.name}.max_tokens_per_message"
        return f"see what {self.agent.name} is shown and what it writes"


def alarming_waste(
    metrics: Mapping[str, float], agents: Sequence[AgentParameters], *, enough: int = 1
) -> tuple[Waste, ...]:
    """The shares above `ALARMING` among the metrics of a stage (`stage_metrics`, `metrics_so_far`).

    Args:
        metrics: The metrics by name.
        agents: The agents whose replies they count.
        enough: The least number of replies or games that a share is of.
    """
    wasted = (waste for waste in _wastes(metrics, agents) if waste.total >= enough)
    return tuple(waste for waste in wasted if waste.share > ALARMING)


def _wastes(metrics: Mapping[str, float], agents: Sequence[AgentParameters]) -> Iterator[Waste]:
    for agent in agents:
        names = ("replies", "retries", "token_limit", "empty_at_limit", "invalid")
        replies, retries, limited, empty, invalid = (
            metrics.get(f"{agent.name}.{name}", 0.0) for name in names
        )
        if replies:
            yield Waste("cut", agent, (limited - empty) / replies, int(replies))
            yield Waste("empty", agent, empty / replies, int(replies))
        attempts = replies + retries
        if attempts:
            # Of a reply that is empty at the limit, the attempt before it was, too.
            spent = empty * min(MOST_EMPTY, agent.num_invalid_generation_retries)
            yield Waste("invalid", agent, (retries + invalid - spent) / attempts, int(attempts))
    if metrics.get("games"):
        undecided = metrics.get("no_decision_rate", 0.0)
        yield Waste("undecided", None, undecided, int(metrics["games"]))


def metrics_so_far(
    forest: Iterable[GameTree], agents: Sequence[AgentParameters]
) -> dict[str, float]:
    """Those metrics of `stage_metrics` that waste is made of, while the trees are growing.

    Games are counted, each once, however likely it is under the policy.
    """
    counts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for tree in forest:
        for node in _nodes(tree.root):
            ends[node.status] += 1
            for slot in node.slots:
                name = agents[slot.agent].name
                reply = slot.said or slot.answered
                counts[f"{name}.retries"] += reply.attempts - 1 if reply else slot.attempts
                if reply is not None:
                    counts[f"{name}.replies"] += 1
                    counts[f"{name}.token_limit"] += reply.token_limit
                    counts[f"{name}.empty_at_limit"] += was_empty_at_limit(reply)
                    counts[f"{name}.invalid"] += reply.error is not None
    games = sum(number for status, number in ends.items() if status != "open")
    undecided = games - ends["decided"]
    return {**counts, "games": games, "no_decision_rate": undecided / games if games else 0.0}


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)
