"""MALT: trees of replies, expected rewards, preference pairs, DPO.

After Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training", 2024, as the *nip*
library adapts it to prover-verifier games.
"""

from nip_fn.game.protocol import Move
from nip_fn.keys import Key
from nip_fn.select.pairs import TOLERANCE, Selector, candidates
from nip_fn.training.trainer import SampleBatch, Selection, Trainer, Update, trained_agents
from nip_fn.trees.backup import Backup, mean_children

Agents = tuple[int, ...]  # those that are trained


def malt(
    select: Selector,
    backup: Backup = mean_children,
    *,
    k: int = 2,
    frozen_k: int = 1,
    tolerance: float = TOLERANCE,
) -> Trainer[Agents]:
    """Preference pairs from trees with `k` replies at each node.

    Args:
        select: The pairs to train on, by `chain`.
        backup: The expected rewards that replies are compared by.
        k: Replies of each mover at a node.
        frozen_k: The same where only frozen agents move: their replies are never compared, but
            more of them make the values of earlier replies more certain.
        tolerance: The share of the greatest reward up to which values are equal.
    """

    def branching(trained: Agents, moves: tuple[Move, ...]) -> int:
        # All movers of a round give the same number of replies, since "joint" combines the i-th of
        # each.
        return k if any(move.agent in trained for move in moves) else frozen_k

    def update(batch: SampleBatch, trained: Agents, key: Key) -> Update[Agents]:
        # Frozen agents are left out of the candidates and not of the pairs, so that caps and
        # balances count only what will be trained on.
        among = candidates(batch.trees, batch.protocol, backup, agents=trained, tolerance=tolerance)
        pairs = select((), among, key)
        rows = {
            group.name: tuple(batch.preference_row(p) for p in pairs if p.agent in group.agents)
            for group in batch.groups
        }
        return Update(rows, trained, selection=Selection(pairs=pairs))

    return Trainer(trained_agents, branching, update)
