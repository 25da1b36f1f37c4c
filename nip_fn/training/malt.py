"""MALT: trees of replies, expected rewards, preference pairs, DPO.

After Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training", 2024, as the *nip*
library adapts it to prover-verifier games.
"""

from collections.abc import Callable
from math import fsum

from nip_fn.keys import Key
from nip_fn.select.pairs import Candidates, Pairs, Selector, candidates
from nip_fn.select.reestimate import reestimated
from nip_fn.training.losses import DPO
from nip_fn.training.trainer import (
    Losses,
    SampleBatch,
    Selection,
    Trainer,
    Update,
    branching_of,
    trained_agents,
)
from nip_fn.trees.backup import Backup, mean_children
from nip_fn.trees.grow import Turn

Agents = tuple[int, ...]  # those that are trained

BY_DPO = DPO()


def malt(
    select: Selector,
    backup: Backup = mean_children,
    *,
    loss: Losses = BY_DPO,
    k: int | Callable[[Turn], int] = 2,
    frozen_k: int = 1,
) -> Trainer[Agents]:
    """Preference pairs from trees with `k` replies at each node.

    The value of a reply is a mean over the replies to it, so the sign of a prover's pair is as sure
    as the verifier's replies after it are many: `k = lambda turn: 4 if turn.agent == PROVER else 8`
    compares four replies of the prover by eight continuations each.

    Args:
        select: The pairs to train on, by `chain`.
        backup: The expected rewards that replies are compared by.
        loss: Of the rows, one pair each: any that compares replies.
        k: Replies of an agent at a node: a number, or a function of its turn.  Agents that move at
            once all give as many as the one that gives the most.
        frozen_k: With a number, that of frozen agents: their replies are never compared, but more
            of them make the values of earlier replies more certain.
    """

    def update(batch: SampleBatch, trained: Agents, key: Key) -> Update[Agents]:
        # Frozen agents are left out of the candidates and not of the pairs, so that caps and
        # balances count only what will be trained on.
        among = candidates(
            batch.trees, batch.protocol, backup, agents=trained, excluded=batch.off_policy
        )
        pairs = select(among, key)
        rows = {
            group.name: tuple(batch.preference_row(p) for p in pairs if p.agent in group.agents)
            for group in batch.groups
        }
        checked = reestimated(select, among, backup, key)
        metrics = label_metrics(among, checked)
        return Update(rows, trained, loss, metrics, Selection(pairs=pairs))

    return Trainer(
        trained_agents, lambda agents, turns: branching_of(k, frozen_k, agents, turns), update
    )


def label_metrics(among: Candidates, checked: Pairs) -> tuple[tuple[str, float], ...]:
    """The truth of the labels, by pairs whose values are re-estimated (`select.reestimate`).

    AGENT.pairs_reestimated: the number of these pairs
    AGENT.margin_reestimated: their mean margin, which is unbiased, unlike AGENT.margin
    AGENT.pairs_right: share of them whose margin is positive; none at all counts as half right
    """
    metrics: list[tuple[str, float]] = []
    for index, agent in enumerate(among.protocol.agents):
        slack = among.equal_within(index)
        margins = [p.chosen_value - p.rejected_value for p in checked if p.agent == index]
        if margins:
            # Halves for ties, so that labels without any truth are right in half of the cases.
            right = sum((margin > slack) + (abs(margin) <= slack) / 2 for margin in margins)
            metrics += (
                (f"{agent.name}.pairs_reestimated", float(len(margins))),
                (f"{agent.name}.margin_reestimated", fsum(margins) / len(margins)),
                (f"{agent.name}.pairs_right", right / len(margins)),
            )
    return tuple(metrics)
