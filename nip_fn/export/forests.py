"""The trees of a run as records that a page can show."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from nip_fn.config.trainers import backup_of
from nip_fn.export.curves import is_right, percent, signed
from nip_fn.export.svg import Colours, draw_trees, value_bins
from nip_fn.export.views import PageLimits, ReplyView, Value, end_of, letters_of, view_reply
from nip_fn.game.bounds import reward_bounds
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import decision_of
from nip_fn.run.replay import Replayed, StageForest
from nip_fn.select.pairs import Pair
from nip_fn.trees.rollouts import leaf_games
from nip_fn.trees.tree import Tree, children_of, label_at

# Of trees that a browser opens at a time, in a second or so.
NODES_AT_ONCE = 6_000


class Mark(NamedTuple):
    """A reply that was chosen, or rejected, in pairs of an agent."""

    chosen: bool
    letter: str  # of the agent
    times: int


class NodeView(NamedTuple):
    """A node of a tree.

    replies: those that led to it.
    values: expected rewards, by agent.
    marks: in pairs.
    end: (kind, words) if the game ends here; kinds as of `game_end`.
    copies: ends with the same words, rewards and no marks that are shown as this one.
    children: in their order.
    """

    replies: tuple[ReplyView, ...]
    values: tuple[Value, ...]
    marks: tuple[Mark, ...]
    end: tuple[str, str] | None
    copies: int
    children: tuple["NodeView", ...]


class TreeView(NamedTuple):
    """A tree, ready to be shown."""

    id: str
    datapoint: Datapoint
    nodes: int
    games: int
    right: str
    pairs: int
    imitated: tuple[str, ...]  # the agents that learn from it as it is
    pictures: tuple[tuple[str, Markup], ...]  # (agent, the tree in the colours of its values)
    root: NodeView


class ForestView(NamedTuple):
    """The trees of an iteration, as many as a page has room for.

    total, nodes: of the iteration.
    trees: those that are shown.
    packs: those that are held compressed, as many in each as are opened at a time.
    """

    iteration: int
    total: int
    nodes: int
    trees: tuple[TreeView, ...]
    packs: tuple[tuple[TreeView, ...], ...] = ()

    @property
    def held(self) -> int:
        """The number of trees in the page."""
        return len(self.trees) + sum(map(len, self.packs))

    @property
    def is_plain(self) -> bool:
        """True if all trees are shown."""
        return len(self.trees) == self.total


def view_forests(id: str, replayed: Replayed, limits: PageLimits) -> tuple[ForestView, ...]:
    """The first trees of each iteration; all iterations have an equal part of the limits."""
    stages = [stage for stage in replayed.stages if stage.stage == "sample"]
    total = sum(nodes_of(stage.batch.trees) for stage in stages)
    views, shown, packed = [], limits.nodes, limits.packed
    for index, stage in enumerate(stages):
        trees, remaining = stage.batch.trees, len(stages) - index
        first = fitting(trees, 0, total if total <= limits.whole else shown // remaining)
        rest = fitting(trees, first.stop, packed // remaining, least=0)
        shown -= nodes_of(trees[: first.stop])
        packed -= nodes_of(trees[rest.start : rest.stop])
        views.append(view_forest(id, stage, first, chunks(trees, rest)))
    return tuple(views)


def nodes_of(trees: Sequence[Tree]) -> int:
    """The number of nodes of all the trees."""
    return sum(tree.num_nodes for tree in trees)


def fitting(trees: Sequence[Tree], start: int, room: int, least: int = 1) -> range:
    """The trees from `start` on that have so many nodes together, `least` of them in any case."""
    stop = min(start + least, len(trees))
    total = nodes_of(trees[start:stop])
    while stop < len(trees) and (total := total + trees[stop].num_nodes) <= room:
        stop += 1
    return range(start, stop)


def chunks(trees: Sequence[Tree], indices: range) -> tuple[range, ...]:
    """The indices of trees, as many at a time as a browser opens at once."""
    ranges, start = [], indices.start
    while start < indices.stop:
        ranges.append(fitting(trees[: indices.stop], start, NODES_AT_ONCE))
        start = ranges[-1].stop
    return tuple(ranges)


def view_forest(
    id: str, stage: StageForest, shown: Sequence[int], packs: Sequence[Sequence[int]] = ()
) -> ForestView:
    """The trees of an iteration that have these indices."""
    pairs: dict[int, list[Pair]] = defaultdict(list)
    for pair in stage.selection.pairs:
        pairs[pair.tree].append(pair)

    def views(indices: Sequence[int]) -> tuple[TreeView, ...]:
        return tuple(_tree(id, stage, index, pairs[index]) for index in indices)

    return ForestView(
        iteration=stage.iteration,
        total=len(stage.batch.trees),
        nodes=nodes_of(stage.batch.trees),
        trees=views(shown),
        packs=tuple(map(views, packs)),
    )


def _tree(id: str, stage: StageForest, index: int, pairs: Sequence[Pair]) -> TreeView:
    batch, tree = stage.batch, stage.batch.trees[index]
    protocol = batch.protocol
    value_NA = backup_of(stage.params.malt)(tree)
    bins = [
        value_bins(value_NA[:, agent], reward_bounds(protocol, agent))
        for agent in range(len(protocol.agents))
    ]
    names = [agent.name for agent in protocol.agents]
    games = leaf_games(tree, stage.datapoint(index))
    pairs_A = [[pair for pair in pairs if pair.agent == agent] for agent in range(len(names))]
    pictures = draw_trees(
        tree,
        f"{id}-lines-{stage.iteration}-{index}",
        [
            Colours(
                f"Expected reward of {name} at each node; {len(agent_pairs)} pairs",
                bins[agent],
                frozenset(pair.chosen for pair in agent_pairs),
                frozenset(pair.rejected for pair in agent_pairs),
            )
            for agent, (name, agent_pairs) in enumerate(zip(names, pairs_A, strict=True))
        ],
    )
    return TreeView(
        id=f"{id}-tree-{stage.iteration}-{index}",
        datapoint=stage.datapoint(index),
        nodes=tree.num_nodes,
        games=len(games),
        right=percent(fsum(map(is_right, games)) / len(games)),
        pairs=len(pairs),
        imitated=tuple(
            names[rollout.agent] for rollout in stage.selection.rollouts if rollout.tree == index
        ),
        pictures=tuple(zip(names, pictures, strict=True)),
        root=_nodes(stage, index, tree, value_NA, bins, pairs),
    )


def _nodes(
    stage: StageForest,
    index: int,
    tree: Tree,
    value_NA: np.ndarray[Any, np.dtype[np.float64]],
    bins: Sequence[Sequence[int]],
    pairs: Sequence[Pair],
) -> NodeView:
    """The root, with all that is below it."""
    batch, point = stage.batch, stage.datapoint(index)
    params, protocol = stage.params, batch.protocol
    letters = letters_of(protocol)
    marked: Counter[tuple[int, bool, int]] = Counter()
    for pair in pairs:
        marked[pair.chosen, True, pair.agent] += 1
        marked[pair.rejected, False, pair.agent] += 1
    marks: dict[int, list[Mark]] = defaultdict(list)
    for (node, chosen, agent), times in marked.items():
        marks[node].append(Mark(chosen, letters[agent], times))
    values = value_NA.tolist()
    children = children_of(tree)

    def build(node: int) -> NodeView:
        status, utterances = tree.status_N[node], tree.utterances_N[node]
        decision = decision_of(utterances) if status == "decided" else None
        end = None if children[node] else end_of(status, decision, label_at(tree, node, point))
        return NodeView(
            replies=tuple(view_reply(params, protocol, utterance) for utterance in utterances),
            values=tuple(
                Value(letters[agent], signed(value), bins[agent][node])
                for agent, value in enumerate(values[node])
            ),
            marks=tuple(marks.get(node, ())),
            end=end,
            copies=1,
            children=tuple(_merged(build(child) for child in children[node])),
        )

    return build(0)


def _merged(nodes: Iterator[NodeView]) -> Iterator[NodeView]:
    """The nodes, equal ends without marks as one with the number of its copies."""
    ends: Counter[NodeView] = Counter()
    kept: list[NodeView] = []
    for node in nodes:
        if node.end and not node.marks:
            ends[node] += 1
            if ends[node] > 1:
                continue
        kept.append(node)
    return (node._replace(copies=ends[node]) if ends[node] > 1 else node for node in kept)
