"""Training from Python: what is returned, what is printed, and how a run ends early."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result

from nip_fn import Problem, from_dict
from nip_fn.config.codec import merge, to_dict
from nip_fn.errors import ProblemKind
from nip_fn.game.datapoint import Datapoint, Split
from nip_fn.game.reply import Completion
from nip_fn.run import checkpoint
from nip_fn.run.events import Event, StageEnded
from nip_fn.run.ports import Progress, Unanswered
from nip_fn.run.request import Request
from nip_fn.run.state import RunState
from nip_fn_adapters import (
    forecast,
    forecast_async,
    load_run,
    resume,
    resume_async,
    train,
    train_async,
)
from nip_fn_adapters.costs.budget import within_budget
from nip_fn_adapters.data.opening import Data, open_data
from nip_fn_adapters.experiments import datasets, wiring
from nip_fn_adapters.experiments.plans import plan
from nip_fn_adapters.experiments.watching import RunDisplay, Watch
from nip_fn_adapters.experiments.wiring import Models, WiringContext
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.recording.store import CHECKPOINT

SMALL: dict[str, Any] = {
    "seed": 5,
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 6},
    "malt": {"num_responses_per_timestep": 2},
    "nip_protocol": {"max_message_rounds": 3},
    "dataset_options": {"max_test_size": 6},
}
DUMMY: dict[str, Any] = {"provider": "dummy", "name": "a"}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all runs, below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "runs"


# ---------------------------------------------------------------------------------- what comes back


def test_a_run_is_trained_in_silence_and_is_the_one_that_was_recorded(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = train(SMALL, **DUMMY).unwrap()
    assert (run.state.stage.name, run.faults) == ("done", ())
    assert run.path == Path("runs/a") / CHECKPOINT
    assert run.digest == load_run("a").unwrap().digest
    assert capfd.readouterr() == ("", "")


def test_lines_go_to_whoever_asks_for_them(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    settings = merge(SMALL, {"rl": {"lr": 1e-3}})
    run = train(settings, **DUMMY, tell=lines.append).unwrap()
    warning, data, configuration = lines
    assert warning.startswith("nip-fn: warning: without effect")
    assert "rl.lr" in warning
    assert data.startswith("data tea, claims with views")
    assert configuration.endswith(f"run {run.path.parent}")
    assert capfd.readouterr() == ("", "")


def test_the_rows_within_a_limit_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Sequence[int]] = []

    def noting(data: Data) -> Data:
        def draw(split: Split, indices: Sequence[int]) -> tuple[Datapoint, ...]:
            counted.extend([indices] if isinstance(indices, range) else [])
            return data.source(split, indices)

        return data._replace(source=draw)

    monkeypatch.setattr(datasets, "open_data", lambda params: open_data(params).map(noting))
    assert is_successful(train(SMALL, **DUMMY))
    assert counted == [range(6)]


def test_settings_may_be_a_table_a_file_or_a_record(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(
        '{"seed": 5, "rl": {"num_iterations": 1, "rollouts_per_iteration": 6}, '
        '"malt": {"num_responses_per_timestep": 2}, "nip_protocol": {"max_message_rounds": 3}, '
        '"dataset_options": {"max_test_size": 6}}'
    )
    table = train(SMALL, **DUMMY).unwrap()
    file = train("small.json", provider="dummy", name="file").unwrap()
    lines: list[str] = []
    record = train(table.params, name="record", tell=lines.append).unwrap()
    assert table.digest == file.digest == record.digest
    assert not any("without effect" in line for line in lines)


def test_a_run_without_a_name_has_one_of_its_own() -> None:
    first, second = (train(SMALL, provider="dummy").unwrap() for _ in range(2))
    assert second.path.parent.name == f"{first.path.parent.name}-2"
    assert first.digest == second.digest


def test_a_run_that_is_done_is_extended() -> None:
    run = train(SMALL, **DUMMY).unwrap()
    assert resume(run).unwrap().digest == run.digest
    longer = resume("a", more_iterations=1).unwrap()
    assert longer.state.iteration == 2
    direct = train(merge(SMALL, {"rl": {"num_iterations": 2}}), provider="dummy", name="b")
    assert longer.state.rows == direct.unwrap().state.rows


def test_a_run_trains_again_on_the_replies_of_another_one() -> None:
    run = train(SMALL, **DUMMY).unwrap()
    changes = {"malt": {"pair_selection_method": "about_mean"}}
    fork = train(changes, provider="dummy", name="fork", forest="a").unwrap()
    assert fork.state.origin is not None
    assert fork.state.origin.run == "a"
    assert fork.stages("sample")[0].batch.trees == run.stages("sample")[0].batch.trees


def test_a_forecast_sends_nothing_and_counts_the_requests_of_a_run(
    runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = forecast(SMALL, provider="dummy").unwrap()
    assert not runs.exists()
    assert capfd.readouterr() == ("", "")
    run = train(SMALL, **DUMMY).unwrap()
    replies = sum(dict(row.metrics).get("replies", 0.0) for row in run.state.rows)
    assert 0 < found.total.expected.requests <= found.total.most.requests
    assert found.total.most.replies >= replies
    assert found.total == found.sum(found.stages)


# ---------------------------------------------------------------------------------- loops and tasks


def test_it_works_where_a_loop_is_running_as_in_a_notebook() -> None:
    async def cell() -> Any:
        return forecast(SMALL, provider="dummy"), train(SMALL, **DUMMY), resume("a")

    expected = train(SMALL, provider="dummy", name="b").unwrap().digest
    planned, trained, resumed = asyncio.run(cell())
    assert planned.unwrap().total.most.requests > 0
    assert trained.unwrap().digest == resumed.unwrap().digest == expected


def test_runs_are_awaited_side_by_side() -> None:
    async def both() -> Any:
        runs = (train_async(SMALL, provider="dummy", name=name) for name in "ab")
        return await asyncio.gather(*runs, forecast_async(SMALL, provider="dummy"))

    first, second, planned = asyncio.run(both())
    assert first.unwrap().digest == second.unwrap().digest
    assert planned.unwrap() == forecast(SMALL, provider="dummy").unwrap()
    assert train_async.__name__ == "train_async"


LONG = merge(SMALL, {"rl": {"num_iterations": 3, "rollouts_per_iteration": 8}})


class Slowly:
    """A display that calls a function at an event, and slows down the run from there on."""

    def __init__(self, event: int, call: Callable[[], object]) -> None:
        """Call `call` at that event."""
        self._left, self._call = event, call

    def __call__(self, state: RunState, event: Event) -> None:
        """Count an event."""
        self._left -= 1
        if self._left == 0:
            self._call()
        if self._left <= 0:
            time.sleep(0.005)

    def follow(self, job: str, progress: Progress) -> None:
        """Show nothing."""

    def shown(self, *_: object) -> AbstractContextManager[RunDisplay]:
        """The display of any run."""
        return nullcontext(self)


@pytest.mark.parametrize("event", [1, 40, 80])
def test_a_run_whose_task_is_cancelled_can_be_resumed(event: int) -> None:
    async def cancelled() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        display = Slowly(event, lambda: loop.call_soon_threadsafe(task.cancel))
        await train_async(LONG, **DUMMY, watch=Watch(display=display.shown))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert load_run("a").unwrap().state.stage.name != "done"
    resumed = asyncio.run(resume_async("a")).unwrap()
    assert resumed.digest == train(LONG, provider="dummy", name="b").unwrap().digest


def test_a_task_that_is_cancelled_before_its_run_begins_leaves_one_that_can_be_resumed() -> None:
    async def cancelled() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def tell(line: str) -> None:
            loop.call_soon_threadsafe(task.cancel)
            time.sleep(0.1)

        await train_async(SMALL, **DUMMY, tell=tell)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    expected = train(SMALL, provider="dummy", name="b").unwrap()
    assert resume("a", SMALL, provider="dummy").unwrap().digest == expected.digest


def test_a_run_that_is_stopped_is_a_failure_and_can_be_resumed() -> None:
    stops: list[asyncio.Event] = []

    @contextmanager
    def stopping(grace: float) -> Iterator[asyncio.Event]:
        stops.append(asyncio.Event())
        yield stops[-1]

    display = Slowly(30, lambda: stops[0].set())
    watch = Watch(display=display.shown, stopping=stopping)
    problem = train(LONG, **DUMMY, watch=watch).failure()
    assert problem.kind == "interrupted"
    assert "nip-fn train --resume --run a --runs runs" in problem.remedy
    assert resume("a").unwrap().state.stage.name == "done"


# ----------------------------------------------------------------------------------------- failures


def refused(settings: Any = None, **options: Any) -> Problem:
    return train(SMALL if settings is None else settings, **{**DUMMY, **options}).failure()


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({"rl": {"learning_rate": 1}}, {}, "learning_rate"),
        ({"agents": {"prover": 3}}, {}, "expected a table of parameters"),
        ({"trainer": "nobody.py:TRAINER"}, {}, "nobody.py"),
        ("nothing.toml", {}, "No such file"),
        ({}, {"provider": "opnai"}, "did you mean 'openai'"),
        ({}, {"name": "../x"}, "cannot be a path"),
        ({}, {"iteration": 1}, "`forest`"),
        ({}, {"trackers": ["wendy"]}, "no tracker"),
        ({"dataset": "nothing.jsonl"}, {}, "nothing.jsonl"),
    ],
)
def test_what_cannot_be_is_a_failure_that_leaves_nothing_behind(
    settings: Any, options: dict[str, Any], words: str, runs: Path
) -> None:
    problem = refused(settings, **options)
    assert problem.kind == "usage"
    assert words in str(problem)
    assert not runs.exists()


def test_bad_rows_are_details_of_the_problem(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "q", "solution": "s", "label": 3}\n' * 3)
    problem = refused({"dataset": "rows.jsonl"})
    assert problem.problem == "3 bad rows"
    assert len(problem.details) == 3
    assert "label" in problem.details[0]


def test_a_name_is_given_once() -> None:
    train(SMALL, **DUMMY).unwrap()
    assert refused().kind == "run"
    assert resume("b").failure().kind == "run"
    assert resume("a", {"seed": 6}).failure().kind == "usage"


def test_what_the_system_refuses_is_a_failure(runs: Path) -> None:
    runs.write_text("a file")
    problem = refused()
    assert problem.kind == "system"
    assert "runs" in problem.address


def _flipped(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def _newer(data: bytes) -> bytes:
    fields = checkpoint._HEADER.pack(checkpoint.MAGIC, 99, 0)[:12]
    return fields + checkpoint.crc32(fields).to_bytes(4, "little") + data[16:]


def _other_digest(data: bytes) -> bytes:
    events = checkpoint.read(data).unwrap().events
    return checkpoint.write(
        replace(event, digest="0" * 32) if isinstance(event, StageEnded) else event
        for event in events
    )


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("foreign", lambda data: b"a text"),
        ("corrupt", _flipped),
        ("newer", _newer),
        ("mismatch", _other_digest),
    ],
)
def test_a_damaged_recording_is_a_failure_of_its_own_kind(
    kind: ProblemKind, damage: Callable[[bytes], bytes], runs: Path
) -> None:
    path = train(SMALL, **DUMMY).unwrap().path
    path.write_bytes(damage(path.read_bytes()))
    problem = resume("a").failure()
    assert (problem.kind, problem.address) == (kind, str(path))
    # The file has been given back: the same call meets the same problem.
    assert resume("a").failure() == problem


def test_a_model_that_fails_is_a_failure_and_the_run_can_be_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working = wiring._MODELS["dummy"]

    def broken(parts: WiringContext) -> Models:
        models, left = working(parts), [20]

        async def sampler(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
            left[0] -= 1
            if left[0] < 0:
                return Failure(Problem("the model is out of order"))
            return await models.sampler(request)

        return models._replace(sampler=sampler)

    monkeypatch.setitem(wiring._MODELS, "dummy", broken)
    problem = refused()
    assert (problem.kind, problem.problem) == ("adapter", "the model is out of order")
    monkeypatch.setitem(wiring._MODELS, "dummy", working)
    resumed = resume("a").unwrap()
    assert resumed.digest == train(SMALL, provider="dummy", name="b").unwrap().digest


def test_a_budget_that_is_used_up_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def paid(parts: WiringContext) -> Models:
        sampler = within_budget(dummy.dummy_sampler(parts.params.dummy), parts.meter)
        return Models(sampler, dummy.dummy_tuner(), dummy.serve_at_once)

    monkeypatch.setitem(wiring._MODELS, "api", paid)
    (tmp_path / "prices.toml").write_text('[models]\n"m" = { prompt = 1.0, completion = 1.0 }\n')
    tests = {"rl": {"num_iterations": 0}, "agents": {"_default": {"model_name": "m"}}}
    settings = merge(SMALL, tests)
    prices = tmp_path / "prices.toml"
    options = {"provider": "openrouter", "budget": 1e-5, "prices": prices}
    problem = refused(settings, **options)
    assert problem.kind == "budget"
    assert "--budget MORE" in problem.remedy
    assert refused(settings, **{**options, "prices": None, "name": "b"}).kind == "usage"


def test_a_record_does_not_vouch_for_the_servers_that_it_names() -> None:
    agent = {"model_name": "m", "api_base_url": "https://somewhere.example/v1"}
    server = {"agents": dict.fromkeys(("verifier", "prover"), agent)}
    params = plan(merge(SMALL, {"rl": {"num_iterations": 0}}), "openai", Path("runs")).params
    record = from_dict(merge(to_dict(params), server)).unwrap()
    assert "somewhere.example" in str(train(record, name="a").failure())
