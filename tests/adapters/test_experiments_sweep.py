"""Studies from Python, whose cells are run in this process; tests/cli has those that are killed."""

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import pytest
from returns.pipeline import is_successful

from nip_fn.config.codec import merge
from nip_fn.config.study import Comparing, Study, cells
from nip_fn.errors import Problem
from nip_fn.metrics.study import tabulate
from nip_fn_adapters import compare, forecast_sweep, load_run, resume, sweep, sweep_async, train
from nip_fn_adapters.costs.prices import Prices, PriceTable
from nip_fn_adapters.costs.spending import run_cost
from nip_fn_adapters.experiments import sweeping, wiring
from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.studies.cell import LOG, Order
from nip_fn_adapters.experiments.studies.running import Ended
from nip_fn_adapters.experiments.sweeping import Sweep, cell_result
from nip_fn_adapters.experiments.watching import Watch
from nip_fn_adapters.processes.exits import Exit
from nip_fn_adapters.recording.store import CHECKPOINT

from ..cli.conftest import PRICES

STUDY: dict[str, Any] = {
    "seeds": 2,
    "base": {
        "dataset": "builtin:tea",
        "agents": {"_default": {"model_provider": "dummy"}},
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 8},
        "malt": {"num_responses_per_timestep": 2},
        "nip_protocol": {"max_message_rounds": 3},
        "dataset_options": {"max_test_size": 6},
    },
    "arms": {"malt": {}, "ei": {"trainer": "ei", "ei": {"rollouts_per_iteration": 8}}},
    "compare": {"baseline": "malt", "metrics": ["accuracy_1"]},
}
CELLS = ["malt-seed-1", "malt-seed-2", "ei-seed-1", "ei-seed-2"]


class Doors:
    """Implements `Crew`: a cell is run as it is begun, by the function behind its command."""

    def __init__(self) -> None:
        self._ended: list[Ended] = []

    def start(self, name: str, order: Order) -> None:
        *_, file, name_option, run, runs_option, runs = order.command[:9]
        assert (name_option, runs_option) == ("--run", "--runs")
        more = dict(zip(order.command[9::2], order.command[10::2], strict=True))
        options: dict[str, Any] = {"runs": runs, "provider": more.get("--provider")}
        if "--budget" in more:
            options |= {"budget": float(more["--budget"]), "prices": Path(more["--prices"])}
        exists = (Path(order.folder) / CHECKPOINT).exists()
        result = resume(run, file, **options) if exists else train(file, name=run, **options)
        code = Exit.OK if is_successful(result) else Exit[result.failure().kind.upper()]
        if code:
            (Path(order.folder) / LOG).write_text(f"nip-fn: {result.failure()}\n")
        self._ended.append(Ended(name, code))

    def ended(self, seconds: float) -> Sequence[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self, name: str) -> None:
        """Stop nothing: it has ended."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A study that is done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "LocalCrew", Doors)
        studies = tmp_path_factory.mktemp("swept") / "studies"
        return sweep(STUDY, name="s", studies=studies).unwrap()


@pytest.fixture(autouse=True)
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of this process, in a working directory of their own."""
    monkeypatch.setattr(sweeping, "LocalCrew", Doors)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def study(swept: Sweep) -> Path:
    """That study as `studies/s` of the working directory."""
    return Path(shutil.copytree(swept.folder, "studies/s"))


def digests(folder: Path) -> dict[str, str]:
    """The digest of each run in a folder, all of which are done and true to their recordings."""
    runs = {path.parent.name: load_run(path).unwrap() for path in folder.glob(f"*/{CHECKPOINT}")}
    assert {(run.faults, run.state.stage.name) for run in runs.values()} == {((), "done")}
    return {name: run.digest for name, run in runs.items()}


def refused(study: Any, **options: Any) -> Problem:
    return sweep(study, name="s", **options).failure()


