"""Retests from Python: the models of every iteration of a run, tested again."""

from pathlib import Path
from typing import Any, NamedTuple, Unpack

from nip_fn.config.codec import merge
from nip_fn.errors import Problem
from nip_fn.metrics.evaluation import accuracy, verdicts
from nip_fn.metrics.inference import Estimate
from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.casting import Version, loaded, version_of, without_agents
from nip_fn_adapters.experiments.cells import Cell, cell_of, open_evaluation
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.plans import warn_of_unused
from nip_fn_adapters.experiments.settings import Settings, as_written
from nip_fn_adapters.experiments.testing import (
    EvaluationOptions,
    Measurement,
    measure,
    settings_for_testing,
)
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording.runs import Run


class RetestRow(NamedTuple):
    """The models of one iteration.

    iteration: Its number; after the last training there is one more.
    recorded_accuracy: The accuracy in the run's own test; None if it had none.
    measured: The measures of the new test; the gain is over iteration 0.
    """

    iteration: int
    recorded_accuracy: Estimate | None
    measured: Measurement


class RetestReport(NamedTuple):
    """The tests of the iterations of a run.

    folder: The folder that holds their runs.
    rows: Their measures, one row an iteration; iterations with the same models share a test.
    """

    folder: Path
    rows: tuple[RetestRow, ...]


@outcome
def retest(
    run: Run | Path | str,
    settings: Settings | None = None,
    *,
    provider: str | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    budget: float | None = None,
    prices: Path | None = None,
    tell: Tell | None = None,
    watch: Watch = NOBODY,
    **options: Unpack[EvaluationOptions],
) -> RetestReport:
    """Test the models of every iteration of a run again: `nip-fn retest`.

    Each test is recorded as a run.  The same call resumes a retest that was stopped, and reads one
    that is done.

    Args:
        run: The run: its name in `runs`, its folder, or itself.
        settings: As for `train`; what they leave out is as in the run.
        provider: The provider of all agents, whatever the settings say of them.
        name: A name for the tests' runs; None for one made from their parameters.
        runs: The folder of all runs.
        budget: Dollars; the retest stops before it would cost more.
        prices: A file of prices, which go before those that are known.
        tell: Takes lines for people; None: nothing is printed.
        watch: A display and a way to stop the tests as well; see `Watch`.
        **options: `split`, `limit`, `shuffle`, `repeats`, `temperature`; see `EvaluationOptions`.

    Returns:
        The measures of each iteration.
    """
    watch, runs, money = watch.telling(tell), Path(runs), read_money(budget, prices)
    version = version_of(run, runs)
    if version.iteration is not None:
        problem = Problem("all iterations are tested", version.given, f"write {version.name}")
        refuse(problem)
    written = as_written(settings, watch)
    table = without_agents(version.run.params, written)
    tests = settings_for_testing(table, options)
    numbers = range(version.run.state.iteration + 1)
    cells = [_cell(version, number, tests, provider, runs, watch) for number in numbers]
    # An iteration whose training came to nothing has the models of the one before.
    distinct = {cell.new.params: cell for cell in reversed(cells)}
    planned = [cell for cell in cells if distinct[cell.new.params] is cell]
    warn_of_unused(written, provider, [cell.new for cell in planned], watch)
    evaluation = open_evaluation(planned, name, "tests", provider, money, runs, watch=watch)
    played = {cell.folder: evaluation.play(cell) for cell in planned}
    evaluation.tell_recorded()
    tested = [played[distinct[cell.new.params].folder] for cell in cells]
    rows = tuple(
        RetestRow(
            number,
            _recorded_accuracy(version.run, number),
            measure(tested[number], tested[0] if number else None),
        )
        for number in numbers
    )
    return RetestReport(evaluation.place, rows)


retest_async = asynchronous(retest)


def _cell(
    version: Version,
    number: int,
    table: dict[str, Any],
    provider: str | None,
    runs: Path,
    watch: Watch,
) -> Cell:
    """The test of the models that played in an iteration."""
    before = version._replace(iteration=number - 1)
    game = version.run.params.interaction_protocol
    cast = {**loaded(before, game, "verifier"), **loaded(before, game, "prover")}
    return cell_of(f"iteration-{number}", merge({"agents": cast}, table), provider, runs, watch)


def _recorded_accuracy(run: Run, iteration: int) -> Estimate | None:
    """The accuracy in the test that the run itself had recorded; None if there was none."""
    stages = run.stages("test", iteration)
    if not stages:
        return None
    return accuracy(verdicts(stages[0].batch.datapoints, stages[0].batch.trees))
