"""One schedule: a run, its provider, its disk and its network, under one seed.

All that is of nip-fn is the shipped code: the session of a run with its budget, its wiring, the
interpreter, the sampler, the batches, the tuner, the publisher and the store.  The world has the
event loop, the disk, aiohttp's sessions and the clock in its hands.
"""

import asyncio
import gc
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import inf
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any, NamedTuple

import msgspec
from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Result

import nip_fn_adapters.interpreter as interpreting
from nip_fn.config.codec import from_dict
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Dataset, make_datapoint
from nip_fn.game.reply import Completion
from nip_fn.keys import Key
from nip_fn.params.run import DummyParameters, HyperParameters
from nip_fn.params.training import grace_seconds
from nip_fn.run import jobs
from nip_fn.run.digest import digest
from nip_fn.run.events import Event, Replied
from nip_fn.run.ports import Progress, Unanswered
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState
from nip_fn.training.tuning import Job
from nip_fn_adapters import clock
from nip_fn_adapters.costs.prices import Price, Prices, PriceTable
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.experiments import session as sessions
from nip_fn_adapters.experiments.budgets import Money
from nip_fn_adapters.experiments.outcomes import problem_of
from nip_fn_adapters.experiments.plans import New
from nip_fn_adapters.experiments.session import Session, run_session
from nip_fn_adapters.experiments.start import create, reopen
from nip_fn_adapters.experiments.watching import Watch
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api import replies
from nip_fn_adapters.providers.api import tuner as api_tuner
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

from . import machine
from .disk import Disk, Image, disks
from .faults import Faults
from .laws import Auditor
from .loop import Deadlock, Died, Late, Process, VirtualLoop
from .machine import BASE
from .network import ELSEWHERE, Asked, Network, connect, disconnect
from .provider import COMPLETION, PROMPT, Provider
from .rare import note_beginning, note_ending

MODEL, KEY, VARIABLE = "m/sim", "sk-simulated-key-0123456789", "NIP_FN_SIMULATED_KEY"
HOST, OTHER_KEY = "provider.test", "sk-of-another-provider-987"
LONGEST = 48  # tokens of a reply, little more than they have: budgets have no room for errors
SURELY_IN_TIME = 500.0  # seconds, in which no request is given up for its own time
LIMIT = 3e6  # seconds that a session may take
EPOCH = 1.8e9
FAULTY_SESSIONS, CALM_SESSIONS = 10, 3
RAM = Path("/dev/shm")


class Setting(NamedTuple):
    """The run that a schedule is about."""

    trainer: str = "malt"
    batches: bool = False
    is_hosted: bool = False  # at a language-model server
    is_shared: bool = False  # both agents train one group
    rollouts: int = 8
    rounds: int = 2

    @property
    def params(self) -> HyperParameters:
        """Two iterations that train, in some hundreds of events."""
        agents: dict[str, Any] = {
            "_default": {
                "model_provider": "OpenAI",
                "model_name": MODEL,
                "api_base_url": f"http://{HOST}:80/v1",
                "api_key_variable": VARIABLE,
                "use_batch_api": self.batches,
                "num_invalid_generation_retries": 2,
                "max_tokens_per_message": LONGEST,
            }
        }
        if self.is_hosted:
            agents["_default"] = {
                "model_provider": "SelfHosted",
                "model_name": BASE,
                "api_key_variable": VARIABLE,
                "language_model_server_scheme_host": f"http://{machine.HOST}",
                "language_model_server_port": machine.PORT,
                "num_invalid_generation_retries": 2,
                "max_tokens_per_message": LONGEST,
            }
        if self.is_shared:
            agents["_default"]["shared_model_group"] = "both"
        settings = {
            "seed": 1,
            "trainer": self.trainer,
            "agents": agents,
            "rl": {"num_iterations": 2, "rollouts_per_iteration": self.rollouts},
            "text_rl": {"test_scheme": "last", "failed_trainings": "retry"},
            "nip_protocol": {"max_message_rounds": self.rounds},
        }
        return from_dict(settings).unwrap()


