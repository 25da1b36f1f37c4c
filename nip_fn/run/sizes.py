"""Limits on the size of a run: beyond them no machine finishes it, and no memory holds it.

They are wide: a run that is refused here could never have ended.  A recording is held to them, too,
so that forged sizes cost neither time nor memory.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nip_fn.config.data_checks import needed_splits
from nip_fn.config.trainers import num_replies_of
from nip_fn.errors import Problem
from nip_fn.game.protocol import Protocol
from nip_fn.keys import key
from nip_fn.params.names import TREE_TRAINERS
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import DatasetInfo
from nip_fn.trees.grow import Rules
from nip_fn.trees.size import levels

MOST_ROUNDS = 100  # of a dialogue; no context holds more, and trees are walked by recursion
MOST_POSITIONS = 10_000_000  # of one tree, if nobody decides early
MOST_REPLIES = 1_000  # of an agent at one position
MOST_GAMES = 1_000_000  # of one stage
MOST_DATAPOINTS = 1_000_000  # that a run draws from
MOST_ITERATIONS = 100_000


def data_problems(params: HyperParameters, dataset: DatasetInfo) -> Iterator[Problem]:
    """The reasons why a run with these parameters cannot use that data, or never ends with it."""
    for split in needed_splits(params):
        if not dataset.size(split):
            yield Problem(
                f"{dataset.name} has no datapoints in {split!r}",
                "dataset",
                "choose other data (--dataset), or other shares (dataset_options)",
            )
    yield from size_problems(params, dataset)


class _Size(NamedTuple):
    address: str
    number: int
    most: int
    unit: str


def size_problems(params: HyperParameters, dataset: DatasetInfo) -> Iterator[Problem]:
    """The reasons why a run with these parameters and that data is too large ever to end."""
    sizes = tuple(_sizes(params, dataset))
    for size in sizes:
        if size.number > size.most:
            yield Problem(
                f"{size.number:,} {size.unit} are more than a run can have",
                size.address,
                f"set it to at most {size.most:,}",
            )
    # Trees are counted round by round, so of those of sane sizes only.
    if all(size.number <= size.most for size in sizes):
        yield from _tree_problems(params, protocol_of(params))


def _sizes(params: HyperParameters, dataset: DatasetInfo) -> Iterator[_Size]:
    rl, ei, options = params.rl, params.ei, params.dataset_options
    trained = min(dataset.train_size, options.max_train_size or dataset.train_size)
    held_out = dataset.size(params.test_dataset_split)
    tested = min(held_out, options.max_test_size or held_out)
    yield _Size("dataset_options.max_train_size", trained, MOST_DATAPOINTS, "datapoints")
    yield _Size("dataset_options.max_test_size", tested, MOST_DATAPOINTS, "datapoints")
    repeated = MOST_GAMES // max(tested, 1)
    yield _Size("rl.num_test_iterations", rl.num_test_iterations, repeated, "tests of each problem")
    yield _Size("rl.num_iterations", rl.num_iterations, MOST_ITERATIONS, "iterations")
    yield _Size("rl.rollouts_per_iteration", rl.rollouts_per_iteration or 0, MOST_GAMES, "games")
    yield _Size("rl.frames_per_batch", rl.frames_per_batch or 0, MOST_GAMES, "rounds")
    yield _Size("ei.rollouts_per_iteration", ei.rollouts_per_iteration or 0, MOST_GAMES, "games")
    yield _Size(
        "malt.num_responses_per_timestep",
        params.malt.num_responses_per_timestep,
        MOST_REPLIES,
        "replies at a position",
    )
    for agent in params.agents:
        for field in ("num_responses", "num_idle_responses"):
            number = getattr(agent, field)
            most = max(number, default=0) if isinstance(number, tuple) else number or 0
            yield _Size(f"agents.{agent.name}.{field}", most, MOST_REPLIES, "replies at a position")
    protocol = protocol_of(params)
    yield _Size(_rounds_of(protocol, params), protocol.max_message_rounds, MOST_ROUNDS, "rounds")


def _rounds_of(protocol: Protocol, params: HyperParameters) -> str:
    """The address of the protocol's length; one of the user's own has no section."""
    section = f"{protocol.name}_protocol"
    return f"{section}.max_message_rounds" if hasattr(params, section) else "interaction_protocol"


def _tree_problems(params: HyperParameters, protocol: Protocol) -> Iterator[Problem]:
    rounds = _too_large_after(params, protocol)
    if rounds is not None:
        yield Problem(
            f"after {rounds + 1} rounds a tree can have more than {MOST_POSITIONS:,} positions",
            _rounds_of(protocol, params),
            f"set it to at most {rounds}, or let agents give fewer replies "
            "(malt.num_responses_per_timestep)",
        )


def _too_large_after(params: HyperParameters, protocol: Protocol) -> int | None:
    """The round (counted from 0) after which a tree can be too large; None if there is none."""
    # Expert Iteration does not branch.  A trainer of the user's own is trusted: a recording can
    # name it, but does not bring it along.
    if params.trainer not in TREE_TRAINERS:
        return None
    replies = num_replies_of(params)
    rules = Rules(
        protocol,
        lambda turns: max(map(replies, turns), default=1),
        simultaneous_branching=params.malt.simultaneous_branching,
    )
    positions = 0.0
    for round_id, level in enumerate(levels(rules, key(params.seed))):
        positions += level.number
        if positions > MOST_POSITIONS:
            return round_id - 1
    return None
