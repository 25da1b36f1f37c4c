"""Studies from Python: the cells, each an ordinary run in a process of its own, and their table."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import NamedTuple, TypeVar

import msgspec

from nip_fn.config.codec import merge
from nip_fn.config.study import Study, with_seeds
from nip_fn.errors import Problem
from nip_fn.metrics.evaluation import verdicts
from nip_fn.metrics.study import AFTER, BEFORE, CellResult, StudyTable, tabulate
from nip_fn.params.training import grace_seconds
from nip_fn_adapters.costs.prices import Prices
from nip_fn_adapters.costs.spending import run_cost
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.experiments.budgets import (
    Money,
    check_budget,
    money_of_run,
    read_money,
    spent_at_most,
)
from nip_fn_adapters.experiments.concurrency import asynchronous, run_in_own_loop
from nip_fn_adapters.experiments.forecasting import RunForecast, forecast_plan
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.own_server import COMMAND
from nip_fn_adapters.experiments.plans import checked_name
from nip_fn_adapters.experiments.settings import Settings, as_written
from nip_fn_adapters.experiments.studies.cell import Order, hand_over, why_stopped
from nip_fn_adapters.experiments.studies.local import LocalCrew
from nip_fn_adapters.experiments.studies.on_ray import obstacle_on_ray, ray_crew
from nip_fn_adapters.experiments.studies.plans import (
    Planned,
    StudySettings,
    planned,
    study_as_written,
)
from nip_fn_adapters.experiments.studies.running import WELL, Budget, Crew, Task, run_all
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.experiments.wiring import check_apis
from nip_fn_adapters.processes.exits import Exit
from nip_fn_adapters.recording.overview import overview
from nip_fn_adapters.recording.runs import Run, load_run
from nip_fn_adapters.recording.store import CHECKPOINT

GIVEN = "given.json"  # in the folder of a cell: the configuration that it was started with

T = TypeVar("T")


class Stopped(NamedTuple):
    """A cell whose run has stopped before its end.

    cell: its name.
    code: the exit code of its process.
    why: the reason, in one line.
    """

    cell: str
    code: int
    why: str


class Sweep(NamedTuple):
    """The results of a study.

    study: the study.
    folder: of its runs.
    table: of the cells that are done.
    done: the folders of their runs.
    remaining: the names of the others.
    stopped: those of them that were begun, and why they stopped.
    skipped: the names of cells that are done, but went on without a training that failed.
    """

    study: Study
    folder: Path
    table: StudyTable
    done: tuple[Path, ...]
    remaining: tuple[str, ...]
    stopped: tuple[Stopped, ...]
    skipped: tuple[str, ...]


@outcome
def read_study(
    study: StudySettings,
    changes: Settings | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    forest: str | None = None,
    name: str | None = None,
    watch: Watch = NOBODY,
) -> Study:
    """A study as a record, with changes.

    Args:
        study: A table as in a file of a study, the path of such a file, or a record.
        changes: Settings that are laid over its base.
        seeds: Seeds instead of its own: 3 for 1, 2 and 3, or a list.
        forest: A run from whose recorded replies all cells select and train.
        name: The study's name; None for that of its file.
        watch: Told of what is otherwise in the nip library.
    """
    read = study_as_written(study, checked_name(name), watch)
    read = msgspec.structs.replace(read, base=merge(read.base, as_written(changes, watch)))
    if seeds is not None:
        read = with_seeds(read, seeds)
    return read if forest is None else msgspec.structs.replace(read, forest=forest)


@outcome
def sweep(
    study: StudySettings,
    *,
    provider: str | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    budget: float | None = None,
    prices: Path | None = None,
    name: str | None = None,
    studies: Path | str = "studies",
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> Sweep:
    """Run all cells of a study: `nip-fn sweep`.

    A study is a base configuration with axes along which it varies, and each cell is an ordinary
    run in `STUDIES/NAME`, in a process of its own.  Called again, a study that was stopped goes on.

    Args:
        study: A table as in a file of a study, the path of such a file, or a record.
        provider: The provider of all agents, whatever the study says of them.
        jobs: The most cells at a time; None for one, and on a Ray cluster for as many as fit.
        ray: The address of a Ray cluster; None for this machine.
        budget: Dollars for all cells together; None for the study's own budget.
        prices: A file of prices, which go before those that are known.
        name: The study's name; None for that of its file.
        studies: The folder that holds the studies.
        tell: Takes lines for people; None: nothing is printed.
        watch: A display and a way to stop the study as well; see `Watch`.

    Returns:
        The table of the cells that are done, and those that have stopped: one that fails does not
        end the others.
    """
    watch = watch.telling(tell)
    study = read_study(study, name=name, watch=watch).unwrap()
    folder = Path(studies) / study.name
    money = read_money(study.budget if budget is None else budget, prices)
    cells = _plans(study, folder, provider, money, watch.once())
    codes = _run(study, cells, folder, _Way(provider, jobs, ray, prices), money, watch)
    done = [cell for cell in cells if _is_done(cell)]
    return Sweep(
        study,
        folder,
        _table(study, done, folder, money),
        tuple(cell.folder for cell in done),
        tuple(cell.cell.name for cell in cells if cell not in done),
        tuple(
            Stopped(cell.cell.name, code, why_stopped(cell.folder, code))
            for cell in cells
            if (code := codes.get(cell.cell.name, 0)) not in WELL
        ),
        tuple(name for name, code in codes.items() if code == Exit.SKIPPED),
    )


@outcome
def forecast_sweep(
    study: StudySettings,
    *,
    provider: str | None = None,
    budget: float | None = None,
    prices: Path | None = None,
    name: str | None = None,
    studies: Path | str = "studies",
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> dict[str, RunForecast]:
    """Forecast the cells of a study, by their names; run none: `nip-fn sweep --dry-run`.

    Args:
        study: As for `sweep`, like all others.
        provider: The provider of all agents.
        budget: Dollars; refused if a price is unknown.
        prices: A file of prices.
        name: The study's name.
        studies: The folder that holds the studies.
        tell: Takes lines for people; None: nothing is printed.
        watch: See `Watch`.
    """
    watch = watch.telling(tell).once()
    study = read_study(study, name=name, watch=watch).unwrap()
    if study.forest is not None:
        problem = "only runs that sample for themselves are forecast"
        refuse(Problem(problem, remedy="leave out `forest`"))
    money = read_money(study.budget if budget is None else budget, prices)
    cells = _plans(study, Path(studies) / study.name, provider, money, watch)
    return {cell.cell.name: forecast_plan(cell.new, money.prices, watch) for cell in cells}


sweep_async = asynchronous(sweep)
forecast_sweep_async = asynchronous(forecast_sweep)


def _plans(
    study: Study, folder: Path, provider: str | None, money: Money, watch: Watch
) -> list[Planned]:
    """The plans of all cells; refuses if one of them cannot be run."""
    cells = planned(study, folder, provider, watch)
    for cell in cells:
        check_apis(cell.new.params)
        check_budget(cell.new.params, money)
    return cells


# ----------------------------------------------------------------------------------------- running


class _Way(NamedTuple):
    """The way in which the cells of a study are run; see `sweep`."""

    provider: str | None
    jobs: int | None
    ray: str | None
    prices: Path | None


def _run(
    study: Study, cells: Sequence[Planned], folder: Path, way: _Way, money: Money, watch: Watch
) -> Mapping[str, int]:
    """Run the cells that are not done; the exit codes of those that were begun."""
    by_name = {cell.cell.name: cell for cell in cells}
    finished = {name for name, cell in by_name.items() if _is_done(cell)}
    remaining = [cell for name, cell in by_name.items() if name not in finished]
    before = f", {len(finished):,} of them done before" if finished else ""
    watch.tell(f"study {folder}: {len(cells):,} cells{before}")
    if not remaining:
        return {}

    def spent(name: str) -> float:
        cell = by_name[name]
        return 0.0 if money.budget is None or not _exists(cell) else _spent(cell, money)

    crew: Crew = LocalCrew()
    if way.ray is not None:
        crew = ray_crew(way.ray, study.resources).unwrap()
        if obstacle := obstacle_on_ray(study.resources):
            watch.tell(f"nip-fn: {obstacle}: the cells stay queued until one has ([resources])")
    budget = Budget(money.budget, {name: spent(name) for name in by_name})
    tasks = [_task(cell, folder, way) for cell in remaining]
    hands = way.jobs or (len(cells) if way.ray else 1)
    grace = max(grace_seconds(cell.new.params.text_rl) for cell in remaining)

    async def running() -> tuple[Mapping[str, int], bool]:
        """The exit codes, and whether the cells were stopped."""
        with (
            watch.board([cell.folder for cell in cells], finished) as look,
            watch.stopping(grace) as stop,
        ):
            running_all = partial(
                run_all, tasks, crew, hands, budget, spent=spent, look=look, stopping=stop.is_set
            )
            return await _stoppable(running_all, stop), stop.is_set()

    codes, is_stopped = run_in_own_loop(running)
    if is_stopped:
        problem = "stopped; nothing is lost, resume with the same command"
        refuse(Problem(problem, kind="interrupted"))
    return codes


async def _stoppable(work: Callable[[], T], stop: asyncio.Event) -> T:
    """The result of work in a thread, which ends soon after the event that a cancellation sets."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    # Whoever does not wait for the end of the work, either, ends the process and its cells.
    Thread(target=run, daemon=True).start()
    ended = asyncio.wrap_future(result)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        if not stop.is_set():
            stop.set()
            await asyncio.wait((ended,))
        raise


