"""`nip-fn retest`: the models of every iteration of a run, tested again."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_fn.config.codec import merge, to_dict
from nip_fn.errors import Problem
from nip_fn.metrics.evaluation import accuracy, verdicts
from nip_fn_adapters.experiments.casting import Version, loaded, version_of
from nip_fn_adapters.experiments.cells import Cell, Evaluation, Tested, cell_of, open_evaluation
from nip_fn_adapters.experiments.plans import warn_of_unused
from nip_fn_adapters.recording.runs import Run
from nip_fn_cli.config import overrides
from nip_fn_cli.evaluating import evaluation_table, facts
from nip_fn_cli.shown.exits import Exit, command, die
from nip_fn_cli.shown.options import (
    BaseUrlOption,
    BatchOption,
    BudgetOption,
    DatasetOption,
    JsonOption,
    LimitOption,
    PricesOption,
    ProviderOption,
    RepeatsOption,
    RunsOption,
    SeedOption,
    SetOption,
    ShuffleOption,
    SkipOption,
    SplitOption,
    TemperatureOption,
    TestNameOption,
    TrustOption,
    money_or_die,
)
from nip_fn_cli.shown.table import MARK
from nip_fn_cli.shown.tests import print_facts
from nip_fn_cli.shown.watching import TERMINAL


def retest_command(
    run: Annotated[str, typer.Argument(help="A run's name, or its folder.")],
    temperature: TemperatureOption = None,
    provider: ProviderOption = None,
    base_url: BaseUrlOption = None,
    batch: BatchOption = False,
    dataset: DatasetOption = None,
    split: SplitOption = None,
    limit: LimitOption = None,
    shuffle: ShuffleOption = None,
    repeats: RepeatsOption = None,
    skip_bad_rows: SkipOption = False,
    seed: SeedOption = None,
    sets: SetOption = None,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    name: TestNameOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Test the models of every iteration of a run again.

    The parameters are those of the run, except those given here.  Each test is recorded as a run.
    The same command resumes a test that was stopped.
    """
    money = money_or_die(budget, prices)
    version = _version(run, runs)
    written = overrides(
        base_url=base_url,
        batch=batch,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        sets=sets,
    )
    table = evaluation_table(
        merge({**to_dict(version.run.params), "agents": {}}, written),
        split=split,
        limit=limit,
        shuffle=shuffle,
        repeats=repeats,
        temperature=temperature,
    )
    numbers = range(version.run.state.iteration + 1)
    cells = [_cell(version, number, table, provider, runs) for number in numbers]
    # An iteration whose training came to nothing has the models of the one before.
    distinct = {cell.new.params: cell for cell in reversed(cells)}
    planned = [cell for cell in cells if distinct[cell.new.params] is cell]
    warn_of_unused(written, provider, [cell.new for cell in planned], TERMINAL)
    evaluation = open_evaluation(planned, name, "tests", provider, money, runs, watch=TERMINAL)
    played = {cell.folder: evaluation.play(cell) for cell in planned}
    evaluation.tell_recorded()
    tested = [played[distinct[cell.new.params].folder] for cell in cells]
    rows = [_row(version.run, number, tested) for number in numbers]
    if as_json:
        print(json.dumps({"runs": str(evaluation.place), "tests": rows}, indent=2))
    else:
        _print(rows, evaluation, planned)


def _version(run: str, runs: Path) -> Version:
    """The run that is tested; ends the command if an iteration is named."""
    version = version_of(run, runs)
    if version.iteration is not None:
        die(Exit.USAGE, Problem("all iterations are tested", run, f"write {version.name}"))
    return version


def _cell(
    version: Version, number: int, table: dict[str, Any], provider: str | None, runs: Path
) -> Cell:
    """The test of the models that played in an iteration."""
    before = version._replace(iteration=number - 1)
    game = version.run.params.interaction_protocol
    cast = {**loaded(before, game, "verifier"), **loaded(before, game, "prover")}
    return cell_of(f"iteration-{number}", merge({"agents": cast}, table), provider, runs, TERMINAL)


def _row(run: Run, number: int, tested: list[Tested]) -> dict[str, Any]:
    """The facts of an iteration: the new test, and the one that the run itself had recorded."""
    recorded = [stage.batch for stage in run.stages("test", number)]
    before = [accuracy(verdicts(batch.datapoints, batch.trees))._asdict() for batch in recorded]
    baseline = tested[0] if number else None
    return {
        "iteration": number,
        "recorded_accuracy": before[0] if before else None,
        **facts(tested[number], baseline),
    }


def _print(rows: list[dict[str, Any]], evaluation: Evaluation, planned: list[Cell]) -> None:
    names = {"iteration": [str(row["iteration"]) for row in rows]}
    if any(row["recorded_accuracy"] for row in rows):
        recorded = [row["recorded_accuracy"] for row in rows]
        names["recorded"] = [
            f"{estimate['value']:.1%}" if estimate else "-" for estimate in recorded
        ]
    print_facts(names, rows, over="iteration 0")
    for row in rows:
        for warning in row["warnings"]:
            print(f"{MARK} iteration {row['iteration']}, {warning.partition(', ')[2]}")
    first = evaluation.place / planned[0].folder
    print(f"\nTo look closer: {command('nip-fn', 'show', first)}")