def _points(first: int, last: int) -> tuple[Any, ...]:
    return tuple(make_datapoint(f"p{i}", f"Q {i}?", f"s {i}", i % 2) for i in range(first, last))


DATA = in_memory(Dataset("small", train=_points(0, 12), validation=(), test=_points(12, 14)))
RATES = DummyParameters(invalid_rate=0.1, decision_rate=0.5)
PRICE = Price(prompt=PROMPT * 1e6, completion=COMPLETION * 1e6, training=0.0, batch=0.5)
PRICES = Prices(PriceTable({MODEL: PRICE}, {MODEL: PRICE}), PriceTable())


class Ending(NamedTuple):
    """The end of a session: the state if the run is done, else the problem; or it died."""

    state: RunState | None = None
    problem: Problem | None = None


class Report(NamedTuple):
    """A schedule that is over."""

    seed: int
    broken: tuple[tuple[str, str], ...]
    sessions: int
    faults: Counter[str]
    reached: Counter[str]
    asked: int  # replies
    digest: str


class Schedule:
    """A run under one seed, with so many faulty sessions and `only` some kinds of faults."""

    def __init__(
        self, seed: int, setting: Setting, folder: Path, faulty: int, only: Collection[str] | None
    ) -> None:
        self.reached = Counter[str]()
        self.setting, self.seed, self.faulty = setting, seed, faulty
        self.faults = Faults(seed, self.reach, only)
        self.random = self.faults.random
        self.auditor = Auditor(self.reach)
        self.process = Process("run")
        self.disk = Disk(folder, self.faults, self.die)
        self.run = folder / "run"
        self.loop = VirtualLoop(lambda: self.random.expovariate(100.0), self.disk.slowly)
        self.network = Network(self.faults, self.auditor)
        self.provider = Provider(KEY, self.faults, self.auditor, self.is_noted, self.loop)
        self.network.servers[f"{HOST}:80"] = self.provider
        self.network.servers[f"{ELSEWHERE}:80"] = Provider(
            OTHER_KEY, self.faults, self.auditor, self.is_noted, self.loop
        )
        server_disk = Disk(Path(f"{folder}-of-server"), self.faults, self._kill_server)
        self.disks = (self.disk, server_disk) if setting.is_hosted else (self.disk,)
        parts = (server_disk, self.faults, self.auditor, self.network, self.loop, self.provider)
        self.server = machine.Machine(*parts) if setting.is_hosted else None
        self.network.since_stop = self.since_stop
        self.network.on_cancelled = self._on_cancelled
        self.auditor.now = self.loop.time
        self.stopped_at = inf
        self.given_up: list[tuple[float, float]] = []  # requests that were cancelled after a stop
        self.image: Image | None = None
        self.offset = EPOCH
        self.state = EMPTY
        self.is_metered = faulty > 0 and not setting.is_hosted and self.random.random() < 0.3
        self.new = New(setting.params, (), ())

    def reach(self, state: str) -> None:
        """Count a rare state."""
        self.reached[state] += 1

    # ------------------------------------------------------------------------------------- deaths

    def die(self, cause: str) -> None:
        """The run's process dies now: what it still does has no effect."""
        if self.process.is_dead:
            return
        if cause == "power cut" and self.stopped_at == inf:
            durable = len(self.disk.durable(self.run / CHECKPOINT))
            self.auditor.a_power_cut_takes_the_last_wave_alone(durable)
        power = cause == "power cut"
        self.image = self.disk.image_after_power_cut(self.random) if power else self.disk.image()
        self.process.is_dead = True
        self.auditor.deaths += 1
        if self.auditor.deaths == 3:
            self.reach("three deaths in a row")
        if self.stopped_at < inf:
            self.reach("a death in the grace of a stop")
        self.loop.stop()

    def _kill_server(self, cause: str) -> None:
        if self.server is not None:
            self.server.die(cause)

    def _die_in(self, process: Process, cause: str) -> None:
        if process is self.process:
            self.die(cause)

    def run_in_own_loop(self, main: Callable[[], Any]) -> Any:
        """Takes the place of the function of that name."""
        return self.loop.run_to_end(self.process, main(), LIMIT)

    # ------------------------------------------------------------------------------------ sessions

    def session(self, money: Money) -> Ending:
        """One session, to its end."""
        self.process, self.stopped_at, self.given_up = Process("run"), inf, []
        self.provider.disturb()
        if self.server is not None:
            self.server.disturb()
        opened: Session | None = None
        try:
            begun = (self.run / CHECKPOINT).exists()
            recording = store.read_recording(self.run / CHECKPOINT).unwrap() if begun else None
            watch = Watch(tell=self._tell, display=self._display, stopping=self._stopping)
            if begun:
                opened = reopen(self.run, {}, None, data=DATA, new=self.new, watch=watch)
            else:
                opened = create(self.run, self.new, DATA, watch)
            self.auditor.begin(store.read_recording(self.run / CHECKPOINT).unwrap().events)
            self.state = opened.state
            note_beginning(self, recording, opened.state)
            opened = opened._replace(models=self._watched(opened.models))
            self._plan_end()
            ending = Ending(run_session(opened, self.run, "again", money, watch))
        except Died:
            ending = Ending()
        except (Deadlock, Late) as error:
            self.auditor.it_ends_in_time(error)
            ending = Ending()
        except (OSError, UnwrapFailedError) as error:
            ending = Ending(problem=problem_of(error))
        except Exception as error:
            if not self.process.is_dead:
                self.auditor.bugs_are_not_met(error)
            ending = Ending()
        finally:
            if opened is not None:
                _close(opened)
        if self.process.is_dead:
            assert self.image is not None
            self.disk.restore(self.image)
            ending = Ending()
        return ending

    def since_stop(self) -> float:
        """Seconds since the run was told to stop; 0 while it is not."""
        return max(0.0, self.loop.now - self.stopped_at)

    def _on_cancelled(self, asked: Asked, process: Process, began: float) -> None:
        is_chat = asked.url.path.endswith("/chat/completions")
        if is_chat and not process.is_dead and self.loop.now - began < SURELY_IN_TIME:
            self.given_up.append((self.since_stop(), grace_seconds(self.setting.params.text_rl)))

    def _plan_end(self) -> None:
        seconds = 10 ** self.random.uniform(-2, 4)
        causes = [cause for cause in ("kill", "power cut") if self.faults.hits(cause)]
        for cause in causes[-1:]:
            self.loop.call_later(seconds, self._die_in, self.process, cause)
        if self.faults.hits("clock set"):
            jump = self.random.choice((-1e5, -50.0, 50.0, 1e5))
            self.loop.call_later(seconds / 2, self._set_clock, jump)
        if self.faults.hits("second session"):
            self.loop.call_later(seconds / 3, self._open_again)

    def _set_clock(self, jump: float) -> None:
        self.offset += jump
        if jump < 0 and any(self.loop.now < job["listed"] for job in self.provider.jobs.values()):
            self.reach("a clock set back while an object is looked for")

    def _open_again(self) -> None:
        if self.process.is_dead or not (self.run / CHECKPOINT).exists():
            return
        reopened = store.reopen(self.run)
        problem = str(reopened.failure()) if not reopened.value_or(None) else ""
        self.auditor.a_second_session_is_refused(problem)
        self.reach("a second session while one is under way")

    def _tell(self, line: str) -> None:
        self.auditor.no_key_is_told(line, KEY)

    @contextmanager
    def _stopping(self, grace: float) -> Iterator[asyncio.Event]:
        stop = asyncio.Event()

        process = self.process

        def ask() -> None:
            if process is not self.process:
                return
            self.stopped_at = self.loop.now
            stop.set()

        if self.faults.hits("stop"):
            self.loop.call_later(10 ** self.random.uniform(-2, 3), ask)
        yield stop

    def _display(self, state: RunState, spent: Callable[[], str], folder: Path) -> Any:
        return nullcontext(_Display(self))

    def observe(self, state: RunState, event: Event) -> None:
        """An event is recorded, by a process that is alive."""
        if not self.process.is_dead:
            self.state = state
            self.auditor.record(event)
            if isinstance(event, Replied):
                self.auditor.grow((self.run / CHECKPOINT).stat().st_size)

    # --------------------------------------------------------------------------------------- ports

    def _watched(self, models: Any) -> Any:
        sampler, tuner = models.sampler, models.tuner

        async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
            answer = await sampler(request)
            for key, reply in zip(request.keys, answer.value_or(()), strict=False):
                if not isinstance(reply, Unanswered):
                    self.auditor.deliver(key.hex())
            return answer if self.is_metered else answer.map(_without_prompt_tokens)

        async def tune(job: Job) -> Any:
            durable = self.disk.durable(self.run / CHECKPOINT)
            self.auditor.an_intent_is_durable_before_it_is_paid(job, durable)
            return await tuner(job)

        return models._replace(sampler=sample, tuner=tune)

    def is_noted(self, tag: str) -> bool:
        """True if the run would find that job or batch after a power cut."""
        notes = (*self.run.glob("jobs/*/remote.json"), *self.run.glob("batches/*.json"))
        return any(tag.encode() in self.disk.durable(note) for note in notes)

    # ---------------------------------------------------------------------------------- the course

    def play(self, undisturbed: str = "") -> Report:
        """Sessions until the run is done: faulty ones, then calm ones."""
        auditor, digested = self.auditor, ""
        if self.server is not None:
            self.server.start()
        whole = self.random.uniform(0.5, 8.0)
        number = 0
        while not auditor.broken:
            number += 1
            self.faults.are_on = number <= self.faulty
            budget = None
            if self.is_metered:
                budget = whole * (1 + number) / FAULTY_SESSIONS if self.faults.are_on else 1e6
                auditor.budget = budget
            ending = self.session(Money(PRICES, budget))
            auditor.no_key_is_kept(self._content(), (KEY,))
            if ending.problem is not None and ending.problem.kind == "interrupted":
                for cancelled in self.given_up:
                    auditor.a_request_is_waited_for(*cancelled)
            has_ended = ending.state is not None or ending.problem is not None
            if has_ended and (ending.problem is None or ending.problem.kind != "system"):
                auditor.what_came_is_recorded()
                path = self.run / CHECKPOINT
                if path.exists():
                    auditor.an_end_is_durable(path.read_bytes(), self.disk.durable(path))
            if ending.problem is not None:
                auditor.no_key_is_told(str(ending.problem), KEY)
                refused = ending.problem.kind == "budget"
                note_ending(self, self.state, str(ending.problem), refused)
                auditor.a_recording_can_be_resumed(ending.problem)
            if ending.state is not None:
                digested = digest(ending.state)
                break
            if number >= self.faulty + CALM_SESSIONS:
                auditor.it_is_done_once_faults_stop(ending.problem)
        if digested and undisturbed and not self.is_metered:
            auditor.it_ends_as_if_undisturbed(digested, undisturbed)
        return Report(
            self.seed,
            tuple(auditor.broken),
            number,
            self.faults.count,
            self.reached,
            sum(auditor.asked.values()),
            digested,
        )

    def _content(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.run.rglob("*") if path.is_file()}


