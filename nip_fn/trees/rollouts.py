"""The complete games of a tree, and batches of games without branching."""

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import Decision
from nip_fn.game.episode import Round, final_decision, label_after
from nip_fn.game.protocol import Protocol, Status
from nip_fn.keys import Key, fold_in
from nip_fn.trees.grow import Policy, Rules, batched, grow_many
from nip_fn.trees.tree import NO_PARENT, ROOT, Tree, leaves_of


class Rollout(NamedTuple):
    """One game, from the root of a tree to one of its leaves.

    datapoint: the problem and solution that the game is about.
    key: of the game.
    rounds: the utterances of each round.
    rewards: `[A]` for each round.
    status: the status of the game at the leaf; "open" if the tree still waits for replies there.
    """

    datapoint: Datapoint
    key: Key
    rounds: tuple[Round, ...]
    rewards: tuple[tuple[float, ...], ...]
    status: Status

    @property
    def decision(self) -> Decision | None:
        """The decision that ended the game; None if it ended otherwise."""
        return final_decision(self.status, self.rounds)

    @property
    def label(self) -> int | None:
        """The label at the end of the game: of the answer in it, or of its datapoint."""
        return label_after(self.datapoint.label, self.rounds)

    @property
    def returns(self) -> tuple[float, ...]:
        """`[A]` the sum of each agent's rewards over the rounds, exactly rounded."""
        # `fsum`, as everywhere that rewards are added: a plain sum of the same rewards in another
        # order may differ in its last bit.
        return tuple(map(fsum, zip(*self.rewards, strict=True)))

    @property
    def was_cut(self) -> bool:
        """True if a reply of the game was cut at its token limit."""
        return any(utterance.token_limit for turn in self.rounds for utterance in turn)


def leaf_games(tree: Tree, datapoint: Datapoint) -> tuple[Rollout, ...]:
    """All games of a tree about `datapoint`, one for each leaf, left to right."""
    turns: list[tuple[Round, ...]] = [()]  # on the way to each node, the root left out
    rewards: list[tuple[tuple[float, ...], ...]] = [()]
    received = [tuple(reward) for reward in tree.reward_NA.tolist()]
    # One pass is enough, because a parent stands before its children: each node lengthens what is
    # known of its parent, and nothing is walked once for each leaf.
    for node, parent in enumerate(tree.parent_N.tolist()):
        if node != ROOT:
            turns.append((*turns[parent], tree.utterances_N[node]))
            rewards.append((*rewards[parent], received[node]))
    return tuple(
        Rollout(datapoint, tree.key, turns[leaf], rewards[leaf], tree.status_N[leaf])
        for leaf in leaves_of(tree)
    )


def dialogue_of(tree: Tree, datapoint: Datapoint) -> Rollout:
    """The game of the first replies alone: a plain dialogue of the policy, however a tree branches.

    Unlike its `leaf_games`, which share their beginnings, the dialogues of several trees are
    independent, and can be counted.
    """
    return leaf_games(tree, datapoint)[0]


def leaf_probabilities(tree: Tree) -> tuple[float, ...]:
    """The probability of each of the `leaf_games`, if siblings are equally likely; 1 in all.

    A mean over games with these weights estimates without bias what the policy that sampled the
    tree does in plain dialogues: each node's replies are drawn from it independently.
    """
    children = [0] * tree.num_nodes
    for parent in tree.parent_N[1:].tolist():
        children[parent] += 1
    denominators = [1] * tree.num_nodes  # whole numbers, whose products are exact
    for node, parent in enumerate(tree.parent_N.tolist()):
        if parent != NO_PARENT:
            denominators[node] = denominators[parent] * children[parent]
    return tuple(1 / denominators[leaf] for leaf in leaves_of(tree))


def play(
    protocol: Protocol,
    datapoints: Sequence[Datapoint],
    policy: Policy,
    *,
    key: Key,
    num: int = 1,
) -> tuple[Rollout, ...]:
    """`num` games about each datapoint, all of the first before those of the second.

    A map of one game over datapoints and keys: each game has a key of its own, so the result does
    not depend on what else is played.

    Args:
        protocol: The rules of the game.
        datapoints: The problems to play about.
        policy: Every agent's replies: (the problem, the game so far, the agent, key) -> completion.
        key: Consumed.
        num: Games about each datapoint.
    """
    points = [point for point in datapoints for _ in range(num)]
    keys = [fold_in(key, *divmod(game, num)) for game in range(len(points))]
    # One attempt at each reply, so that a call of the policy is a reply of the game.
    trees = grow_many(Rules(protocol), points, batched(policy), keys=keys)
    return tuple(dialogue_of(tree, point) for tree, point in zip(trees, points, strict=True))
