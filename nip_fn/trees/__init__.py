"""Trees of replies: growth, arrays, values and rollouts.

Growth and the usual backups are functions of `nip_fn` itself: `grow`, `grow_many`, `agrow`,
`mean_children`, `discounted`.  Here are

    arrays             flatten, children_of, leaves_of
    backups            Backup, mean_leaves, map_rewards, by_probability
    games of a tree    Rollout, leaf_games, leaf_probabilities, dialogue_of
    growth by hand     new_tree, pending_requests, insert, node_at, GameTree, Node, ReplyRequest,
                       ReplyArrival
    samplers           BatchSampler, AsyncSampler
"""

from nip_fn.trees.backup import Backup, by_probability, map_rewards, mean_leaves
from nip_fn.trees.grow import AsyncSampler, BatchSampler, insert, new_tree
from nip_fn.trees.node import GameTree, Node, ReplyArrival, ReplyRequest, node_at, pending_requests
from nip_fn.trees.rollouts import Rollout, dialogue_of, leaf_games, leaf_probabilities
from nip_fn.trees.tree import children_of, flatten, leaves_of

__all__ = [
    "AsyncSampler",
    "Backup",
    "BatchSampler",
    "GameTree",
    "Node",
    "ReplyArrival",
    "ReplyRequest",
    "Rollout",
    "by_probability",
    "children_of",
    "dialogue_of",
    "flatten",
    "insert",
    "leaf_games",
    "leaf_probabilities",
    "leaves_of",
    "map_rewards",
    "mean_leaves",
    "new_tree",
    "node_at",
    "pending_requests",
]
