"""All that is known of a run, as one frozen record."""

from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import msgspec

from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, reset
from nip_fn.game.protocol import Move
from nip_fn.keys import Key, fold_in, key
from nip_fn.metrics.formulas import Metrics
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import DatasetInfo
from nip_fn.select.pairs import Pair
from nip_fn.select.rollouts import SelectedRollout
from nip_fn.training.groups import Group
from nip_fn.training.jobs import Job, Score, TrainingRow
from nip_fn.training.registry import trainer_of
from nip_fn.training.trainer import SampleBatch, Selection
from nip_fn.trees.grow import Node, Rules

Stage = Literal["start", "test", "sample", "train", "publish", "done"]


class Row(msgspec.Struct, frozen=True, array_like=True):
    """What one stage came to."""

    iteration: int
    stage: Stage
    metrics: Metrics


class JobState(msgspec.Struct, frozen=True, array_like=True):
    """A training under way."""

    job: Job
    created: bool = False
    ended: bool = False
    adapter: str | None = None  # what it left; None until it ended, and where it failed
    report: tuple[tuple[str, float], ...] = ()
    scores: tuple[Score, ...] = ()
    problem: str = ""  # why it failed, or why its adapter was refused
    published: bool = False  # its adapter is served, or refused
    canary: tuple[float, ...] = ()  # scores of the probes under what is served


class Bank(msgspec.Struct, frozen=True, array_like=True):
    """What an iteration gave a group to train on."""

    trainer: str
    group: str
    rows: tuple[TrainingRow, ...]


class RunState(msgspec.Struct, frozen=True):
    """All that is known of a run."""

    params: HyperParameters = HyperParameters()
    dataset: DatasetInfo = DatasetInfo("", "", 0, 0, 0)
    iteration: int = 0
    stage: Stage = "start"
    datapoints: tuple[Datapoint, ...] = ()  # of the stage under way
    forest: tuple[Node, ...] = ()  # the trees of the stage; tree i is about datapoint i modulo
    num_waiting: int = 0  # replies that the forest waits for
    selection: Selection = ()  # of the iteration
    groups: tuple[Group, ...] = ()
    jobs: tuple[JobState, ...] = ()  # of the iteration, by group
    banked: tuple[Bank, ...] = ()  # of all iterations, where later ones train on them, too
    rows: tuple[Row, ...] = ()  # one for each stage that ended
    past: str = ""  # the digest at the end of the last stage
    seconds: tuple[tuple[int, Stage, float], ...] = ()  # of each ended stage; not in the digest
    faults: tuple[str, ...] = ()  # where a record and its derivation disagree; not in it


EMPTY = RunState()


def digest(state: RunState) -> str:
    """A hash of what was derived from the recorded events (32 hexadecimal digits).

    It covers the facts of a run, by value: whatever was drawn, said, heard, decided, rewarded,
    selected and trained, and through `past` every earlier stage.  It leaves out times, and the
    metrics, which are functions of these facts: a later version may compute more of them, or give
    its records more fields, and still derive the digests of an older run.
    """
    facts = (
        "facts-1",  # to be changed with the meaning of what follows
        state.past,
        state.dataset.hash,
        state.iteration,
        state.stage,
        tuple(datapoint.id for datapoint in state.datapoints),
        tuple(map(_node_facts, state.forest)),
        tuple(map(_selection_facts, state.selection)),
        tuple(
            (group.name, group.model, tuple(a.name for a in group.lineage), group.serving)
            for group in state.groups
        ),
        tuple(map(_job_facts, state.jobs)),
    )
    return blake2b(msgspec.msgpack.encode(facts), digest_size=16).hexdigest()


def _node_facts(node: Node) -> tuple[object, ...]:
    said = tuple(
        (s.agent, s.raw, s.messages, s.decision and s.decision.text, s.error, s.attempts, s.model)
        for s in node.turn
    )
    slots = tuple((slot.agent, slot.attempts, slot.said is not None) for slot in node.slots)
    return said, node.reward, node.end, slots, tuple(map(_node_facts, node.children))


def _selection_facts(selected: Pair | SelectedRollout) -> tuple[object, ...]:
    match selected:
        case Pair(tree, parent, agent, chosen, rejected, chosen_value, rejected_value):
            place = (tree, parent, agent, chosen, rejected)
            return place, chosen_value, rejected_value
        case SelectedRollout(tree, agent, reward, replaced):
            return tree, agent, reward, replaced


def _job_facts(under_way: JobState) -> tuple[object, ...]:
    job = under_way.job
    asked = (job.name, job.data_hash, job.start, job.reference, job.seed)
    left = (under_way.adapter, under_way.problem, under_way.published)
    return asked, under_way.created, under_way.ended, left


def stage_key(state: RunState) -> Key:
    """The key of the stage under way."""
    return _stage_key(state.params.seed, state.stage, state.iteration)


@lru_cache(maxsize=64)
def _stage_key(seed: int, stage: Stage, iteration: int) -> Key:
    return fold_in(key(seed), stage, iteration)


def tree_key(state: RunState, tree: int) -> Key:
    """The key of a tree of the stage under way."""
    return fold_in(stage_key(state), "tree", tree)


def rules(state: RunState) -> Rules:
    """How the trees of the stage under way grow: trees to train on, plain dialogues to test."""
    return _rules(state.params, state.iteration, state.stage == "sample")


@lru_cache(maxsize=64)
def _rules(params: HyperParameters, iteration: int, branches: bool) -> Rules:
    trainer = trainer_of(params, iteration)

    def branching(moves: tuple[Move, ...]) -> int:
        return trainer.branching(params, moves) if branches else 1

    return Rules(
        protocol=protocol_of(params),
        branching=branching,
        attempts=tuple(agent.num_invalid_generation_retries for agent in params.agents),
        simultaneous_branching=params.malt.simultaneous_branching,
    )


def is_tested(params: HyperParameters, iteration: int) -> bool:
    """Whether the model after `iteration` trainings is tested."""
    first, last = iteration == 0, iteration == params.rl.num_iterations
    return {
        "none": False,
        "all": True,
        "last": last,
        "first_and_last": first or last,
    }[params.text_rl.test_scheme]


def sample_batch_of(state: RunState) -> SampleBatch:
    """What the sampling under way has come to."""
    keys = tuple(tree_key(state, index) for index in range(len(state.forest)))
    return SampleBatch(state.params, state.iteration, state.datapoints, state.forest, keys)


def datapoint_of(state: RunState, tree: int) -> Datapoint:
    """The datapoint that a tree of the stage is about."""
    return state.datapoints[tree % len(state.datapoints)]


def episode_of(state: RunState, tree: int) -> Episode:
    """The game at the root of a tree of the stage."""
    return reset(datapoint_of(state, tree), tree_key(state, tree))
