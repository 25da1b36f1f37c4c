"""The cells of a study, each run as an ordinary command, and the table of all of them."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from nip_fn.config.study import Study
from nip_fn.errors import Problem
from nip_fn.metrics.study import tabulate
from nip_fn_adapters.durable import replace_file
from nip_fn_adapters.experiments.budgets import Money, check_budget, money_of_run, spent_at_most
from nip_fn_adapters.experiments.forecasting import forecast_plan, sum_ranges
from nip_fn_adapters.experiments.own_server import COMMAND
from nip_fn_adapters.experiments.studies.cell import Order, hand_over
from nip_fn_adapters.experiments.studies.local import LocalCrew
from nip_fn_adapters.experiments.studies.on_ray import obstacle_on_ray, ray_crew
from nip_fn_adapters.experiments.studies.plans import Planned, planned
from nip_fn_adapters.experiments.studies.running import Budget, Crew, Task, run_all
from nip_fn_adapters.experiments.watching import Watch
from nip_fn_adapters.experiments.wiring import check_apis
from nip_fn_adapters.recording.overview import overview
from nip_fn_adapters.recording.runs import load_run
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.shown.dryrun import COLUMNS, cells, say_budget
from nip_fn_cli.shown.exits import Exit, command, die, or_exit, say
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.study_board import Board, why
from nip_fn_cli.shown.study_table import outcome, print_study, record
from nip_fn_cli.shown.watching import TERMINAL

GIVEN = "given.json"  # in the folder of a cell: the configuration that it was started with
WELL = (Exit.OK, Exit.SKIPPED)  # the exit codes of runs that are done
RATE = 10.0  # requests a second that a forecast assumes


class Running(NamedTuple):
    """The way in which the cells of a study are run.

    provider: of all agents; None for those of the configuration.
    jobs: the most cells at a time; None for one here, and for as many as fit on a cluster.
    ray: the address of a Ray cluster; None for this machine.
    prices: a file of prices.
    """

    provider: str | None = None
    jobs: int | None = None
    ray: str | None = None
    prices: Path | None = None


def run_study(
    study: Study,
    folder: Path,
    running: Running,
    money: Money,
    *,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Run what is not done of a study, and print its table; or print a forecast."""
    if money.budget is None:
        money = money._replace(budget=study.budget)
    watch = TERMINAL.once()
    plans = planned(study, folder, running.provider, watch)
    for cell_plan in plans:
        check_apis(cell_plan.new.params)
        check_budget(cell_plan.new.params, money)
    if dry_run:
        if study.forest is not None:
            problem = "--dry-run forecasts runs that sample for themselves"
            die(Exit.USAGE, Problem(problem, remedy="leave it out, or the forest"))
        _forecast(plans, money, watch)
        return
    codes = _run(study, plans, folder, running, money)
    _report(study, plans, folder, money, as_json)
    _end(plans, codes)


def _forecast(plans: Sequence[Planned], money: Money, watch: Watch) -> None:
    """Print what each cell would ask for and cost, and the sum."""
    workloads = [forecast_plan(cell_plan.new, money.prices, watch).total for cell_plan in plans]
    whole = sum_ranges(workloads)
    rows = [
        (cell_plan.cell.name, *cells(workload, RATE)[:-1])
        for cell_plan, workload in zip(plans, workloads, strict=True)
    ]
    print("expected / at most, where they differ\n")
    print_rows(("cell", *COLUMNS, "dollars"), [*rows, ("total", *cells(whole, RATE)[:-1])])
    say_budget(whole.dollars, money.budget)


# ------------------------------------------------------------------------------------------ running


def _run(
    study: Study, plans: Sequence[Planned], folder: Path, running: Running, money: Money
) -> Mapping[str, int]:
    """Run the cells that are not done; the exit codes of those that were begun."""
    by_name = {cell_plan.cell.name: cell_plan for cell_plan in plans}
    finished = {name for name, cell_plan in by_name.items() if _is_done(cell_plan)}
    remaining = [cell_plan for cell_plan in plans if cell_plan.cell.name not in finished]
    before = f", {len(finished):,} of them done before" if finished else ""
    say(f"study {folder}: {len(plans):,} cells{before}")

    def spent(name: str) -> float:
        cell_plan = by_name[name]
        return 0.0 if money.budget is None or not _exists(cell_plan) else _spent(cell_plan, money)

    if not remaining:
        return {}
    crew: Crew = LocalCrew()
    if running.ray is not None:
        crew = or_exit(ray_crew(running.ray, study.resources))
        if obstacle := obstacle_on_ray(study.resources):
            say(f"nip-fn: {obstacle}: the cells stay queued until one has ([resources])")
    board = Board([cell_plan.folder for cell_plan in plans], finished, WELL)
    with board, _interrupted() as stopping:
        codes = run_all(
            [_task(cell_plan, folder, running) for cell_plan in remaining],
            crew,
            running.jobs or (len(plans) if running.ray else 1),
            Budget(money.budget, {name: spent(name) for name in by_name}),
            spent=spent,
            well=WELL,
            over_budget=Exit.BUDGET,
            look=board,
            stopping=stopping,
        )
    if stopping():
        die(Exit.INTERRUPTED, "stopped; nothing is lost, resume with the same command")
    return codes


