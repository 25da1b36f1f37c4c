"""Trainers as values: pure functions that branch, select and build training rows.

A trainer has the shape of an optax transformation: `init` makes its state, `update` turns the trees
of an iteration into training rows and the next state.  `compose` makes new ones of old ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from nip_fn.game.chat import Chat
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, Utterance
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key
from nip_fn.select.pairs import DecisionPoint, Pair, Pairs
from nip_fn.select.rollouts import SelectedRollout
from nip_fn.training.groups import Group
from nip_fn.training.losses import Loss
from nip_fn.training.rows import IMITATION, PREFERENCE, Row, imitated
from nip_fn.trees.grow import Turn
from nip_fn.trees.tree import Tree, episode_at

S = TypeVar("S")

Groups = tuple[Group, ...]
Rows = tuple[Row, ...]
# One loss for all groups, or each group's by its name.
Losses = Loss | Mapping[str, Loss]


ChatAt = Callable[[Datapoint, Episode, int], Chat]


# All that a trainer may look at, as values: neither a run nor its parameters are needed to call a
# trainer on the trees of a recording, of a notebook, or of a script.
class SampleBatch(msgspec.Struct, frozen=True):
    """The trees that were sampled in an iteration.

    protocol: the game that the trees are trees of.
    chat: (datapoint, game so far, agent) -> the chat to which the agent replies next.
    groups: the model groups, as they were when they sampled.
    datapoints: those of the iteration; `Tree.datapoint_index` is an index into them.
    trees: the grown trees.
    iteration: counted from 0.
    off_policy: (tree, agent) for each tree in which an earlier model or a script played the agent's
        part: these replies are not its present model's, and not to be learnt from.

    Raises:
        ValueError: A tree is one of another game.
    """

    protocol: Protocol
    chat: ChatAt
    groups: Groups
    datapoints: tuple[Datapoint, ...]
    trees: tuple[Tree, ...]
    iteration: int = 0
    off_policy: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        """Refuse trees of another game: their rows would get this one's prompts."""
        for index, tree in enumerate(self.trees):
            if tree.protocol != self.protocol.name:
                raise ValueError(
                    f"tree {index} is one of {tree.protocol!r}, in a batch of "
                    f"{self.protocol.name!r}: give it the protocol that its trees were grown by"
                )

    def __repr__(self) -> str:
        """The batch in a line."""
        return f"SampleBatch(iteration {self.iteration}, {len(self.trees)} trees)"

    def datapoint(self, tree: int) -> Datapoint:
        """The datapoint that a tree is about."""
        return self.datapoints[self.trees[tree].datapoint_index]

    def episode(self, tree: int, node: int) -> Episode:
        """The game at a node of a tree."""
        return episode_at(self.trees[tree], node, self.datapoint(tree))

    def prompt(self, tree: int, node: int, agent: int) -> Chat:
        """The chat to which the agent replied at a node."""
        return self.chat(self.datapoint(tree), self.episode(tree, node), agent)

    def utterance(self, tree: int, node: int, agent: int) -> Utterance:
        """The agent's reply on the way to `node` from its parent."""
        return next(
            utterance
            for utterance in self.trees[tree].utterances_N[node]
            if utterance.agent == agent
        )

    def preference_row(self, pair: Pair) -> Row:
        """A pair as a row, on exactly the chat that both replies were given to."""
        nodes = (pair.chosen, pair.rejected)
        return self._row(pair.tree, pair.parent, pair.agent, nodes, PREFERENCE)

    def sibling_row(self, point: DecisionPoint, weights: Sequence[float]) -> Row:
        """The `[C]` replies at a decision point with a weight each, on the chat they reply to."""
        nodes = tuple(nodes[0] for nodes in point.nodes_C)
        return self._row(point.tree, point.parent, point.agent, nodes, tuple(weights))

    def imitation_row(self, tree: int, node: int, agent: int, reply: str | None = None) -> Row:
        """The agent's reply on the way to `node` as a row to imitate, or `reply` in its place."""
        parent = int(self.trees[tree].parent_N[node])
        if reply is not None:
            return imitated(self.prompt(tree, parent, agent), reply)
        return self._row(tree, parent, agent, (node,), IMITATION)

    def _row(
        self, tree: int, parent: int, agent: int, nodes: Sequence[int], weights: tuple[float, ...]
    ) -> Row:
        # The same function builds the chats to sample from, so the two cannot differ; those that
        # the *nip* library rebuilds can, where an order depends on Python's string hashes.
        utterances = [self.utterance(tree, node, agent) for node in nodes]
        tokens = tuple(utterance.tokens for utterance in utterances)
        return Row(
            self.prompt(tree, parent, agent),
            # The raw text, not what was understood of it: it is what the model would have to write
            # again.
            tuple(utterance.raw for utterance in utterances),
            weights,
            tokens if any(tokens) else (),
        )


class Selection(NamedTuple):
    """The pairs and rollouts that an update selected, to be counted and shown.

    pairs: preference pairs, by tree and node.
    rollouts: rollouts to imitate.
    """

    pairs: Pairs = ()
    rollouts: tuple[SelectedRollout, ...] = ()


class Update(NamedTuple, Generic[S]):
    """The outcome of a trainer's update.

    rows: training rows by the name of their group.
    state: the trainer's next state.
    loss: the loss that the rows are trained on by; a run ends where it cannot take one of them.
    metrics: (name, value) pairs to log with the iteration.
    selection: what was selected from the trees.
    """

    rows: Mapping[str, Rows]
    state: S
    loss: Losses
    metrics: tuple[tuple[str, float], ...] = ()
    selection: Selection = Selection()

    def loss_of(self, group: str) -> Loss:
        """The loss by which a group is trained."""
        return self.loss[group] if isinstance(self.loss, Mapping) else self.loss

    def __repr__(self) -> str:
        """The update in a line: rows by group."""
        rows = ", ".join(
            f"{name}: {len(group_rows)} rows" for name, group_rows in self.rows.items()
        )
        return f"Update({rows})"


# A record of functions and not a base class: `compose` wraps and replaces them one by one, for
# which inheritance would need a class for every combination.
class Trainer(NamedTuple, Generic[S]):
    """A way to learn from sampled trees.

    init: groups -> the state before the first iteration.
    branching: (state, turns of all movers) -> the replies that each mover gives at a node.
    update: (sampled trees, state, key) -> rows, next state, metrics; the key is consumed.
    batch_size: state -> the datapoints of the iteration; None: as many as the run's parameters say.
    """

    init: Callable[[Groups], S]
    branching: Callable[[S, tuple[Turn, ...]], int]
    update: Callable[[SampleBatch, S, Key], Update[S]]
    batch_size: Callable[[S], int | None] = lambda state: None


def trained_agents(groups: Groups) -> tuple[int, ...]:
    """The agents of the groups that are trained, in their order."""
    return tuple(sorted(agent for group in groups if group.trainable for agent in group.agents))


def branching_of(
    k: int | Callable[[Turn], int], frozen_k: int, agents: tuple[int, ...], turns: tuple[Turn, ...]
) -> int:
    """The replies that each mover gives at a node: as many as the one that gives the most.

    Args:
        k: Replies of an agent: a number, or a function of its turn.
        frozen_k: With a number, those of agents that are not trained.
        agents: Those that are trained.
        turns: Of all movers.
    """

    def replies(turn: Turn) -> int:
        if isinstance(k, int):
            return k if turn.agent in agents else frozen_k
        return k(turn._replace(trained=turn.trained and turn.agent in agents))

    return max(map(replies, turns))