def test_each_cell_is_an_ordinary_run_and_the_table_has_its_numbers(swept: Sweep) -> None:
    assert [path.name for path in swept.done] == CELLS
    assert (swept.remaining, swept.stopped, swept.skipped) == ((), (), ())
    assert sorted(digests(swept.folder)) == sorted(CELLS)
    for row in swept.table.rows:
        runs = [load_run(swept.folder / f"{row.label}-seed-{seed}").unwrap() for seed in (1, 2)]
        tests = [[one for one in run.state.rows if one.stage == "test"][-1] for run in runs]
        values = [dict(test.metrics)["accuracy"] for test in tests]
        assert row.accuracies["after"].value == pytest.approx(sum(values) / 2)
    compared = compare("malt-seed-?", "ei-seed-?", runs=swept.folder).unwrap().comparison
    (over,) = swept.table.over_baseline
    assert over.comparison == compared
    assert len(swept.table.rises) == 2


def test_a_cell_is_the_run_that_train_would_make(study: Path) -> None:
    for name in ("given.json", "config.toml"):
        plain = train(study / "ei-seed-2" / name, name=Path(name).stem).unwrap()
        assert plain.digest == digests(study)["ei-seed-2"]


def test_a_study_that_is_done_is_shown_again_and_nothing_is_run(
    study: Path, swept: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sweeping.LocalCrew, "start")
    lines: list[str] = []
    again = sweep(STUDY, name="s", tell=lines.append).unwrap()
    assert again == swept._replace(
        folder=Path("studies/s"), done=tuple(Path("studies/s") / name for name in CELLS)
    )
    assert lines == ["study studies/s: 4 cells, 4 of them done before"]


def test_cells_and_tests_are_added_and_those_that_are_there_are_kept(study: Path) -> None:
    before = digests(study)
    tested = {**STUDY, "tests": {"rare": {"dummy": {"decision_rate": 0.2}}}}
    found = sweep(tested, name="s").unwrap()
    after = digests(study)
    assert after.keys() - before.keys() == {
        f"{cell}-rare-{version}" for cell in CELLS for version in ("base", "latest")
    }
    assert {name: after[name] for name in before} == before
    # A test plays what the cell has trained: with the same words, as often as they come to a
    # decision, it would be the test of the cell again.
    for row in found.table.rows:
        runs = [
            load_run(study / f"{row.label}-seed-{seed}-rare-latest").unwrap() for seed in (1, 2)
        ]
        values = [dict(run.state.rows[0].metrics)["accuracy"] for run in runs]
        assert row.accuracies["rare: after"].value == pytest.approx(sum(values) / 2)
        lineage = load_run(study / f"{row.label}-seed-1").unwrap().state.groups
        assert [g.lineage[-1:] for g in runs[0].state.groups] == [g.lineage[-1:] for g in lineage]


@pytest.mark.usefixtures("study")
@pytest.mark.parametrize(
    ("change", "address"),
    [
        ({"rl": {"num_iterations": 2}}, "rl.num_iterations"),
        ({"dataset_options": {"max_test_size": 10}}, "dataset_options.max_test_size"),
        ({"dummy": {"decision_rate": 0.9}}, "dummy.decision_rate"),
    ],
)
def test_other_parameters_are_refused_before_anything_is_run(
    change: dict[str, Any], address: str
) -> None:
    problem = refused(merge(STUDY, {"base": change}))
    assert problem.kind == "run"
    assert address in problem.problem
    assert "`name`" in problem.remedy


def test_a_cell_that_stops_says_why_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working = wiring._MODELS["dummy"]

    def broken(context: wiring.WiringContext) -> wiring.Models:
        if context.params.trainer == "ei":
            refuse(Problem("the model is out of order", kind="adapter"))
        return working(context)

    monkeypatch.setitem(wiring._MODELS, "dummy", broken)
    found = sweep({**STUDY, "seeds": 1}, name="s").unwrap()
    assert [row.label for row in found.table.rows] == ["malt"]
    assert found.remaining == ("ei-seed-1",)
    assert found.stopped == (("ei-seed-1", Exit.ADAPTER, "the model is out of order"),)
    monkeypatch.setitem(wiring._MODELS, "dummy", working)
    assert sweep({**STUDY, "seeds": 1}, name="s").unwrap().remaining == ()


def test_a_forecast_has_each_cell_and_runs_none() -> None:
    planned = forecast_sweep(STUDY).unwrap()
    assert list(planned) == CELLS
    assert all(cell.total.expected.requests > 0 for cell in planned.values())
    assert not Path("studies").exists()


