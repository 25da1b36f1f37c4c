"""Expert Iteration: rollouts that went well for an agent are imitated (supervised fine-tuning).

After Anthony et al., "Thinking Fast and Slow with Deep Learning and Tree Search", 2017, as the
*nip* library adapts it to prover-verifier games.
"""

from collections.abc import Iterator
from math import fsum

from nip_fn.game.decision import strongest
from nip_fn.keys import Key, fold_in
from nip_fn.select.rollouts import RolloutRule, SelectedRollout, with_true_labels
from nip_fn.training.losses import SFT
from nip_fn.training.rows import Row
from nip_fn.training.schedules import Schedule, constant
from nip_fn.training.trainer import Losses, SampleBatch, Selection, Trainer, Update, trained_agents
from nip_fn.trees.tree import label_at, leaves_of, line_to

Agents = tuple[int, ...]  # those that are trained

NEVER, BY_IMITATION = constant(0.0), SFT()


def _spoken_dialogues(batch: SampleBatch, agent: int) -> tuple[int, ...]:
    """The trees in which the agent gave a usable reply."""
    return tuple(
        index
        for index, tree in enumerate(batch.trees)
        if (tree.acted_NA[:, agent] & tree.usable_NA[:, agent]).any()
    )


def ei(
    rule: RolloutRule,
    replace: Schedule = NEVER,
    *,
    loss: Losses = BY_IMITATION,
    batch_size: int | None = None,
) -> Trainer[Agents]:
    """Supervised rows from rollouts without branching.

    Args:
        rule: The rollouts that an agent imitates, by its returns.
        replace: The share of rollouts from which a verifier learns the true label instead of its
            own last message.
        loss: Of the rows, one imitated reply each.
        batch_size: Datapoints of an iteration; None: as many as the run's parameters say.  One
            dialogue tells less about a problem than a tree does, so EI wants more problems.
    """

    def select(batch: SampleBatch, agent: int, key: Key) -> tuple[SelectedRollout, ...]:
        # In merlin_arthur only one of the provers speaks.  The other has nothing to imitate, and a
        # draw that falls on it is lost; and so is one of a game whose answer was not checked.
        trees = [
            tree
            for tree in _spoken_dialogues(batch, agent)
            if (tree, agent) not in batch.off_policy
            and "unchecked" not in batch.trees[tree].status_N
        ]
        returns = [_return(batch, tree, agent) for tree in trees]
        # A prover has no true label to learn.
        share = replace(batch.iteration) if batch.protocol.is_verifier(agent) else 0.0
        picked, replaced = with_true_labels(returns, rule, share, key)
        return (
            *(SelectedRollout(trees[index], agent, returns[index]) for index in picked),
            *(
                SelectedRollout(trees[index], agent, returns[index], replaced=True)
                for index in replaced
            ),
        )

    def update(batch: SampleBatch, trained: Agents, key: Key) -> Update[Agents]:
        rollouts = tuple(
            rollout
            for agent in trained
            for rollout in select(batch, agent, fold_in(key, "agent", agent))
        )
        rows = {
            group.name: tuple(
                row
                for rollout in rollouts
                if rollout.agent in group.agents
                for row in _rows(batch, rollout)
            )
            for group in batch.groups
        }
        return Update(rows, trained, loss, selection=Selection(rollouts=rollouts))

    return Trainer(trained_agents, lambda trained, turns: 1, update, lambda trained: batch_size)


def _dialogue(batch: SampleBatch, tree: int) -> tuple[int, ...]:
    """The nodes of a tree of one branch, after its root."""
    # Fails on a tree that branches, which this trainer never grows: which of its dialogues to
    # imitate would be a question that the rules here do not answer.
    (leaf,) = leaves_of(batch.trees[tree])
    return line_to(batch.trees[tree], leaf)


def _return(batch: SampleBatch, tree: int, agent: int) -> float:
    reward_N = batch.trees[tree].reward_NA[:, agent]
    return fsum(float(reward_N[node]) for node in _dialogue(batch, tree))


def _rows(batch: SampleBatch, rollout: SelectedRollout) -> Iterator[Row]:
    """A row for each usable reply of the agent; the last one is the true label if replaced."""
    utterances_N = batch.trees[rollout.tree].utterances_N
    replies = [
        (node, utterance)
        for node in _dialogue(batch, rollout.tree)
        for utterance in utterances_N[node]
        if utterance.agent == rollout.agent
    ]
    # A row for each usable reply, on the chat that it replied to.  Whole dialogues, as the *nip*
    # library trains on, would teach the invalid replies among them, too.
    for node, utterance in replies:
        if rollout.replaced and node == replies[-1][0]:
            tree, point = batch.trees[rollout.tree], batch.datapoint(rollout.tree)
            label = label_at(tree, node, point)
            if label is None:  # nobody knows which verdict would be right
                continue
            verdict = f"Decision: {strongest(batch.protocol.spectrum, label).text}"
            yield batch.imitation_row(rollout.tree, node, rollout.agent, verdict)
        elif utterance.error is None and utterance.raw.strip():
            yield batch.imitation_row(rollout.tree, node, rollout.agent)
