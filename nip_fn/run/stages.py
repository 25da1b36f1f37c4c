"""The stages of a run, as a union of frozen records: each holds what that stage needs, no more."""

from typing import Literal, NamedTuple

import msgspec

from nip_fn.game.datapoint import Datapoint
from nip_fn.keys import Key
from nip_fn.run.forest import Forest
from nip_fn.training.canary import Score
from nip_fn.training.losses import Loss
from nip_fn.training.trainer import Rows, Selection
from nip_fn.training.tuning import Job

StageName = Literal["start", "test", "sample", "train", "publish", "done"]
Purpose = Literal["test", "sample"]


# A union and not one record with optional fields: a state in which trees grow while adapters are
# published cannot be written down, and no field is empty only because it is another stage.
class NotStarted(msgspec.Struct, frozen=True):
    """Before the first event."""

    name: Literal["start"] = "start"


class Fetching(msgspec.Struct, frozen=True):
    """Waiting for the datapoints of a test or of an iteration."""

    name: Purpose


class GroupRows(NamedTuple):
    """The training rows of a group, and the loss by which it is trained on them."""

    group: str
    rows: Rows
    loss: Loss


class Growing(msgspec.Struct, frozen=True):
    """Trees of a test (single dialogues) or of an iteration, waiting for replies.

    name: the purpose of the trees.
    key: of the stage.
    datapoints: those that the trees are about; `GameTree.datapoint_index` is an index into them.
    forest: the trees.
    num_waiting: replies that they wait for; 0 once they are grown.
    selection: what the trainer selected from grown trees; of a test, nothing.
    rows: each group's training rows, made of grown trees.
    """

    name: Purpose
    key: Key
    datapoints: tuple[Datapoint, ...]
    forest: Forest
    # Counted and not looked up: `step` asks after every reply whether the stage is over, and a walk
    # through the forest each time would make a stage quadratic in its replies.
    num_waiting: int
    selection: Selection = Selection()
    rows: tuple[GroupRows, ...] = ()

    def __repr__(self) -> str:
        """The stage in a line, without its trees."""
        return f"{self.name}: {len(self.forest)} trees, {self.num_waiting} replies to come"


# Digests cover these flags by value, so their meaning never changes.
class JobState(msgspec.Struct, frozen=True, array_like=True):
    """A training under way."""

    job: Job
    created: bool = False
    ended: bool = False
    adapter: str | None = None  # its result; None until it ended, and if it failed
    report: tuple[tuple[str, float], ...] = ()
    scores: tuple[Score, ...] = ()
    problem: str = ""  # the reason why it failed, or why its adapter was refused
    published: bool = False  # true once its adapter is served, or refused
    canary: tuple[float, ...] = ()  # of the probes' tokens, under what is served

    @property
    def is_unserved(self) -> bool:
        """True if there is an adapter that is neither served nor refused."""
        return self.adapter is not None and not self.published


class Training(msgspec.Struct, frozen=True):
    """Trainings on the rows of grown trees, one for each group that is due."""

    # The trees stay while their rows are trained on, for the digest at the end of the stage.  They
    # are dropped before publishing, which reads nothing of them.
    sampled: Growing
    jobs: tuple[JobState, ...]
    name: Literal["train"] = "train"


class Publishing(msgspec.Struct, frozen=True):
    """New adapters on their way to the sampler."""

    jobs: tuple[JobState, ...]
    name: Literal["publish"] = "publish"


class Done(msgspec.Struct, frozen=True):
    """After the last iteration."""

    name: Literal["done"] = "done"


Stage = NotStarted | Fetching | Growing | Training | Publishing | Done


def is_over(stage: Stage) -> bool:
    """True if the stage waits for nothing but its end."""
    # A stage that waits for nothing still has to be sealed: its digest is recorded before anything
    # is built on it, so that a replay that derives something else names the stage where it began.
    match stage:
        case Growing(num_waiting=num):
            return num == 0
        case Training(jobs=jobs):
            return all(job.ended for job in jobs)
        case Publishing(jobs=jobs):
            return not any(job.is_unserved for job in jobs)
    return False
