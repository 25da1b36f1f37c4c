"""A trainer of one's own: imitate the best of n replies at every node.

Trees as in MALT, values backed up with a discount, and supervised rows as in Expert Iteration.

    nip-fn train --trainer examples/own_trainer.py:TRAINER
"""

import nip_fn as nip

N = 4
BEST = nip.chain(nip.best_worst(), nip.margin(0.1), nip.one_per_node())


def branching(trained: tuple[int, ...], turns: tuple[nip.Turn, ...]) -> int:
    """N replies wherever an agent that is trained moves."""
    return N if any(turn.agent in trained for turn in turns) else 1


def update(
    batch: nip.SampleBatch, trained: tuple[int, ...], key: nip.Key
) -> nip.Update[tuple[int, ...]]:
    """A supervised row for the best reply of each node at which the replies differ in value."""
    backup = nip.discounted(0.9)
    replies = nip.candidates(
        batch.trees, batch.protocol, backup, agents=trained, excluded=batch.off_policy
    )
    pairs = BEST(replies, key)
    rows = {
        group.name: tuple(
            batch.imitation_row(pair.tree, pair.chosen, pair.agent)
            for pair in pairs
            if pair.agent in group.agents
        )
        for group in batch.groups
    }
    return nip.Update(
        rows, trained, nip.training.SFT(), selection=nip.training.Selection(pairs=pairs)
    )


TRAINER = nip.Trainer(nip.training.trained_agents, branching, update)
