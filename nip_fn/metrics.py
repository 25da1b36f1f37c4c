"""Every number that a run logs, with its formula.

A stage's metrics are a tuple of (name, value) pairs: immutable, ordered, and equal in any process.
A measure that is undefined, such as a mean of nothing, is left out.  Sums are exactly rounded, so
the order of trees and siblings cannot change a value.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from math import fsum, sqrt

from nip_fn.data import Datapoint
from nip_fn.episode import Said
from nip_fn.finetune import Group
from nip_fn.growth import Node
from nip_fn.pairs import Pair
from nip_fn.protocols.protocol import Protocol
from nip_fn.spectra import ACCEPT, NEITHER, NO_DECISION, REJECT, SPECTRA, Decision, SpectrumName
from nip_fn.survey import Game, Survey, decision_of, survey

Metrics = tuple[tuple[str, float], ...]

Z_95 = 1.959963984540054

MAX_LEVELS = 5  # of confidence, at which selective accuracy is logged

PRECISE = Context(prec=30)  # its logarithms are the same on any machine, unlike those of `math`


def stage_metrics(
    protocol: Protocol,
    datapoints: Sequence[Datapoint],
    forest: Sequence[Node],
    pairs: Sequence[Pair] | None = None,
) -> Metrics:
    """All that a stage logs: of its games, its replies and, where it selects any, its pairs.

    Tree i is about datapoint i modulo their number; `pairs` is None at a test.
    """
    seen = survey(forest)
    metrics = (
        *_outcomes(datapoints, seen.games),
        *_selective(protocol, datapoints, seen.games),
        *_rewards(protocol, seen.games),
        *_effort(protocol, seen),
    )
    if pairs is None:
        return metrics
    return (*metrics, *pair_metrics(protocol, pairs), *_positions(protocol, seen, pairs))


# ---------------------------------------------------------------------------------------- formulas


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


def standard_error(successes: int, trials: int) -> float:
    """The standard error of a proportion: √(p(1 - p) / n), of one trial or more."""
    p = successes / trials
    return sqrt(p * (1 - p) / trials)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean of one value or more, its sum exactly rounded."""
    return fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of one value or more, taken as the whole population.

    √(Σ (x - x̄)² / n)

    >>> deviation([1.0, -1.0, 1.0, -1.0])
    1.0
    """
    least = min(values)
    above = [value - least for value in values]  # so that equal values deviate by 0 exactly
    centre = mean(above)
    return sqrt(mean([(value - centre) * (value - centre) for value in above]))


def entropy(counts: Sequence[int]) -> float:
    """The entropy in nats of how often each of some things happened (Shannon 1948).

    Σ p ln(1/p) with p = c / Σ c, for counts c > 0

    >>> entropy([5, 5]), entropy([3])
    (0.6931471805599453, 0.0)
    """
    total = sum(counts)
    return fsum(
        count / total * float(PRECISE.ln(PRECISE.divide(Decimal(total), Decimal(count))))
        for count in counts
    )


def confidence_levels(spectrum: SpectrumName) -> tuple[float, ...]:
    """The values of |continuous| that a spectrum has, ascending; of more than five, five.

    The five are the least, the greatest, and those nearest below each quarter between them.  A
    spectrum of two decisions knows no degrees: it has no levels.

    >>> confidence_levels("likert_scale_5"), confidence_levels("out_of_10")
    ((0.0, 0.5, 1.0), (0.0, 0.2, 0.4, 0.6, 1.0))
    """
    if len(SPECTRA[spectrum]) <= 2:
        return ()
    levels = sorted({abs(decision.continuous) for decision in SPECTRA[spectrum]})
    most = min(MAX_LEVELS, len(levels)) - 1
    return tuple(levels[step * (len(levels) - 1) // most] for step in range(most + 1))


# ------------------------------------------------------------------------------------------- trees


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
    return _discrete(decision_of(leaf))


def _discrete(decision: Decision | None) -> int:
    return NO_DECISION if decision is None else decision.discrete


# ------------------------------------------------------------------------------------------- games


def outcome_metrics(datapoints: Sequence[Datapoint], forest: Sequence[Node]) -> Metrics:
    """How the games (leaves) ended; tree i is about datapoint i modulo their number.

    A game is right if it was decided as the label says; one that was decided as neither, ran out of
    rounds or broke off never is.  With p the share of right ones among n games:

    accuracy: p;  accuracy_stderr: √(p(1 - p) / n);  accuracy_low, accuracy_high: Wilson's interval.
      Both take the games for independent; those of one tree are not, and tell less
    accuracy_0, accuracy_1: the accuracy in the games about buggy and about right solutions
    precision: share of games about right solutions among those decided for acceptance
    recall: share decided for acceptance among the games about right solutions, which is accuracy_1
    always_fail_share: share of datapoints of which no game is right
    worst_datapoint_accuracy: the least, over datapoints, of the accuracy in the games about it
    acceptance_rate, neither_share: share of games decided for acceptance, decided as neither
    no_decision_rate: share of games that were not decided, for either of the next two reasons
    rounds_share, invalid_share: share of games that ran out of rounds, or broke off
    decision_entropy: in nats, of how games ended: with which text of a decision, or without one
    episode_length: mean number of rounds
    """
    return _outcomes(datapoints, survey(forest).games)


def _outcomes(datapoints: Sequence[Datapoint], games: Sequence[Game]) -> Metrics:
    n = len(games)
    if not n:
        return (("games", 0.0),)
    points = [datapoints[game.tree % len(datapoints)] for game in games]
    verdicts = [_discrete(game.decision) for game in games]
    hits = [point for point, said in zip(points, verdicts, strict=True) if said == point.label]
    labelled, right = (Counter(point.label for point in some) for some in (points, hits))
    played, won = (Counter(point.id for point in some) for some in (points, hits))
    accuracies = [won[id] / times for id, times in played.items()]
    low, high = wilson_interval(len(hits), n)
    ruled, ends = Counter(verdicts), Counter(game.end for game in games)
    texts = Counter(game.decision.text if game.decision else None for game in games)
    return (
        ("accuracy", len(hits) / n),
        ("accuracy_stderr", standard_error(len(hits), n)),
        ("accuracy_low", low),
        ("accuracy_high", high),
        *_ratio("accuracy_0", right[REJECT], labelled[0]),
        *_ratio("accuracy_1", right[ACCEPT], labelled[1]),
        *_ratio("precision", right[ACCEPT], ruled[ACCEPT]),
        *_ratio("recall", right[ACCEPT], labelled[1]),
        ("always_fail_share", accuracies.count(0.0) / len(accuracies)),
        ("worst_datapoint_accuracy", min(accuracies)),
        ("acceptance_rate", ruled[ACCEPT] / n),
        ("no_decision_rate", ruled[NO_DECISION] / n),
        ("neither_share", ruled[NEITHER] / n),
        ("rounds_share", ends["rounds"] / n),
        ("invalid_share", ends["invalid"] / n),
        ("decision_entropy", entropy(list(texts.values()))),
        ("episode_length", sum(game.rounds for game in games) / n),
        ("games", float(n)),
    )


def _selective(
    protocol: Protocol, datapoints: Sequence[Datapoint], games: Sequence[Game]
) -> Metrics:
    """What deciding only when sure enough would come to (El-Yaniv & Wiener 2010).

    For each confidence level C of the protocol's spectrum, with two decimals:
    selective.C.coverage: share of games decided with |continuous| >= C
    selective.C.accuracy: share of these decided as the label says, if there are any
    """
    levels = confidence_levels(protocol.spectrum)
    sure = [
        (abs(decision.continuous), decision.discrete == datapoints[tree % len(datapoints)].label)
        for tree, _, decision, _, _ in games
        if levels and decision is not None
    ]
    metrics: list[tuple[str, float]] = []
    for level in levels:
        covered = [right for confidence, right in sure if confidence >= level]
        metrics += _ratio(f"selective.{level:.2f}.coverage", len(covered), len(games))
        metrics += _ratio(f"selective.{level:.2f}.accuracy", sum(covered), len(covered))
    return tuple(metrics)


def _rewards(protocol: Protocol, games: Sequence[Game]) -> Metrics:
    """AGENT.reward, AGENT.reward_std: mean and standard deviation over games of the agent's reward.

    The reward for a game is the sum over its rounds.
    """
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(protocol.agents):
        rewards = [game.reward[index] for game in games]
        metrics += _of(f"{agent.name}.reward", mean, rewards)
        metrics += _of(f"{agent.name}.reward_std", deviation, rewards)
    return tuple(metrics)


# ----------------------------------------------------------------------------------------- replies


def effort_metrics(protocol: Protocol, forest: Sequence[Node]) -> Metrics:
    """What the replies cost: nodes, replies, tokens, retries, flags, in all and for each agent.

    nodes: positions in the trees, roots included
    AGENT.replies, AGENT.tokens: replies used, tokens written (failed attempts included)
    AGENT.prompt_tokens, AGENT.cached_tokens: tokens sent, and of these what was at hand
    AGENT.requests: one for all its replies at a position, and one for each retry
    AGENT.retries: failed attempts;  AGENT.invalid: replies that stayed unusable
    AGENT.token_limit: replies cut at the limit
    AGENT.reply_length: mean number of tokens written at an attempt, failed or not
    """
    return _effort(protocol, survey(forest))


def _effort(protocol: Protocol, seen: Survey) -> Metrics:
    every = [reply for own in seen.said.values() for reply in own]
    metrics: list[tuple[str, float]] = [
        ("nodes", float(seen.num_nodes)),
        ("replies", float(len(every))),
        ("prompt_tokens", float(sum(reply.prompt_tokens for reply in every))),
        ("cached_tokens", float(sum(reply.cached_tokens for reply in every))),
        ("tokens", float(sum(reply.completion_tokens for reply in every))),
    ]
    for index, agent in enumerate(protocol.agents):
        own = _agent_effort(seen.said.get(index, ()), seen.turns.get(index, 0))
        metrics += [(f"{agent.name}.{name}", value) for name, value in own]
    return tuple(metrics)


def _agent_effort(said: Sequence[Said], turns: int) -> Metrics:
    attempts = sum(reply.attempts for reply in said)
    tokens = sum(reply.completion_tokens for reply in said)
    return (
        ("replies", float(len(said))),
        ("requests", float(turns + attempts - len(said))),
        ("prompt_tokens", float(sum(reply.prompt_tokens for reply in said))),
        ("cached_tokens", float(sum(reply.cached_tokens for reply in said))),
        ("tokens", float(tokens)),
        ("retries", float(attempts - len(said))),
        ("invalid", float(sum(reply.error is not None for reply in said))),
        ("token_limit", float(sum(reply.token_limit for reply in said))),
        *_ratio("reply_length", tokens, attempts),
    )


# ---------------------------------------------------------------------------------------- training


def pair_metrics(protocol: Protocol, pairs: Sequence[Pair]) -> Metrics:
    """AGENT.pairs: preference pairs selected;  AGENT.margin: their mean difference, if any."""
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(protocol.agents):
        metrics += _margin(agent.name, [pair for pair in pairs if pair.agent == index])
    return tuple(metrics)


def _positions(protocol: Protocol, seen: Survey, pairs: Sequence[Pair]) -> Metrics:
    """Where the pairs came from; a position is a node with two comparable replies of the agent.

    AGENT.pair_share: share of the agent's positions that gave a pair, if it has any
    AGENT.round_R.pairs, AGENT.round_R.margin: pairs of replies given in round R, from 0, and their
      mean difference, if any; for the rounds in which the agent has positions
    """
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(protocol.agents):
        own = [pair for pair in pairs if pair.agent == index]
        rounds = {round: num for (mover, round), num in seen.positions.items() if mover == index}
        places = len({(pair.tree, pair.parent) for pair in own})
        metrics += _ratio(f"{agent.name}.pair_share", places, sum(rounds.values()))
        for round in sorted(rounds):
            then = [pair for pair in own if seen.round_at(pair.tree, pair.parent) == round]
            metrics += _margin(f"{agent.name}.round_{round}", then)
    return tuple(metrics)


def _margin(prefix: str, pairs: Sequence[Pair]) -> Metrics:
    margins = [pair.chosen_value - pair.rejected_value for pair in pairs]
    return ((f"{prefix}.pairs", float(len(pairs))), *_of(f"{prefix}.margin", mean, margins))


def lineage_metrics(groups: Sequence[Group]) -> Metrics:
    """GROUP.adapters: how many were trained;  GROUP.serving: which one samples, 0 the base model.

    Adapter n is the n-th of the lineage.  Raises `ValueError` where the serving one is not in it.
    """
    metrics: list[tuple[str, float]] = []
    for group in groups:
        served = (None, *(adapter.name for adapter in group.lineage))
        metrics.append((f"{group.name}.adapters", float(len(group.lineage))))
        metrics.append((f"{group.name}.serving", float(served.index(group.serving))))
    return tuple(metrics)


def _ratio(name: str, part: int, whole: int) -> Metrics:
    """part / whole under that name; nothing where there is no whole."""
    return ((name, part / whole),) if whole else ()


def _of(name: str, measure: Callable[[Sequence[float]], float], values: Sequence[float]) -> Metrics:
    """A measure of the values under that name; nothing where there are none."""
    return ((name, measure(values)),) if values else ()
