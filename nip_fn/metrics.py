"""Every number that a run logs, with its formula.

A stage's metrics are a tuple of (name, value) pairs: immutable, ordered, and equal in any process.
"""

from collections.abc import Sequence
from math import fsum, sqrt

from nip_fn.data import Datapoint
from nip_fn.episode import Said
from nip_fn.growth import Node
from nip_fn.pairs import Pair
from nip_fn.protocols.protocol import Protocol
from nip_fn.spectra import ACCEPT, NEITHER, NO_DECISION

Metrics = tuple[tuple[str, float], ...]

Z_95 = 1.959963984540054


def wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927); (0, 1) with no trials.

    (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    >>> low, high = wilson_interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    if trials == 0:
        return 0.0, 1.0
    p, n = successes / trials, trials
    centre = p + z * z / (2 * n)
    margin = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def leaves(node: Node) -> list[Node]:
    """The ends of a tree, left to right."""
    if not node.children:
        return [node]
    return [leaf for child in node.children for leaf in leaves(child)]


def nodes(node: Node) -> list[Node]:
    """All nodes of a tree, parents first."""
    return [node, *(below for child in node.children for below in nodes(child))]


def decided(leaf: Node) -> int:
    """The discrete decision in which the game ended; `NO_DECISION` where it ended otherwise."""
    if leaf.end != "decided":
        return NO_DECISION
    decisions = (said.decision.discrete for said in leaf.turn if said.decision is not None)
    return next(decisions, NO_DECISION)


def outcome_metrics(datapoints: Sequence[Datapoint], forest: Sequence[Node]) -> Metrics:
    """How the games ended; tree i is about datapoint i modulo their number.

    accuracy: share of games (leaves) decided as the label says, with its Wilson interval
    accuracy_0, accuracy_1: the same among buggy and among right solutions, where there are any
    always_fail_share: share of datapoints of which no game was decided as the label says
    acceptance_rate: share of games decided for acceptance
    neither_share: share of games decided as neither
    rounds_share, invalid_share: share of games that ran out of rounds, or broke off
    episode_length: mean number of rounds
    """
    games: list[tuple[int, int, Node, int]] = [
        (i % len(datapoints), datapoints[i % len(datapoints)].label, leaf, depth)
        for i, root in enumerate(forest)
        for leaf, depth in _leaves_with_depth(root, 0)
    ]
    correct = [decided(leaf) == label for _, label, leaf, _ in games]
    low, high = wilson_interval(sum(correct), len(correct))
    won = {datapoint for (datapoint, _, _, _), right in zip(games, correct, strict=True) if right}
    accepted = [decided(leaf) == ACCEPT for _, _, leaf, _ in games]
    by_class = {
        label: [c for c, g in zip(correct, games, strict=True) if g[1] == label] for label in (0, 1)
    }
    return (
        ("accuracy", _mean(correct)),
        ("accuracy_low", low),
        ("accuracy_high", high),
        *((f"accuracy_{label}", _mean(right)) for label, right in by_class.items() if right),
        ("always_fail_share", 1 - len(won) / max(len({game[0] for game in games}), 1)),
        ("acceptance_rate", _mean(accepted)),
        ("neither_share", _mean([decided(leaf) == NEITHER for _, _, leaf, _ in games])),
        ("rounds_share", _mean([game[2].end == "rounds" for game in games])),
        ("invalid_share", _mean([game[2].end == "invalid" for game in games])),
        ("episode_length", _mean([game[3] for game in games])),
        ("games", float(len(games))),
    )


def effort_metrics(protocol: Protocol, forest: Sequence[Node]) -> Metrics:
    """What the replies cost: nodes, replies, tokens, retries, flags, in all and for each agent.

    nodes: positions in the trees, roots included
    AGENT.replies, AGENT.tokens: replies used, tokens written (failed attempts included)
    AGENT.retries: failed attempts;  AGENT.invalid: replies that stayed unusable
    AGENT.token_limit: replies cut at the limit
    """
    every = [node for root in forest for node in nodes(root)]
    said = [reply for node in every for reply in node.turn]
    metrics: list[tuple[str, float]] = [
        ("nodes", float(len(every))),
        ("replies", float(len(said))),
        ("prompt_tokens", float(sum(reply.prompt_tokens for reply in said))),
        ("tokens", float(sum(reply.completion_tokens for reply in said))),
    ]
    for index, agent in enumerate(protocol.agents):
        own = [reply for reply in said if reply.agent == index]
        metrics += [(f"{agent.name}.{name}", value) for name, value in _agent_effort(own)]
    return tuple(metrics)


def _agent_effort(said: Sequence[Said]) -> Metrics:
    return (
        ("replies", float(len(said))),
        ("tokens", float(sum(reply.completion_tokens for reply in said))),
        ("retries", float(sum(reply.attempts - 1 for reply in said))),
        ("invalid", float(sum(reply.error is not None for reply in said))),
        ("token_limit", float(sum(reply.token_limit for reply in said))),
    )


def pair_metrics(protocol: Protocol, pairs: Sequence[Pair]) -> Metrics:
    """AGENT.pairs: preference pairs selected;  AGENT.margin: their mean difference, if any."""
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(protocol.agents):
        own = [pair for pair in pairs if pair.agent == index]
        metrics.append((f"{agent.name}.pairs", float(len(own))))
        if own:
            margins = [pair.chosen_value - pair.rejected_value for pair in own]
            metrics.append((f"{agent.name}.margin", _mean(margins)))
    return tuple(metrics)


def _mean(values: Sequence[float]) -> float:
    """The arithmetic mean, exactly rounded (the same on any machine); 0 of nothing."""
    return fsum(values) / len(values) if values else 0.0


def _leaves_with_depth(node: Node, depth: int) -> list[tuple[Node, int]]:
    if not node.children:
        return [(node, depth)]
    return [pair for child in node.children for pair in _leaves_with_depth(child, depth + 1)]