class _Display:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._process = schedule, schedule.process

    def __call__(self, state: RunState, event: Event) -> None:
        self._schedule.observe(state, event)

    def follow(self, job: str, progress: Progress) -> None:
        """Nobody looks."""


def _close(session: Session) -> None:
    try:
        session.store.close()
    except OSError:
        return


def _without_prompt_tokens(answers: Any) -> Any:
    """A request whose replies came in parts has been paid in parts, as digests show."""
    return tuple(
        msgspec.structs.replace(answer, prompt_tokens=0)
        if isinstance(answer, Completion)
        else answer
        for answer in answers
    )


@contextmanager
def _in_hand(schedule: Schedule) -> Iterator[None]:
    """Inside, the program has that world around it."""
    random, real_body, real_request = Random(schedule.seed), replies.body_of, interpreting.request

    def body_of(request: Request, keys: Sequence[Key], *others: Any) -> bytes:
        body = msgspec.json.decode(real_body(request, keys, *others))
        made = [dummy._reply(request, key, RATES).text for key in keys]
        return msgspec.json.encode({**body, "keys": [key.hex() for key in keys], "replies": made})

    def request_of(state: RunState, effect: Any) -> Request:
        made = real_request(state, effect)
        schedule.auditor.places(effect.tree, effect.ask, made)
        return made

    environment = {
        VARIABLE: KEY,
        "NIP_FN_TRUST": "1",
        "XDG_CONFIG_HOME": f"{schedule.disk.root}-of-user",
    }
    before = {name: os.environ[name] for name in environment if name in os.environ}
    least = api_tuner.LEAST_ROWS, jobs.MIN_EXAMPLES
    api_tuner.LEAST_ROWS = jobs.MIN_EXAMPLES = 1  # the run is small
    real = clock.wall, secrets.token_hex, sessions.run_in_own_loop
    try:
        clock.wall = lambda: schedule.loop.now + schedule.offset
        secrets.token_hex = lambda size=8: random.randbytes(size).hex()  # type: ignore[assignment]
        sessions.run_in_own_loop = schedule.run_in_own_loop  # type: ignore[assignment]
        replies.body_of, interpreting.request = body_of, request_of  # type: ignore[assignment]
        os.environ.update(environment)
        connect(schedule.network)
        with disks(schedule.disks):
            yield
    finally:
        schedule.faults.are_on = False
        schedule.loop.end_all()
        disconnect()
        clock.wall, secrets.token_hex, sessions.run_in_own_loop = real  # type: ignore[assignment]
        replies.body_of, interpreting.request = real_body, real_request
        api_tuner.LEAST_ROWS, jobs.MIN_EXAMPLES = least
        for name in environment:
            os.environ.pop(name)
        os.environ.update(before)
        schedule.loop.close()


