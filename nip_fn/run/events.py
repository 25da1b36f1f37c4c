"""Events, answers of the world, and effects, descriptions of what is to be done in it."""

import msgspec

from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint, Split
from nip_fn.game.reply import Completion
from nip_fn.params.run import HyperParameters
from nip_fn.training.canary import FLOAT32, Score
from nip_fn.training.groups import Adapter
from nip_fn.training.tuning import Job, Probe
from nip_fn.trees.node import Path, ReplyRequest

# The format of a recording: its frames, its events, and what is derived from them.  It is written
# once, in the header of the checkpoint.
FORMAT = 1


# Every size is recorded with the hash, so that a recording replays without the data: which
# datapoints an epoch visits follows from the sizes alone.
class DatasetInfo(msgspec.Struct, frozen=True, array_like=True):
    """The data set of a run."""

    name: str
    hash: str  # of all splits
    train_size: int
    validation_size: int
    test_size: int

    def size(self, split: Split) -> int:
        """The number of datapoints in a split."""
        sizes = {
            "train": self.train_size,
            "validation": self.validation_size,
            "test": self.test_size,
        }
        return sizes[split]


# As arrays, events are stored without the names of their fields, so a field's place is its name on
# disk, which is why none may move.  A tag never changes either.
class RecordedEvent(msgspec.Struct, frozen=True, array_like=True):
    """Base of all events.  Fields may be added at the end with a default; none is ever changed."""


class RunStarted(RecordedEvent, frozen=True, array_like=True, tag="run_started"):
    """The first event: all that defines the run."""

    params: HyperParameters
    dataset: DatasetInfo
    version: str  # of nip-fn
    loaded: tuple[tuple[str, Adapter], ...] = ()  # (group, what an earlier run trained for it)
    # (reference, hash of its source) of each protocol, trainer, selector and data set of one's own
    sources: tuple[tuple[str, str], ...] = ()


class BatchFetched(RecordedEvent, frozen=True, array_like=True, tag="batch_fetched"):
    """The datapoints of a stage."""

    datapoints: tuple[Datapoint, ...]


# The address is complete, because replies to concurrent requests arrive in any order and a replay
# has no requests to match them with.
#
# The replies to one request are one event: they are billed together, so a crash that kept some of
# them would have the prompt paid for again, and the resumed run would differ from an undisturbed
# one.
class Replied(RecordedEvent, frozen=True, array_like=True, tag="replied"):
    """The completions that a request brought, each for one slot of one node of one tree."""

    tree: int
    path: Path
    agent: int
    index: int
    attempt: int
    completion: Completion
    others: tuple[tuple[int, Completion], ...] = ()  # (index, completion), if there were several

    @property
    def completions(self) -> tuple[tuple[int, Completion], ...]:
        """(index, completion) of every reply."""
        return (self.index, self.completion), *self.others


# Addressed by the answer and not by a node: equal answers of one tree are checked once, and the
# trees of a stage stay independent of one another.
class Checked(RecordedEvent, frozen=True, array_like=True, tag="checked"):
    """The label of an answer: 1 right, 0 wrong, None if it could not be checked."""

    tree: int
    answer: str
    label: int | None
    problem: str = ""  # why it could not be checked


class StageEnded(RecordedEvent, frozen=True, array_like=True, tag="stage_ended"):
    """A stage ended in a state with this digest."""

    iteration: int
    stage: str
    digest: str
    # `step` can read no clock, so the time reaches the state through the event.
    seconds: float  # that the stage took in the session that ended it


# A training has two events.  The first is on disk before the provider is asked, so that a run that
# dies in between finds the job by its name instead of paying for a second one.
class JobCreated(RecordedEvent, frozen=True, array_like=True, tag="job_created"):
    """A training is about to be asked for."""

    job: str
    data_hash: str


# A training that comes to nothing is recorded like any other and leaves the models as they were:
# one that diverged would diverge again.  One that failed is recorded if the run goes on without it.
class JobFinished(RecordedEvent, frozen=True, array_like=True, tag="job_finished"):
    """A training ended, and left this adapter, or none where it failed."""

    job: str
    adapter: str | None
    report: tuple[tuple[str, float], ...] = ()  # (name, value), as the trainer measured
    scores: tuple[Score, ...] = ()  # of the tokens of the job's probes
    problem: str = ""  # why there is no adapter


class Published(RecordedEvent, frozen=True, array_like=True, tag="published"):
    """An adapter is being served from now on; or is not, and the one before it still is."""

    group: str
    adapter: str
    scores: tuple[float, ...] = ()  # log-probabilities of the probes' tokens, as it is served
    problem: str = ""  # why it is not served
    dtype: str = FLOAT32  # of what is served: torch's name, or that of a quantization


class Extended(RecordedEvent, frozen=True, array_like=True, tag="extended"):
    """A finished run continues to this number of iterations."""

    num_iterations: int


# It stands before the datapoints of an iteration, and the replies that follow it, to the end of
# that stage, are another run's, like all that is before it.  What comes afterwards is new.
class Forked(RecordedEvent, frozen=True, array_like=True, tag="forked"):
    """From here on this is a run of its own: other parameters, and the replies of a recorded stage.

    params: of this run, from now on.
    run: the name of the run that asked for the replies.
    digest: of its state at the end of that stage.
    version: of nip-fn, when it was forked.
    sources: as in `RunStarted`.
    """

    params: HyperParameters
    run: str
    digest: str
    version: str
    sources: tuple[tuple[str, str], ...] = ()


Event = (
    RunStarted
    | BatchFetched
    | Replied
    | Checked
    | StageEnded
    | JobCreated
    | JobFinished
    | Published
    | Extended
    | Forked
)


# Effects are never recorded.  `pending` derives them from the state, so a resumed run asks for
# exactly that to which its recording has no answer.
class FetchBatch(msgspec.Struct, frozen=True):
    """Fetch these datapoints of a split; answered by `BatchFetched`."""

    split: Split
    indices: tuple[int, ...]


class SampleReplies(msgspec.Struct, frozen=True):
    """Sample replies for a node of a tree; answered by `Replied`."""

    tree: int
    ask: ReplyRequest


# No intent is recorded before it: a check changes nothing in the world, and may be repeated.
class CheckAnswer(msgspec.Struct, frozen=True):
    """Check an answer that stands in a tree; answered by `Checked`."""

    tree: int
    answer: str


class EndStage(msgspec.Struct, frozen=True):
    """Record that the stage is over, and the state's digest; answered by `StageEnded`."""

    iteration: int
    stage: str


class CreateJob(msgspec.Struct, frozen=True):
    """Record the intent to train, before anything is paid; answered by `JobCreated`."""

    job: Job


class Train(msgspec.Struct, frozen=True):
    """Train an adapter, or find the one that an earlier try left; answered by `JobFinished`."""

    job: Job


class Publish(msgspec.Struct, frozen=True):
    """Serve an adapter, and score the probes under it; answered by `Published`."""

    group: str
    model: str
    adapter: str
    probes: tuple[Probe, ...]
    expected: tuple[Score, ...]  # () where the trainer could not tell


class Refuse(msgspec.Struct, frozen=True):
    """End the run, which cannot go on from this state; answered by nothing."""

    problem: Problem


Effect = FetchBatch | SampleReplies | CheckAnswer | EndStage | CreateJob | Train | Publish | Refuse
