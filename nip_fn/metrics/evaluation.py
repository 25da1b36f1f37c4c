"""Accuracy of verifiers without any training, for one test of every protocol and model.

The two measures are those of Hammond and Adam-Day (2024, "Neural Interactive Proofs"): the mean
accuracy of the verifier, and the share of datapoints on which it always fails.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nip_fn.game.datapoint import Datapoint
from nip_fn.metrics.formulas import LEAST_GAMES, wilson_interval
from nip_fn.metrics.inference import Estimate, clustered_share
from nip_fn.metrics.stage import verdict
from nip_fn.trees.rollouts import dialogue_of
from nip_fn.trees.tree import Tree


class Verdicts(NamedTuple):
    """The right decisions in the games about each datapoint."""

    ids: tuple[str, ...]  # of the datapoints
    right: tuple[int, ...]  # games about each that were decided as its label says
    games: int  # about each

    @property
    def accuracies(self) -> list[float]:
        """The accuracy in the games about each datapoint."""
        return [count / self.games for count in self.right]


def verdicts(datapoints: Sequence[Datapoint], trees: Sequence[Tree]) -> Verdicts:
    """The right decisions in the dialogues of a test, one of each tree, by datapoint."""
    right = [0] * len(datapoints)
    for tree in trees:
        game = dialogue_of(tree, datapoints[tree.datapoint_index])
        right[tree.datapoint_index] += verdict(game) == game.label
    ids = tuple(point.id for point in datapoints)
    # A test plays every datapoint equally often, so the number of games about each is exact.
    return Verdicts(ids, tuple(right), len(trees) // len(datapoints) if datapoints else 0)


def accuracy(verdicts: Verdicts) -> Estimate:
    """The share of games that were decided as the label says, with `clustered_share`'s interval."""
    games = len(verdicts.right) * verdicts.games
    return clustered_share(((1.0, share) for share in verdicts.accuracies), games)


def always_fails(verdicts: Verdicts) -> Estimate | None:
    """The share of datapoints about which no game was decided as the label says (Wilson).

    None if there are fewer than eight games about each.
    """
    if verdicts.games < LEAST_GAMES:
        return None
    failed, number = verdicts.accuracies.count(0.0), len(verdicts.right)
    return Estimate(failed / number, *wilson_interval(failed, number))
