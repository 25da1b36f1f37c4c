"""Replies and games that tell nothing: cut at the token limit, unusable, without a verdict.

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


class Loss(NamedTuple):
    """A share of replies or games that tell nothing.

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
        """The loss as a clause."""
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


def alarming(
    metrics: Mapping[str, float], agents: Sequence[AgentParameters], *, enough: int = 1
) -> tuple[Loss, ...]:
    """The losses above `ALARMING` among the metrics of a stage (`stage_metrics`, `so_far`).

    Args:
        metrics: The metrics by name.
        agents: The agents whose replies they count.
        enough: The least number of replies or games that a loss is a share of.
    """
    wasted = (loss for loss in _losses(metrics, agents) if loss.total >= enough)
    return tuple(loss for loss in wasted if loss.share > ALARMING)


def _losses(metrics: Mapping[str, float], agents: Sequence[AgentParameters]) -> Iterator[Loss]:
    for agent in agents:
        names = ("replies", "retries", "token_limit", "empty_at_limit", "invalid")
        replies, retries, limited, empty, invalid = (
            metrics.get(f"{agent.name}.{name}", 0.0) for name in names
        )
        if replies:
            yield Loss("cut", agent, (limited - empty) / replies, int(replies))
            yield Loss("empty", agent, empty / replies, int(replies))
        attempts = replies + retries
        if attempts:
            # Of a reply that is empty at the limit, the attempt before it was, too.
            spent = empty * min(MOST_EMPTY, agent.num_invalid_generation_retries)
            yield Loss("invalid", agent, (retries + invalid - spent) / attempts, int(attempts))
    if metrics.get("games"):
        undecided = metrics.get("no_decision_rate", 0.0)
        yield Loss("undecided", None, undecided, int(metrics["games"]))


def so_far(forest: Iterable[GameTree], agents: Sequence[AgentParameters]) -> dict[str, float]:
    """Those metrics of `stage_metrics` that losses are made of, while the trees are growing.

    Games are counted, each once, however likely it is under the policy.
    """
    counts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for tree in forest:
        for node in _nodes(tree.root):
            ends[node.status] += 1
            for slot in node.slots:
                name = agents[slot.agent].name
                counts[f"{name}.retries"] += slot.said.attempts - 1 if slot.said else slot.attempts
                if slot.said is not None:
                    counts[f"{name}.replies"] += 1
                    counts[f"{name}.token_limit"] += slot.said.token_limit
                    counts[f"{name}.empty_at_limit"] += was_empty_at_limit(slot.said)
                    counts[f"{name}.invalid"] += slot.said.error is not None
    games = sum(number for status, number in ends.items() if status != "open")
    undecided = games - ends["decided"]
    return {**counts, "games": games, "no_decision_rate": undecided / games if games else 0.0}


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)