def test_a_budget_is_one_for_all_cells(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    few = sweep(STUDY, name="s", jobs=3, budget=0.1, prices=prices).unwrap()
    # What the cheap cells left was for the others, and was not enough for them.
    assert [path.name for path in few.done] == ["ei-seed-1", "ei-seed-2"]
    assert [(cell.cell, cell.code) for cell in few.stopped] == [
        ("malt-seed-1", Exit.BUDGET),
        ("malt-seed-2", Exit.BUDGET),
    ]
    known = read_money(file=prices).prices
    spent = [run_cost(load_run(few.folder / name).unwrap().state, known) for name in CELLS]
    assert 0 < sum(amount or 0 for amount in spent) <= 0.1
    whole = sweep(STUDY, name="s", budget=100.0, prices=prices).unwrap()
    assert len(whole.done) == 4


def test_a_study_is_a_table_a_file_or_a_record(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_bytes(msgspec.json.encode(STUDY))
    table = forecast_sweep(STUDY).unwrap()
    record = sweeping.read_study("own.json").unwrap()
    assert record.name == "own"
    assert forecast_sweep("own.json").unwrap() == forecast_sweep(record).unwrap() == table
    changed = sweeping.read_study(record, {"trainer": "ei"}, seeds=[7], name="x").unwrap()
    assert [cell.name for cell in cells(changed)] == ["malt-seed-7", "ei-seed-7"]
    assert (changed.name, changed.base["trainer"]) == ("x", "ei")
    assert "seeds" in str(sweep({"seeds": 0}).failure())


def test_the_training_of_a_study_without_tests_is_its_result() -> None:
    settings = merge(STUDY["base"], {"text_rl": {"test_scheme": "none"}})
    run = train(settings, name="a").unwrap()
    study = Study("s", {}, compare=Comparing(metrics=("acceptance_rate",)))
    (cell,) = cells(study)
    found = cell_result(run, study.compare.metrics, Prices(PriceTable(), PriceTable()))
    rows = [dict(one.metrics) for one in run.state.rows if one.stage == "train"]
    (sampled,) = [dict(one.metrics) for one in run.state.rows if one.stage == "sample"]
    assert found.tests == {}
    assert found.means["acceptance_rate"] == sampled["acceptance_rate"]
    assert found.means["sampled accuracy"] == sampled["accuracy"]
    assert found.means["trainings"] == sum(row["jobs"] for row in rows) > 0
    trained = sum(row.get(f"{name}.rows", 0) for row in rows for name in ("prover", "verifier"))
    assert found.means["training rows"] == trained
    (row,) = tabulate(study, {cell.name: found}).rows
    assert (row.accuracies, row.cells) == ({}, 1)


# ---------------------------------------------------------------------------------- loops and tasks

SINGLE = {**STUDY, "seeds": 1, "arms": {}, "compare": {}}


def test_it_works_where_a_loop_is_running_as_in_a_notebook() -> None:
    async def cell() -> Sweep:
        return sweep(SINGLE, name="s").unwrap()

    assert [path.name for path in asyncio.run(cell()).done] == ["seed-1"]


class Endless:
    """Implements `Crew`: a cell ends only if it is stopped."""

    def __init__(self) -> None:
        self._begun, self._stopped = threading.Event(), SimpleQueue[Ended]()
        crews.append(self)

    async def begun(self) -> None:
        await asyncio.to_thread(self._begun.wait)

    def start(self, name: str, order: Order) -> None:
        self._begun.set()

    def ended(self, seconds: float) -> Sequence[Ended]:
        with suppress(Empty):
            return [self._stopped.get(timeout=0.01)]
        return []

    def stop(self, name: str) -> None:
        self._stopped.put(Ended(name, None))


crews: list[Endless] = []


def test_a_sweep_whose_task_is_cancelled_stops_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "LocalCrew", Endless)
    crews.clear()

    async def cancelled() -> None:
        task = asyncio.create_task(sweep_async(SINGLE, name="s"))
        while not crews:
            await asyncio.sleep(0.01)
        await crews[0].begun()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_sweep_that_is_stopped_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "LocalCrew", Endless)

    @contextmanager
    def stopping(grace: float) -> Iterator[asyncio.Event]:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, stop.set)
        yield stop

    problem = refused(SINGLE, watch=Watch(stopping=stopping))
    assert problem.kind == "interrupted"
    assert "resume with the same command" in problem.problem
