"""A small run with the dummy provider, on real files."""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from returns.result import Result

from nip_fn.config.codec import from_dict
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint, Dataset, make_datapoint
from nip_fn.game.reply import Completion
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import RunStarted
from nip_fn.run.ports import Store, Unanswered, World
from nip_fn.run.replay import replay
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState, StageMetrics
from nip_fn.training.tuning import Job
from nip_fn_adapters.data.opening import CACHE_VARIABLE, in_memory
from nip_fn_adapters.experiments.checking import answer_checker
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.recording import store

from ..provider import Provider


def small_params() -> HyperParameters:
    """Two iterations that train, with retries, in a few hundred events."""
    return from_dict(
        {
            "seed": 2,
            "agents": {"_default": {"use_dummy_api": True, "num_invalid_generation_retries": 2}},
            "dummy": {"invalid_rate": 0.2},
            "rl": {"num_iterations": 2, "rollouts_per_iteration": 12},
            "text_rl": {"test_scheme": "first_and_last"},
            "nip_protocol": {"max_message_rounds": 3},
        }
    ).unwrap()


def small_dataset() -> Dataset:
    """Twenty datapoints to train on and four to test on."""

    def points(first: int, last: int) -> tuple[Datapoint, ...]:
        return tuple(
            make_datapoint(f"p{i}", f"Question {i}?", f"solution {i}", i % 2)
            for i in range(first, last)
        )

    return Dataset("small", train=points(0, 20), validation=(), test=points(20, 24))


class CountingSampler:
    """A sampler that counts the replies that it is asked for."""

    def __init__(self) -> None:
        self.count = 0
        self._sample = dummy.dummy_sampler(small_params().dummy)

    async def __call__(
        self, request: Request
    ) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        self.count += len(request.keys)
        sampled = await self._sample(request)
        # Without its tokens: a request whose replies were lost in part is paid for twice, and a
        # digest covers what was paid.
        return sampled.map(lambda replies: tuple(replace(one, prompt_tokens=0) for one in replies))


def no_tracker(row: StageMetrics, seconds: float) -> None:
    """Keep nothing."""


class SmallSession:
    """A session of a small run in a folder: from nothing, or from what an earlier one left."""

    params = staticmethod(small_params)
    dataset = staticmethod(small_dataset)

    def __init__(self, folder: Path) -> None:
        self.asked = CountingSampler()
        self._folder = folder

    def __call__(self, wrap: Callable[[Store], Store] = lambda store: store) -> RunState:
        """The state at the end; whatever `wrap`'s store raises is raised."""
        if (self._folder / store.CHECKPOINT).exists():
            opened, recording = store.reopen(self._folder).unwrap()
            state = replay(recording.events).unwrap().state
            assert state.faults == ()
        else:
            opened, state = store.create(self._folder).unwrap(), EMPTY
        data, params = in_memory(self.dataset()), self.params()
        first = RunStarted(params, data.info, "0")
        world = World(
            sampler=self.asked,
            tuner=dummy.dummy_tuner(),
            publisher=dummy.serve_at_once,
            source=data.source,
            store=wrap(opened),
            tracker=no_tracker,
            checker=answer_checker(params, data),
        )
        begin = () if state.stage.name != "start" else (first,)
        try:
            return asyncio.run(interpret(state, world, first=begin)).unwrap()
        finally:
            opened.close()


class AnsweringSession(SmallSession):
    """A session of a small run in which the prover writes the answers."""

    @staticmethod
    def params() -> HyperParameters:
        written = replace(small_params().protocol_common, answers="written")
        malt = replace(small_params().malt, num_responses_per_timestep=2)
        return replace(small_params(), protocol_common=written, malt=malt)

    @staticmethod
    def dataset() -> Dataset:
        def to_answer(point: Datapoint) -> Datapoint:
            return make_datapoint(
                point.problem_id, point.question, "", None, kind="prose", reference="yes"
            )

        given = small_dataset()
        train, test = (tuple(map(to_answer, split)) for split in (given.train, given.test))
        return Dataset("small", train=train, validation=(), test=test)


@pytest.fixture
def session() -> type[SmallSession]:
    """`session(folder)()` plays a small run to its end."""
    return SmallSession


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run that is done; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("recorded") / "small"
    SmallSession(folder)()
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with caches for data sets of its own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.chdir(tmp_path)
    return tmp_path


_numbers = count()


@pytest.fixture
def job() -> Job:
    """A fine-tuning job on rows that no other test has."""
    from .tuning import make_job, preferences

    return make_job(rows=preferences(12, f"test {next(_numbers)}, example"))


@pytest.fixture
def provider(running: Provider) -> Provider:
    """A provider with plain settings for jobs; what earlier tests left there stays."""
    from .tuning import KEY

    running.configure(key=KEY, faults=[], job_seconds=0.0, job_outcome="succeeded", list_lag=0.0)
    return running
