"""Every number that a run logs, with its formula.

A stage's metrics are a tuple of (name, value) pairs: immutable, ordered, and equal in any process.
A measure that is undefined, such as a mean of nothing, is left out.  Sums are exactly rounded, so
the order of trees and siblings cannot change a value.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from math import fsum

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import ACCEPT, NEITHER, NO_DECISION, REJECT
from nip_fn.game.protocol import Protocol
from nip_fn.metrics.forest import Effort, ForestStats, GameEnd, forest_stats, total_effort
from nip_fn.metrics.formulas import (
    LEAST_GAMES,
    Metrics,
    confidence_levels,
    deviation,
    effective_size,
    entropy,
    mean,
    ratio,
    standard_error,
    summary_of,
    totals,
)
from nip_fn.metrics.inference import Estimate, balanced_share, clustered_share
from nip_fn.select.pairs import Pair
from nip_fn.select.rollouts import SelectedRollout
from nip_fn.training.groups import Group
from nip_fn.trees.rollouts import Rollout
from nip_fn.trees.tree import Tree


def stage_metrics(
    protocol: Protocol,
    datapoints: Sequence[Datapoint],
    trees: Sequence[Tree],
    pairs: Sequence[Pair] | None = None,
) -> Metrics:
    """All metrics of a stage: of its games, its replies and, if it selects any, its pairs.

    Games are weighed by their probability under the policy that sampled them, so that trees and
    plain dialogues of one policy are measured alike; replies and pairs are counted.

    Args:
        protocol: The game.
        datapoints: Those of the stage; `Tree.datapoint_index` is an index into them.
        trees: The grown trees.
        pairs: The selected pairs; None in a test.
    """
    return forest_metrics(protocol, forest_stats(datapoints, trees), trees, pairs)


def forest_metrics(
    protocol: Protocol,
    stats: ForestStats,
    trees: Sequence[Tree],
    pairs: Sequence[Pair] | None = None,
) -> Metrics:
    """The `stage_metrics` of trees that have been counted."""
    metrics = (
        *_outcomes(stats.games, stats.weights),
        *_selective(protocol, stats.games, stats.weights),
        *_rewards(protocol, stats.games, stats.weights),
        *_effort(protocol, stats),
    )
    # A test selects nothing, which is something else than an iteration that found no pair.
    if pairs is None:
        return metrics
    return (
        *metrics,
        *pair_metrics(protocol, pairs),
        *_decision_points(protocol, stats, trees, pairs),
    )


# ------------------------------------------------------------------------------------------- games


def verdict(game: Rollout | GameEnd) -> int:
    """The discrete decision that ended the game; `NO_DECISION` if it ended otherwise."""
    return game.decision.discrete if game.decision else NO_DECISION


_ANSWERS = "answer_accuracy", "answer_accuracy_low", "answer_accuracy_high"
_BALANCED = "balanced_accuracy", "balanced_accuracy_low", "balanced_accuracy_high"


def _outcomes(games: Sequence[GameEnd], weights: Sequence[float]) -> Metrics:
    """The ends of the games, each game taken with its weight.

    A game is right if it was decided as the label says; one that was decided as neither, ran out of
    rounds, broke off or has an answer that could not be checked never is.  With p the share of
    right ones among n games:

    accuracy: p;  accuracy_stderr: √(p(1 - p) / m), where m is the `effective_size`, with the games
      about one datapoint as a cluster: n if there is one about each;  accuracy_low, accuracy_high:
      the interval of `clustered_share`
    accuracy_0, accuracy_1: the accuracy in the games about wrong and about right solutions, or
      answers that were written in them
    balanced_accuracy, balanced_accuracy_low, balanced_accuracy_high: their mean, and its interval
    majority_class_share: the share of games about the more frequent class
    answer_accuracy, answer_accuracy_low, answer_accuracy_high: the share of games about right
      answers among those that could be checked, and its interval; unchecked_share: the share of
      games whose answer could not be; both only where answers are written
    precision: share of games about right solutions among those decided for acceptance
    recall: share decided for acceptance among the games about right solutions, which is accuracy_1
    soundness_error: share decided for acceptance among the games about buggy solutions
    always_fail_share: share of datapoints of which no game is right
    worst_datapoint_accuracy: the least, over datapoints, of the accuracy in the games about it;
      both only if there are eight games or trees or more about each
    acceptance_rate, neither_share: share of games decided for acceptance, decided as neither
    no_decision_rate: share of games that were not decided, for one of the next two reasons or
      since their answer could not be checked
    truncated_share, aborted_share: share of games that ran out of rounds, or that an invalid reply
      broke off
    decision_entropy: in nats, of how games ended: with which text of a decision, or without one
    episode_length: mean number of rounds
    games: n, whatever their weights
    """
    n = len(games)
    if not n:
        return (("games", 0.0),)
    # Games that were never decided stay in every denominator: a verifier must not gain by
    # abstaining, which `_selective` measures apart.
    verdicts = [verdict(game) for game in games]
    ids, labels = [game.datapoint.id for game in games], [game.label for game in games]
    hits = [ruling == label for ruling, label in zip(verdicts, labels, strict=True)]
    whole = fsum(weights)
    labelled = totals(labels, weights)
    ended = totals(zip(labels, verdicts, strict=True), weights)
    about = totals(ids, weights)
    won = totals(zip(ids, hits, strict=True), weights)
    accuracies = {id: won[id, True] / weight for id, weight in about.items()}

    def share(hits: Sequence[bool], *classes: int | None) -> Estimate | tuple[()]:
        """The share of hits in the games with these labels; () if there are none."""
        chosen = [label in classes for label in labels]
        if not any(chosen):
            return ()
        return _clustered(
            tuple(compress(ids, chosen)),
            tuple(compress(weights, chosen)),
            hits=tuple(compress(hits, chosen)),
        )

    accuracy, low, high = _clustered(ids, weights, hits=hits)
    is_written = any(game.datapoint.label is None for game in games)
    is_right = [label == ACCEPT for label in labels]
    answers = share(is_right, REJECT, ACCEPT) if is_written else ()
    size = effective_size(((about[id], share) for id, share in accuracies.items()), n)
    rejected, accepted = share(hits, REJECT), share(hits, ACCEPT)
    balanced = rejected and accepted and balanced_share(rejected, accepted)
    ruled, ends = totals(verdicts, weights), totals((game.status for game in games), weights)
    worst = (
        ("always_fail_share", list(accuracies.values()).count(0.0) / len(accuracies)),
        ("worst_datapoint_accuracy", min(accuracies.values())),
    )
    texts = totals((game.decision.text if game.decision else None for game in games), weights)
    return (
        ("accuracy", accuracy),
        ("accuracy_stderr", standard_error(accuracy * size, size)),
        ("accuracy_low", low),
        ("accuracy_high", high),
        *ratio("accuracy_0", ended[REJECT, REJECT], labelled[0]),
        *ratio("accuracy_1", ended[ACCEPT, ACCEPT], labelled[1]),
        *zip(_BALANCED, balanced or (), strict=False),
        *zip(_ANSWERS, answers, strict=False),
        *((("unchecked_share", ends["unchecked"] / whole),) if is_written else ()),
        *ratio("majority_class_share", max(labelled[0], labelled[1]), labelled[0] + labelled[1]),
        *ratio("precision", ended[ACCEPT, ACCEPT], ruled[ACCEPT]),
        *ratio("recall", ended[ACCEPT, ACCEPT], labelled[1]),
        *ratio("soundness_error", ended[REJECT, ACCEPT], labelled[0]),
        # The games of one tree share their beginnings and count as one.
        *(worst if round(min(about.values())) >= LEAST_GAMES else ()),
        ("acceptance_rate", ruled[ACCEPT] / whole),
        ("no_decision_rate", ruled[NO_DECISION] / whole),
        ("neither_share", ruled[NEITHER] / whole),
        ("truncated_share", ends["truncated"] / whole),
        ("aborted_share", ends["aborted"] / whole),
        ("decision_entropy", entropy(list(texts.values()))),
        ("episode_length", mean([game.num_rounds for game in games], weights)),
        ("games", float(n)),
    )


def _clustered(ids: Sequence[str], weights: Sequence[float], *, hits: Sequence[bool]) -> Estimate:
    """The share of hits among games about the datapoints with these ids, each a cluster."""
    about = totals(ids, weights)
    won = totals(zip(ids, hits, strict=True), weights)
    clusters = ((weight, won[id, True] / weight) for id, weight in about.items())
    return clustered_share(clusters, len(ids))


def _selective(protocol: Protocol, games: Sequence[GameEnd], weights: Sequence[float]) -> Metrics:
    """Selective accuracy and coverage: abstain if the decision is not sure enough.

    After El-Yaniv & Wiener, "On the Foundations of Noise-free Selective Classification", 2010.

    For each confidence level C of the protocol's spectrum, with two decimals:
    selective.C.coverage: share of games decided with |continuous| >= C
    selective.C.accuracy: share of these decided as the label says, if there are any
    """
    levels = confidence_levels(protocol.spectrum)
    sure = [
        (abs(game.decision.continuous), game.decision.discrete == game.label, weight)
        for game, weight in zip(games, weights, strict=True)
        if levels and game.decision is not None
    ]
    whole = fsum(weights)
    metrics: list[tuple[str, float]] = []
    for level in levels:
        covered = fsum(weight for confidence, _, weight in sure if confidence >= level)
        hits = fsum(weight for confidence, right, weight in sure if right and confidence >= level)
        metrics += ratio(f"selective.{level:.2f}.coverage", covered, whole)
        metrics += ratio(f"selective.{level:.2f}.accuracy", hits, covered)
    return tuple(metrics)


def _rewards(protocol: Protocol, games: Sequence[GameEnd], weights: Sequence[float]) -> Metrics:
    """AGENT.reward, AGENT.reward_std: mean and standard deviation over games of the agent's reward.

    The reward for a game is the sum over its rounds; each game is taken with its weight.
    """
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(protocol.agents if games else ()):
        # A game that waits for its first reply has no rewards of any agent.
        rewards = [game.returns[index] if game.returns else 0.0 for game in games]
        metrics.append((f"{agent.name}.reward", mean(rewards, weights)))
        metrics.append((f"{agent.name}.reward_std", deviation(rewards, weights)))
    return tuple(metrics)


# ----------------------------------------------------------------------------------------- replies


def _effort(protocol: Protocol, seen: ForestStats) -> Metrics:
    """The effort of sampling: nodes, replies, tokens, retries, flags, in all and for each agent.

    nodes: positions in the trees, roots included
    AGENT.replies, AGENT.tokens: replies used, tokens written (failed attempts included)
    AGENT.prompt_tokens, AGENT.cached_tokens: tokens sent, and those of them that were cached
    AGENT.requests: one for all its replies at a position, and one for all retries that follow it
    AGENT.retries: failed attempts;  AGENT.invalid: replies that stayed unusable
    AGENT.token_limit: replies cut at the limit
    AGENT.empty_at_limit: those of them that were cut before a word, if there are any
    AGENT.answer_accuracy: share of right ones among its answers that were checked, if there are any
    AGENT.reply_length: mean number of tokens written at an attempt, failed or not
    """
    total = total_effort((Effort(), *seen.efforts.values()))
    metrics: list[tuple[str, float]] = [
        ("nodes", float(seen.num_nodes)),
        ("replies", float(total.replies)),
        ("prompt_tokens", float(total.prompt_tokens)),
        ("cached_tokens", float(total.cached_tokens)),
        ("tokens", float(total.completion_tokens)),
    ]
    for index, agent in enumerate(protocol.agents):
        agent_metrics = _agent_effort(
            seen.efforts.get(index, Effort()), seen.requests.get(index, 0)
        )
        metrics += [(f"{agent.name}.{name}", value) for name, value in agent_metrics]
    return tuple(metrics)


def _agent_effort(effort: Effort, requests: int) -> Metrics:
    return (
        ("replies", float(effort.replies)),
        ("requests", float(requests)),
        ("prompt_tokens", float(effort.prompt_tokens)),
        ("cached_tokens", float(effort.cached_tokens)),
        ("tokens", float(effort.completion_tokens)),
        ("retries", float(effort.attempts - effort.replies)),
        ("invalid", float(effort.invalid)),
        ("token_limit", float(effort.token_limit)),
        *((("empty_at_limit", float(effort.empty_at_limit)),) if effort.empty_at_limit else ()),
        *ratio("answer_accuracy", effort.right, effort.answers - effort.unchecked),
        *ratio("reply_length", effort.completion_tokens, effort.attempts),
    )


# ---------------------------------------------------------------------------------------- training


def pair_metrics(protocol: Protocol, pairs: Sequence[Pair]) -> Metrics:
    """AGENT.pairs: preference pairs selected;  AGENT.margin: their mean difference, if any."""
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(protocol.agents):
        metrics += _margin(agent.name, [pair for pair in pairs if pair.agent == index])
    return tuple(metrics)


def _decision_points(
    protocol: Protocol, seen: ForestStats, trees: Sequence[Tree], pairs: Sequence[Pair]
) -> Metrics:
    """Pairs by decision point, a node with two comparable replies of the agent.

    AGENT.pair_share: share of the agent's decision points that gave a pair, if it has any
    AGENT.round_R.pairs, AGENT.round_R.margin: pairs of replies given in round R, from 0, and their
      mean difference, if any; for the rounds in which the agent has decision points
    """
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(protocol.agents):
        agent_pairs = [pair for pair in pairs if pair.agent == index]
        rounds = {
            round: num for (mover, round), num in seen.decision_points.items() if mover == index
        }
        places = len({(pair.tree, pair.parent) for pair in agent_pairs})
        metrics += ratio(f"{agent.name}.pair_share", places, sum(rounds.values()))
        for round in sorted(rounds):
            then = [pair for pair in agent_pairs if trees[pair.tree].depth_N[pair.parent] == round]
            metrics += _margin(f"{agent.name}.round_{round}", then)
    return tuple(metrics)


def _margin(prefix: str, pairs: Sequence[Pair]) -> Metrics:
    margins = [pair.chosen_value - pair.rejected_value for pair in pairs]
    return ((f"{prefix}.pairs", float(len(pairs))), *summary_of(f"{prefix}.margin", mean, margins))


def rollout_metrics(protocol: Protocol, rollouts: Sequence[SelectedRollout]) -> Metrics:
    """AGENT.chosen: rollouts to imitate;  AGENT.replaced: of these, with the true label.

    Nothing if no rollout was selected for any agent.
    """
    if not rollouts:
        return ()
    return tuple(
        (f"{agent.name}.{name}", float(count))
        for index, agent in enumerate(protocol.agents)
        for imitated in [[rollout for rollout in rollouts if rollout.agent == index]]
        for name, count in (
            ("chosen", len(imitated)),
            ("replaced", sum(rollout.replaced for rollout in imitated)),
        )
    )


def opponent_metrics(protocol: Protocol, played_earlier: Sequence[int], trees: int) -> Metrics:
    """AGENT.earlier_share: share of the trees that an earlier model of the agent played.

    Args:
        protocol: The game.
        played_earlier: An agent for each tree that an earlier model of it played.
        trees: The number of all trees.
    """
    counts = Counter(played_earlier)
    return tuple(
        (f"{agent.name}.earlier_share", counts[index] / trees)
        for index, agent in enumerate(protocol.agents)
    )


def lineage_metrics(groups: Sequence[Group]) -> Metrics:
    """GROUP.adapters: how many were trained;  GROUP.serving: which one samples, 0 the base model.

    Adapter n is the n-th of the lineage.  Raises `ValueError` where the serving one is not in it.
    """
    metrics: list[tuple[str, float]] = []
    for group in groups:
        # Names are no numbers to plot, so an adapter is logged as its place in the lineage.
        served = (None, *(adapter.name for adapter in group.lineage))
        metrics.append((f"{group.name}.adapters", float(len(group.lineage))))
        metrics.append((f"{group.name}.serving", float(served.index(group.serving))))
    return tuple(metrics)
