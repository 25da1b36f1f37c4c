"""The laws of a schedule, each a method; whoever takes part in the world calls them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nip_fn.errors import Problem
from nip_fn.run import checkpoint
from nip_fn.run.events import Event, JobCreated, Replied, StageEnded
from nip_fn.run.request import Request
from nip_fn.training.tuning import Job

Place = tuple[object, ...]  # of a reply: the number of its stage, tree, path, agent, index, attempt
ROUNDING = 1e-6  # dollars
AT_ONCE = 1.0  # seconds
SYNCED = 10.0  # seconds, after which what was recorded is on the disk


class Auditor:
    """Watches a schedule, and notes which laws were broken."""

    def __init__(self, reach: Callable[[str], None]) -> None:
        self.broken: list[tuple[str, str]] = []
        self.reach = reach
        self.paid, self.budget = 0.0, float("inf")
        self.asked = Counter[str]()
        self.deaths = 0
        self._sizes: list[tuple[float, int]] = []  # of the recording, and when it had them
        self.now: Callable[[], float] = lambda: 0.0
        self._stage = 0
        self._recorded: set[Place] = set()
        self._delivered: set[Place] = set()
        self._places: dict[str, Place] = {}  # by the key of the reply

    def _break(self, law: str, detail: object) -> None:
        self.broken.append((law, str(detail)))

    # ------------------------------------------------------------------------------- what it sees

    def begin(self, events: Iterable[Event]) -> None:
        """A session begins after these events."""
        self._sizes = []
        before = self._stage, self._recorded
        self._stage, self._recorded, self._delivered = 0, set(), set()
        for event in events:
            self.record(event)
        if before[0] == self._stage and before[1] - self._recorded:
            self.reach("recorded replies that a power cut has taken")

    def record(self, event: Event) -> None:
        """An event is in the recording."""
        if isinstance(event, StageEnded):
            self._stage += 1
        if isinstance(event, Replied):
            self._recorded.update(
                (self._stage, event.tree, event.path, event.agent, index, event.attempt)
                for index, _ in event.completions
            )

    def grow(self, size: int) -> None:
        """The recording has that size now."""
        self._sizes.append((self.now(), size))

    @property
    def old_size(self) -> int:
        """The size of the recording some seconds ago."""
        return max((size for at, size in self._sizes if at < self.now() - SYNCED), default=0)

    def places(self, tree: int, ask: Any, request: Request) -> None:
        """These replies are wanted."""
        for index, key in zip(ask.indices, request.keys, strict=True):
            place = (self._stage, tree, ask.path, ask.agent, index, ask.attempt)
            self._places[key.hex()] = place

    def reach_by_tag(self, state: str) -> None:
        """Something paid is found again whose id is not known."""
        self.reach(state)
        if self.deaths >= 2:
            self.reach(f"{state} after two deaths")

    def is_asked_again(self, keys: Iterable[str]) -> bool:
        """True if one of these replies has been asked for before."""
        return any(self.asked[key] for key in keys)

    def deliver(self, key: str) -> None:
        """The sampler returns a reply."""
        self._delivered.add(self._places[key])

    # ------------------------------------------------------------------------------------ the laws

    def no_recorded_reply_is_asked_again(self, keys: Iterable[str]) -> None:
        """Nothing is paid twice."""
        for key in keys:
            self.asked[key] += 1
            if self._places.get(key) in self._recorded:
                self._break("no recorded reply is asked again", self._places[key])

    def what_came_is_recorded(self) -> None:
        """A session that ends by itself has recorded every reply that its sampler returned."""
        if lost := self._delivered - self._recorded:
            self._break("what came is recorded", f"{len(lost)} replies: {sorted(lost, key=str)[0]}")

    def an_intent_is_durable_before_it_is_paid(self, job: Job, durable: bytes) -> None:
        """After a power cut, the run knows of every training that may have been paid."""
        events = checkpoint.read(durable).unwrap().events if durable else ()
        if not any(isinstance(event, JobCreated) and event.job == job.name for event in events):
            self._break("an intent is durable before it is paid", job.name)

    def a_note_is_durable_before_it_is_paid(self, what: str, durable: bool) -> None:
        """The same, of the note by which it is found at its provider."""
        if not durable:
            self._break("a note is durable before it is paid", what)

    def a_request_is_waited_for(self, seconds: float, grace: float) -> None:
        """After a stop, what has been sent may still be answered: it is paid."""
        if seconds < grace:
            self._break("a request is waited for", f"cancelled {seconds:.0f} s after the stop")

    def nothing_is_sent_after_a_stop(self, seconds: float) -> None:
        """Money is not spent any more once the user has said so."""
        if seconds > AT_ONCE:
            self._break("nothing is sent after a stop", f"{seconds:.0f} s after it")

    def an_end_is_durable(self, written: bytes, durable: bytes) -> None:
        """A session that ends by itself leaves nothing to a power cut."""
        if written != durable:
            self._break("an end is durable", f"{len(durable)} of {len(written)} bytes")

    def a_power_cut_takes_the_last_wave_alone(self, durable: int) -> None:
        """What was recorded some seconds ago is on the disk."""
        if durable < self.old_size:
            self._break("a power cut takes the last wave alone", f"{durable} of {self.old_size}")

    def a_row_is_in_one_batch(self, rows: Collection[str], others: Collection[str]) -> None:
        """A request is sent again only if the batch that held it did not answer it."""
        if twice := set(rows) & set(others):
            self._break("a row is in one batch", sorted(twice)[0])

    def no_key_is_told(self, line: str, key: str) -> None:
        """No key is in a line for people."""
        if key in line:
            self._break("no key is told", line.replace(key, "KEY"))

    def accepted_jobs_survive(self, lost: Collection[str]) -> None:
        """A server that has said that it trains a job does so, whatever happens to it."""
        if lost:
            self._break("accepted jobs survive", sorted(lost))

    def a_training_is_not_repeated(self, job: str, result: bytes) -> None:
        """A training whose result is on the disk is not done again."""
        if result:
            self._break("a training is not repeated", job)

    def a_job_is_created_once(self, tag: str, others: Collection[str]) -> None:
        """A job is created again only if the ones before it have failed or vanished."""
        if others:
            self._break("a job is created once", f"{tag} beside {others}")

    def never_above_the_budget(self, dollars: float) -> None:
        """Whatever is lost on the way, the bill is within the budget."""
        self.paid += dollars
        if self.paid > self.budget + ROUNDING:
            self._break("never above the budget", f"${self.paid:.4f} of ${self.budget:.4f}")

    def no_key_leaves(self, asked: Any, keys: Iterable[str]) -> None:
        """No key is in a byte that leaves, but to its own server."""
        sent = f"{asked.method} {asked.url} {dict(asked.headers)}".encode() + asked.body
        if any(key and key.encode() in sent for key in keys):
            self._break("no key leaves", asked.url)

    def no_key_is_kept(self, content: Mapping[Any, bytes | None], keys: Iterable[str]) -> None:
        """No key is in a file."""
        for path, data in content.items():
            if data and any(key.encode() in data for key in keys):
                self._break("no key is kept", path)

    def a_second_session_is_refused(self, problem: str) -> None:
        """A recording has one writer."""
        if "another process" not in problem:
            self._break("a second session is refused", problem or "it was opened twice")

    def a_recording_can_be_resumed(self, problem: Problem) -> None:
        """Whatever has happened to it, a run goes on."""
        if problem.kind == "run":
            self._break("a recording can be resumed", problem)

    def it_ends_in_time(self, error: Exception) -> None:
        """Work ends in bounded time, and nothing waits for nothing."""
        self._break("it ends in time", f"{type(error).__name__}: {error}")

    def it_is_done_once_faults_stop(self, problem: object) -> None:
        """Without faults, the next session ends the run."""
        self._break("it is done once faults stop", problem)

    def bugs_are_not_met(self, error: BaseException) -> None:
        """What a provider or a disk does is a problem, and never an exception."""
        self._break("bugs are not met", f"{type(error).__name__}: {error}")

    def it_ends_as_if_undisturbed(self, digest: str, undisturbed: str) -> None:
        """Faults cost time and money, and change nothing."""
        if digest != undisturbed:
            self._break("it ends as if undisturbed", f"{digest[:8]} and not {undisturbed[:8]}")