def _task(planned_cell: Planned, folder: Path, way: _Way) -> Task:
    cell, cell_folder, new = planned_cell

    def order(share: float | None) -> Order:
        hand_over(cell_folder)
        written = cell_folder.absolute() / GIVEN
        replace_file(written, msgspec.json.format(msgspec.json.encode(cell.written)))
        options = {"--provider": way.provider, "--budget": share, "--prices": way.prices}
        words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        run = ("--run", cell.name, "--runs", str(folder.absolute()))
        fork = new.fork
        taken = fork and ("--from", str(fork.folder), "--iteration", str(fork.iteration))
        return Order(
            str(cell_folder.absolute()),
            (sys.executable, "-c", COMMAND, "train", str(written), *run, *(taken or ()), *words),
            ("--resume",),
            str(Path.cwd()),
        )

    return Task(cell.name, order, cell.tested.cell if cell.tested else None)


def _exists(cell: Planned) -> bool:
    return (cell.folder / CHECKPOINT).exists()


def _is_done(cell: Planned) -> bool:
    return _exists(cell) and overview(cell.folder, cell.cell.name).status == "done"


def _spent(cell: Planned, money: Money) -> float:
    state = load_run(cell.folder).unwrap().state
    return spent_at_most(state, cell.folder, money_of_run(money, cell.folder))


