"""`nip-fn sweep`: the cells of a study, each an ordinary run, and the table of all of them."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nip_fn.config.codec import merge
from nip_fn.config.study import Study, as_name, with_seeds
from nip_fn.errors import Problem
from nip_fn.metrics.study import tabulate
from nip_fn_adapters.experiments.budgets import Money, check_budget, money_of_run, spent_at_most
from nip_fn_adapters.experiments.forecasting import forecast_plan, sum_ranges
from nip_fn_adapters.experiments.own_server import COMMAND
from nip_fn_adapters.experiments.plans import checked_name, plan, usual_name
from nip_fn_adapters.experiments.studies.cell import Order, hand_over
from nip_fn_adapters.experiments.studies.local import LocalCrew
from nip_fn_adapters.experiments.studies.on_ray import obstacle_on_ray, ray_crew
from nip_fn_adapters.experiments.studies.plans import Planned, planned, read_study
from nip_fn_adapters.experiments.studies.running import Budget, Crew, Task, run_all
from nip_fn_adapters.experiments.watching import Watch
from nip_fn_adapters.experiments.wiring import check_apis
from nip_fn_adapters.recording.overview import overview
from nip_fn_adapters.recording.runs import load_run
from nip_fn_adapters.recording.store import CHECKPOINT, replace_file
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.dryrun import COLUMNS, cells, say_budget
from nip_fn_cli.shown.exits import Exit, command, die, or_exit, say
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.study_board import Board, why
from nip_fn_cli.shown.study_table import outcome, print_study, record
from nip_fn_cli.shown.watching import TERMINAL

GIVEN = "given.json"  # in the folder of a cell: the configuration that it was started with
WELL = (Exit.OK, Exit.SKIPPED)  # the exit codes of runs that are done
RATE = 10.0  # requests a second that a forecast assumes


class Choice(NamedTuple):
    """The options of the command.

    name: of the study; None for that of its file.
    seeds: in place of those of the study; None for those.
    forest: the run whose recorded replies all cells train on; None for that of the study, if any.
    sets: `a.b=value` laid over its base.
    provider: of all agents; None for those of the configuration.
    jobs: the most cells at a time; None for one here, and for as many as fit on a cluster.
    ray: the address of a Ray cluster; None for this machine.
    prices: a file of prices.
    dry: print a forecast alone.
    json: print JSON.
    """

    name: str | None = None
    seeds: int | tuple[int, ...] | None = None
    forest: str | None = None
    sets: tuple[str, ...] = ()
    provider: str | None = None
    jobs: int | None = None
    ray: str | None = None
    prices: Path | None = None
    dry: bool = False
    json: bool = False


def sweep_command(path: Path, choice: Choice, money: Money, studies: Path) -> None:
    """Run the command; given again, it goes on where it was stopped."""
    study = or_exit(read_study(path, checked_name(choice.name, "--name"), TERMINAL))
    study = replace(study, base=merge(study.base, overrides(Flags(sets=choice.sets))))
    if choice.seeds is not None:
        study = with_seeds(study, choice.seeds)
    if choice.forest is not None:
        study = replace(study, forest=choice.forest)
    run_study(study, studies / study.name, choice, money)


def train_seeds(flags: Flags, choice: Choice, money: Money, runs: Path) -> None:
    """Run the command `nip-fn train --seeds`: a study of one axis, whose cells are in RUNS/NAME."""
    given = overrides(flags)
    params = plan(given, flags.provider, runs, TERMINAL.once()).params
    name = checked_name(choice.name) or as_name(f"{usual_name(params)}-seeds")
    study = with_seeds(Study(name, given), choice.seeds or 1)
    run_study(study, runs / name, choice, money)


def run_study(study: Study, place: Path, choice: Choice, money: Money) -> None:
    """Run what is not done of a study, and print its table; or print a forecast."""
    if money.budget is None:
        money = money._replace(budget=study.budget)
    watch = TERMINAL.once()
    plans = planned(study, place, choice.provider, watch)
    for one in plans:
        check_apis(one.new.params)
        check_budget(one.new.params, money)
    if choice.dry:
        if study.forest is not None:
            told = "--dry-run forecasts runs that sample for themselves"
            die(Exit.USAGE, Problem(told, remedy="leave it out, or the forest"))
        _forecast(plans, money, watch)
        return
    codes = _run(study, plans, place, choice, money)
    _report(study, plans, place, choice, money)
    _end(plans, codes)


def _forecast(plans: Sequence[Planned], money: Money, watch: Watch) -> None:
    """Print what each cell would ask for and cost, and the sum."""
    workloads = [forecast_plan(one.new, money.prices, watch).total for one in plans]
    whole = sum_ranges(workloads)
    rows = [
        (one.cell.name, *cells(workload, RATE)[:-1])
        for one, workload in zip(plans, workloads, strict=True)
    ]
    print("expected / at most, where they differ\n")
    print_rows(("cell", *COLUMNS, "dollars"), [*rows, ("total", *cells(whole, RATE)[:-1])])
    say_budget(whole.dollars, money.budget)


# ------------------------------------------------------------------------------------------ running


def _run(
    study: Study, plans: Sequence[Planned], place: Path, choice: Choice, money: Money
) -> Mapping[str, int]:
    """Run the cells that are not done; the exit codes of those that were begun."""
    by_name = {one.cell.name: one for one in plans}
    done = {name for name, one in by_name.items() if _is_done(one)}
    left = [one for one in plans if one.cell.name not in done]
    before = f", {len(done):,} of them done before" if done else ""
    say(f"study {place}: {len(plans):,} cells{before}")

    def spent(name: str) -> float:
        one = by_name[name]
        return 0.0 if money.budget is None or not _exists(one) else _spent(one, money)

    if not left:
        return {}
    crew: Crew = LocalCrew()
    if choice.ray is not None:
        crew = or_exit(ray_crew(choice.ray, study.resources))
        if obstacle := obstacle_on_ray(study.resources):
            say(f"nip-fn: {obstacle}: the cells stay queued until one has ([resources])")
    board = Board([one.folder for one in plans], done, WELL)
    with board, _interrupted() as stopping:
        codes = run_all(
            [_task(one, place, choice) for one in left],
            crew,
            choice.jobs or (len(plans) if choice.ray else 1),
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


def _task(one: Planned, place: Path, choice: Choice) -> Task:
    def order(share: float | None) -> Order:
        hand_over(one.folder)
        given = one.folder.absolute() / GIVEN
        replace_file(given, msgspec.json.format(msgspec.json.encode(one.cell.written)))
        options = {"--provider": choice.provider, "--budget": share, "--prices": choice.prices}
        words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        own = ("--run", one.cell.name, "--runs", str(place.absolute()))
        fork = one.new.fork
        taken = fork and ("--from", str(fork.folder), "--iteration", str(fork.iteration))
        return Order(
            str(one.folder.absolute()),
            (sys.executable, "-c", COMMAND, "train", str(given), *own, *(taken or ()), *words),
            ("--resume",),
            str(Path.cwd()),
        )

    return Task(one.cell.name, order, one.cell.tested.cell if one.cell.tested else None)


def _exists(one: Planned) -> bool:
    return (one.folder / CHECKPOINT).exists()


def _is_done(one: Planned) -> bool:
    return _exists(one) and overview(one.folder, one.cell.name).status == "done"


def _spent(one: Planned, money: Money) -> float:
    state = or_exit(load_run(one.folder)).state
    return spent_at_most(state, one.folder, money_of_run(money, one.folder))


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
    study: Study, plans: Sequence[Planned], place: Path, choice: Choice, money: Money
) -> None:
    """Print the table of the cells that are done."""
    done = {}
    for one in plans:
        if _is_done(one):
            prices = money_of_run(money, one.folder).prices
            run = or_exit(load_run(one.folder))
            done[one.cell.name] = outcome(run, study.compare.metrics, prices)
    try:
        table = tabulate(study, done)
    except ValueError as error:
        remedy = "vary nothing that changes the held-out datapoints, or make it a study of its own"
        die(Exit.USAGE, Problem(str(error), str(place), remedy))
    if choice.json:
        print(json.dumps({"study": str(place), **record(table, study)}, indent=2))
        return
    print_study(table, study)
    print(f"\nTo look closer: {command('nip-fn', 'ls', '--runs', place)}")


def _end(plans: Sequence[Planned], codes: Mapping[str, int]) -> None:
    """Say why cells were stopped, and end with the first one's exit code."""
    stopped = [(one, code) for one in plans if (code := codes.get(one.cell.name, 0)) not in WELL]
    for one, code in stopped:
        say(f"{one.cell.name} (exit code {code}): {why(code, one.folder)}")
    if stopped:
        left = sum(not _is_done(one) for one in plans)
        say(f"nip-fn: {left:,} of {len(plans):,} cells are not done; resume with the same command")
        sys.exit(next(code for _, code in stopped))
    if Exit.SKIPPED in codes.values():
        die(Exit.SKIPPED, "all cells are done, but some went on without a training that failed")