def _task(cell_plan: Planned, folder: Path, running: Running) -> Task:
    def order(share: float | None) -> Order:
        hand_over(cell_plan.folder)
        written = cell_plan.folder.absolute() / GIVEN
        replace_file(written, msgspec.json.format(msgspec.json.encode(cell_plan.cell.written)))
        options = {"--provider": running.provider, "--budget": share, "--prices": running.prices}
        words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        run = ("--run", cell_plan.cell.name, "--runs", str(folder.absolute()))
        fork = cell_plan.new.fork
        taken = fork and ("--from", str(fork.folder), "--iteration", str(fork.iteration))
        return Order(
            str(cell_plan.folder.absolute()),
            (sys.executable, "-c", COMMAND, "train", str(written), *run, *(taken or ()), *words),
            ("--resume",),
            str(Path.cwd()),
        )

    return Task(
        cell_plan.cell.name, order, cell_plan.cell.tested.cell if cell_plan.cell.tested else None
    )


def _exists(cell_plan: Planned) -> bool:
    return (cell_plan.folder / CHECKPOINT).exists()


def _is_done(cell_plan: Planned) -> bool:
    return _exists(cell_plan) and overview(cell_plan.folder, cell_plan.cell.name).status == "done"


def _spent(cell_plan: Planned, money: Money) -> float:
    state = or_exit(load_run(cell_plan.folder)).state
    return spent_at_most(state, cell_plan.folder, money_of_run(money, cell_plan.folder))


@contextmanager
def _interrupted() -> Iterator[Callable[[], bool]]:
    """A function that is true once Ctrl-C was pressed or SIGTERM sent; a second one kills."""
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        if signals:  # the cells end with this process
            sys.exit(int(Exit.INTERRUPTED))
        signals.append(number)
        say("stopping all cells after the replies that are under way; Ctrl-C again to stop at once")

    kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------ the end


def _report(
    study: Study, plans: Sequence[Planned], folder: Path, money: Money, as_json: bool
) -> None:
    """Print the table of the cells that are done."""
    results = {}
    for cell_plan in plans:
        if _is_done(cell_plan):
            prices = money_of_run(money, cell_plan.folder).prices
            run = or_exit(load_run(cell_plan.folder))
            results[cell_plan.cell.name] = outcome(run, study.compare.metrics, prices)
    try:
        table = tabulate(study, results)
    except ValueError as error:
        remedy = "vary nothing that changes the held-out datapoints, or make it a study of its own"
        die(Exit.USAGE, Problem(str(error), str(folder), remedy))
    if as_json:
        print(json.dumps({"study": str(folder), **record(table, study)}, indent=2))
        return
    print_study(table, study)
    print(f"\nTo look closer: {command('nip-fn', 'ls', '--runs', folder)}")


def _end(plans: Sequence[Planned], codes: Mapping[str, int]) -> None:
    """Say why cells were stopped, and end with the first one's exit code."""
    stopped = [
        (cell_plan, code)
        for cell_plan in plans
        if (code := codes.get(cell_plan.cell.name, 0)) not in WELL
    ]
    for cell_plan, code in stopped:
        say(f"{cell_plan.cell.name} (exit code {code}): {why(code, cell_plan.folder)}")
    if stopped:
        remaining = sum(not _is_done(cell_plan) for cell_plan in plans)
        say(
            f"nip-fn: {remaining:,} of {len(plans):,} cells are not done; resume with the same "
            "command"
        )
        sys.exit(next(code for _, code in stopped))
    if Exit.SKIPPED in codes.values():
        die(Exit.SKIPPED, "all cells are done, but some went on without a training that failed")
