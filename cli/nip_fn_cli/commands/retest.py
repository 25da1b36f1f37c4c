"""`nip-fn retest`: the models of every iteration of a run, tested again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nip_fn_adapters.experiments.retesting import RetestRow, retest
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.exits import command, or_exit
from nip_fn_cli.shown.numbers import percent
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
)
from nip_fn_cli.shown.table import MARK
from nip_fn_cli.shown.tests import as_table, print_tests
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
    table = overrides(
        base_url=base_url,
        batch=batch,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        sets=sets,
    )
    retested = retest(
        run,
        table,
        split=split,
        limit=limit,
        shuffle=shuffle,
        repeats=repeats,
        temperature=temperature,
        provider=provider,
        name=name,
        runs=runs,
        budget=budget,
        prices=prices,
        watch=TERMINAL,
    )
    report = or_exit(retested)
    if as_json:
        tests = [
            {
                "iteration": row.iteration,
                "recorded_accuracy": row.recorded_accuracy and row.recorded_accuracy._asdict(),
                **as_table(row.measured),
            }
            for row in report.rows
        ]
        print(json.dumps({"runs": str(report.folder), "tests": tests}, indent=2))
        return
    _print(report.rows)
    print(f"\nTo look closer: {command('nip-fn', 'show', report.rows[0].measured.run.path.parent)}")


def _print(rows: tuple[RetestRow, ...]) -> None:
    names = {"iteration": [str(row.iteration) for row in rows]}
    recorded = [row.recorded_accuracy for row in rows]
    if any(recorded):
        names["recorded"] = [percent(estimate and estimate.value) for estimate in recorded]
    print_tests(names, [row.measured for row in rows], over="iteration 0")
    for row in rows:
        for warning in row.measured.warnings:
            print(f"{MARK} iteration {row.iteration}, {warning.partition(', ')[2]}")
