"""What a trainer is: pure functions that say how to branch, what to select, what to train on."""

from collections.abc import Callable
from typing import NamedTuple

from nip_fn.data import Datapoint
from nip_fn.finetune import Group, PreferenceRow
from nip_fn.growth import Node
from nip_fn.keys import Key
from nip_fn.pairs import Pair
from nip_fn.params import HyperParameters
from nip_fn.protocols.protocol import Move


class Trainer(NamedTuple):
    """How the agents learn from an iteration; composition, not inheritance, makes new ones."""

    # (parameters, who moves) -> how many replies each mover gives there
    branching: Callable[[HyperParameters, tuple[Move, ...]], int]
    # (parameters, the grown trees, key) -> what was selected; the key is consumed
    select: Callable[[HyperParameters, tuple[Node, ...], Key], tuple[Pair, ...]]
    # (parameters, datapoints, trees, tree keys, selection, group) -> the rows to train on
    rows: Callable[
        [
            HyperParameters,
            tuple[Datapoint, ...],
            tuple[Node, ...],
            tuple[Key, ...],
            tuple[Pair, ...],
            Group,
        ],
        tuple[PreferenceRow, ...],
    ]