_UNDISTURBED: dict[Setting, str] = {}
SETTINGS = (
    Setting(is_shared=True),
    Setting(trainer="ei", rollouts=6, rounds=3),
    Setting(is_shared=True, batches=True),
    Setting(is_shared=True, is_hosted=True),
)


def play(
    seed: int,
    *,
    faulty: int = FAULTY_SESSIONS,
    only: Collection[str] | None = None,
    setting: Setting | None = None,
) -> Report:
    """The schedule of a seed.

    Args:
        seed: Draws the setting, the faults and their times.
        faulty: The number of sessions in which there are faults.
        only: The kinds of faults that are left; None: all that the seed has drawn.
        setting: In place of the seed's.
    """
    setting = setting or SETTINGS[seed % len(SETTINGS)]
    if faulty and setting not in _UNDISTURBED:
        calm = play(0, faulty=0, setting=setting)
        if calm.broken:
            return calm._replace(seed=seed)
        _UNDISTURBED[setting] = calm.digest
    folder = (RAM if RAM.is_dir() else Path(gettempdir())) / f"nip-fn-simulated-{os.getpid()}"
    _remove(folder)
    # What is collected at a moment of its own choosing may not decide anything.
    gc.disable()
    try:
        schedule = Schedule(seed, setting, folder, faulty, only)
        with _in_hand(schedule):
            return schedule.play(_UNDISTURBED.get(setting, "") if faulty else "")
    finally:
        gc.enable()
        _remove(folder)


def _remove(folder: Path) -> None:
    for part in folder.parent.glob(f"{folder.name}*"):
        shutil.rmtree(part, ignore_errors=True)
