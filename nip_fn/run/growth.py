"""The growth of one tree from the replies that were recorded for it."""

from collections.abc import Iterable

from msgspec.structs import replace

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import reset
from nip_fn.metrics.forest import tree_stats
from nip_fn.run.digest import tree_digest
from nip_fn.run.events import Replied
from nip_fn.run.forest import FinishedTree
from nip_fn.trees.grow import Rules, insert_all
from nip_fn.trees.node import GameTree, ReplyRequest, num_waiting_at
from nip_fn.trees.packed import pack
from nip_fn.trees.tree import flatten, with_packed_rounds


def grow_tree(
    rules: Rules, datapoint: Datapoint, tree: GameTree, events: Iterable[Replied]
) -> tuple[GameTree | FinishedTree, tuple[ReplyRequest, ...]]:
    """The tree with these replies in it, finished if it waits for no other; what it asks for next.

    Nothing but the arguments matters, so the trees of a stage can be grown in any order, and in
    several processes.

    Args:
        rules: The rules by which the tree grows.
        datapoint: The problem that it is about.
        tree: The tree so far.
        events: Replies to requests of this tree, in the order in which they came.

    Raises:
        ValueError: Nothing waits for one of them.
    """
    episode = reset(datapoint, tree.key)
    root, num_waiting, opened = tree.root, tree.num_waiting, tuple[ReplyRequest, ...]()
    for event in events:
        request = ReplyRequest(
            event.path, event.agent, tuple(index for index, _ in event.completions), event.attempt
        )
        completions = tuple(completion for _, completion in event.completions)
        grown, requests = insert_all(rules, root, episode, request, completions)
        num_waiting += num_waiting_at(grown, event.path) - num_waiting_at(root, event.path)
        root, opened = grown, (*opened, *requests)
    tree = replace(tree, root=root, num_waiting=num_waiting)
    return (tree if num_waiting else finish_tree(datapoint, tree)), opened


def finish_tree(datapoint: Datapoint, tree: GameTree) -> FinishedTree:
    """The tree, packed, with all that the end of its stage needs of it."""
    arrays, packed = flatten(tree), pack(tree)
    return FinishedTree(
        packed=packed,
        digest=tree_digest(tree),
        arrays=with_packed_rounds(arrays, packed),
        stats=tree_stats(datapoint, arrays),
    )
