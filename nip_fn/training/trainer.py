"""What a trainer is: pure functions that say how to branch, what to select, what to train on."""

from collections.abc import Callable
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, reset
from nip_fn.game.protocol import Move
from nip_fn.keys import Key
from nip_fn.params.run import HyperParameters
from nip_fn.select.pairs import Pair
from nip_fn.select.rollouts import SelectedRollout
from nip_fn.training.groups import Group
from nip_fn.training.jobs import TrainingRow
from nip_fn.trees.grow import Node, Path, node_at

Selection = tuple[Pair | SelectedRollout, ...]


class SampleBatch(NamedTuple):
    """What the sampling of an iteration came to."""

    params: HyperParameters
    iteration: int
    datapoints: tuple[Datapoint, ...]  # tree i is about datapoint i modulo their number
    forest: tuple[Node, ...]
    keys: tuple[Key, ...]  # of the games, one a tree

    def datapoint(self, tree: int) -> Datapoint:
        """What a tree is about."""
        return self.datapoints[tree % len(self.datapoints)]

    def episode(self, tree: int, path: Path) -> Episode:
        """The game at a node of a tree."""
        start = reset(self.datapoint(tree), self.keys[tree])
        return node_at(self.forest[tree], start, path)[1]


class Trainer(NamedTuple):
    """How the agents learn from an iteration; composition, not inheritance, makes new ones."""

    name: str
    # (parameters, who moves) -> how many replies each mover gives there
    branching: Callable[[HyperParameters, tuple[Move, ...]], int]
    # (the grown trees, key) -> what was selected; the key is consumed
    select: Callable[[SampleBatch, Key], Selection]
    # (the grown trees, what was selected in them, group) -> the rows to train the group on
    rows: Callable[[SampleBatch, Selection, Group], tuple[TrainingRow, ...]]


Schedule = Callable[[int], Trainer]  # iteration -> who trains in it


def sequence(first: Trainer, num_iterations: int, then: Trainer) -> Schedule:
    """`first` trains in so many iterations, `then` in all that follow."""
    return lambda iteration: first if iteration < num_iterations else then