# ----------------------------------------------------------------------------------------- results


def _table(study: Study, done: Sequence[Planned], folder: Path, money: Money) -> StudyTable:
    """The table of the cells that are done."""
    results = {}
    for cell in done:
        prices = money_of_run(money, cell.folder).prices
        run = load_run(cell.folder).unwrap()
        results[cell.cell.name] = cell_result(run, study.compare.metrics, prices)
    try:
        return tabulate(study, results)
    except ValueError as error:
        remedy = "vary nothing that changes the held-out datapoints, or make it a study of its own"
        refuse(Problem(str(error), str(folder), remedy))


def cell_result(run: Run, metrics: Iterable[str], prices: Prices) -> CellResult:
    """The tests of a run that is done, and the means that a study shows of it.

    Of a run without a test they are those of its training.
    """
    stages = run.stages("test")
    tests = [verdicts(test.batch.datapoints, test.batch.trees) for test in stages]
    named = {BEFORE: tests[0]} if len(tests) > 1 else {}
    rows = {stage: [dict(row.metrics) for row in run.state.rows if row.stage == stage]
            for stage in ("test", "sample", "train")}  # fmt: skip
    last = next((rows[stage][-1] for stage in ("test", "sample") if rows[stage]), {})
    trained = {} if tests else _trained(rows["sample"], rows["train"])
    # Of a run that trains, those that it trains on.
    counted = rows["sample"] or rows["test"]
    return CellResult(
        {**named, AFTER: tests[-1]} if tests else {},
        {
            **{name: last.get(name) for name in metrics},
            **trained,
            "replies": sum(row["replies"] for row in counted),
            "seconds": sum(seconds for _, _, seconds in run.state.seconds),
            "dollars": run_cost(run.state, prices),
        },
    )


def _trained(
    sampled: Sequence[Mapping[str, float]], trained: Sequence[Mapping[str, float]]
) -> dict[str, float | None]:
    """The numbers of a run's training: of its last sampled games, and of all its trainings."""
    return {
        "sampled accuracy": sampled[-1].get("accuracy") if sampled else None,
        "trainings": sum(row["jobs"] - row["jobs_failed"] for row in trained),
        "training rows": sum(value for row in trained for name, value in row.items()
                    if name.endswith(".rows")),
    }  # fmt: skip
