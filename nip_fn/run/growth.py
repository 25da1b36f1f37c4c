"""The growth of one tree from the replies that were recorded for it."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import reset
from nip_fn.game.protocol import has_answers
from nip_fn.metrics.forest import tree_stats
from nip_fn.run.digest import tree_digest
from nip_fn.run.events import Checked, Replied
from nip_fn.run.forest import FinishedTree
from nip_fn.trees.grow import Rules, insert_all, insert_label
from nip_fn.trees.node import GameTree, Node, ReplyRequest, num_waiting_at, pending_checks
from nip_fn.trees.packed import pack
from nip_fn.trees.tree import flatten, with_packed_rounds


class Grown(NamedTuple):
    """A tree that has grown, and what it asks for next.

    tree: the tree, finished if it waits for nothing.
    requests: for replies.
    answers: to be checked.
    """

    tree: GameTree | FinishedTree
    requests: tuple[ReplyRequest, ...]
    answers: tuple[str, ...]


def grow_tree(
    rules: Rules, datapoint: Datapoint, tree: GameTree, events: Iterable[Replied | Checked]
) -> Grown:
    """The tree with these replies and labels in it.

    Nothing but the arguments matters, so the trees of a stage can be grown in any order, and in
    several processes.

    Args:
        rules: The rules by which the tree grows.
        datapoint: The problem that it is about.
        tree: The tree so far.
        events: Replies to requests of this tree and checks of answers in it, in the order in which
            they came.

    Raises:
        ValueError: Nothing waits for one of them.
    """
    episode = reset(datapoint, tree.key)
    root, num_waiting, opened = tree.root, tree.num_waiting, tuple[ReplyRequest, ...]()
    checking = pending_checks(root) if has_answers(rules.protocol) else ()
    for event in events:
        if isinstance(event, Checked):
            root, requests = insert_label(rules, root, episode, event.answer, event.label)
            num_waiting, opened = _num_waiting(root), (*opened, *requests)
            continue
        request = ReplyRequest(
            event.path, event.agent, tuple(index for index, _ in event.completions), event.attempt
        )
        completions = tuple(completion for _, completion in event.completions)
        grown, requests = insert_all(rules, root, episode, request, completions)
        num_waiting += num_waiting_at(grown, event.path) - num_waiting_at(root, event.path)
        root, opened = grown, (*opened, *requests)
    tree = replace(tree, root=root, num_waiting=num_waiting)
    answers = tuple(
        answer
        for answer in (pending_checks(root) if has_answers(rules.protocol) else ())
        if answer not in checking
    )
    return Grown(tree if num_waiting else finish_tree(datapoint, tree), opened, answers)


def _num_waiting(node: Node) -> int:
    """The number of empty slots at the node and below it."""
    empty = sum(slot.said is None for slot in node.slots)
    return empty + sum(map(_num_waiting, node.children))


def finish_tree(datapoint: Datapoint, tree: GameTree) -> FinishedTree:
    """The tree, packed, with all that the end of its stage needs of it."""
    arrays, packed = flatten(tree), pack(tree)
    return FinishedTree(
        packed=packed,
        digest=tree_digest(tree),
        arrays=with_packed_rounds(arrays, packed),
        stats=tree_stats(datapoint, arrays),
    )
