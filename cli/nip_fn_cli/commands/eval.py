"""`nip-fn eval`: test protocols and models without training any."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_fn.metrics.card import BASELINES
from nip_fn_adapters.experiments.evaluating import EvaluationRow, evaluate, evaluation_study
from nip_fn_adapters.experiments.sweeping import sweep
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.options import (
    BaseUrlOption,
    BatchOption,
    BudgetOption,
    DatasetOption,
    JsonOption,
    LimitOption,
    PricesOption,
    ProverModelOption,
    ProviderOption,
    RepeatsOption,
    RunsOption,
    SeedOption,
    SeedsOption,
    SetOption,
    ShuffleOption,
    SkipOption,
    SplitOption,
    TemperatureOption,
    TestedArgument,
    TestNameOption,
    TrustOption,
    VerifierModelOption,
    seeds_or_die,
)
from nip_fn_cli.shown.study_table import print_sweep
from nip_fn_cli.shown.table import MARK
from nip_fn_cli.shown.tests import as_table, print_tests
from nip_fn_cli.shown.watching import TERMINAL


def eval_command(
    config: TestedArgument = None,
    protocols: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol",
            help="A game; may be repeated.  The default is nip, with solo_verifier to compare "
            "(solo_judge, if answers are written).",
            metavar="NAME",
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model for all agents; may be repeated.", metavar="NAME"),
    ] = None,
    verifier_model: VerifierModelOption = None,
    prover_model: ProverModelOption = None,
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
    seeds: SeedsOption = None,
    sets: SetOption = None,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    name: TestNameOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Test protocols and models without training them.

    Prints how often the verifier is right, and on how many datapoints it always fails.  Each test
    is recorded as a run, for nip-fn replay.  The same command resumes a test that was stopped.
    """
    numbers = seeds_or_die(seeds)
    if numbers is not None and seed is not None:
        die(Exit.USAGE, "--seed is an option of tests with one seed; leave out --seeds")
    table = overrides(
        config,
        base_url=base_url,
        batch=batch,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        sets=sets,
    )
    subjects: dict[str, Any] = {
        "protocols": protocols or (),
        "models": models or (),
        "verifier_model": verifier_model,
        "prover_model": prover_model,
        "temperature": temperature,
        "split": split,
        "limit": limit,
        "shuffle": shuffle,
        "repeats": repeats,
        "provider": provider,
        "name": name,
        "runs": runs,
        "watch": TERMINAL,
    }
    if numbers is not None:
        study = or_exit(evaluation_study(table, seeds=numbers, **subjects))
        swept = sweep(
            study, provider=provider, budget=budget, prices=prices, studies=runs, watch=TERMINAL
        )
        print_sweep(or_exit(swept), as_json=as_json)
        return
    report = or_exit(evaluate(table, budget=budget, prices=prices, **subjects))
    if as_json:
        tests = list(map(_record, report.rows))
        print(json.dumps({"runs": str(report.folder), "tests": tests}, indent=2))
        return
    _print(report.rows)
    print(f"\nTo look closer: {command('nip-fn', 'show', report.rows[0].measured.run.path.parent)}")


def _record(row: EvaluationRow) -> dict[str, Any]:
    return {
        "protocol": row.protocol,
        "model": ", ".join(dict.fromkeys(row.models.values())),
        "models": row.models,
        **as_table(row.measured),
    }


def _print(rows: tuple[EvaluationRow, ...]) -> None:
    names = {
        "protocol": [row.protocol for row in rows],
        "model": [_cast(row.models) for row in rows],
    }
    alone = next((row.protocol for row in rows if row.protocol in BASELINES), BASELINES[0])
    print_tests(names, [row.measured for row in rows], over=alone)
    for row in rows:
        for warning in row.measured.warnings:
            print(f"{MARK} {row.protocol}, {_cast(row.models)}: {warning}")


def _cast(models: dict[str, str]) -> str:
    """The models of a cast; which agent has which, if they differ."""
    if len(set(models.values())) == 1:
        return next(iter(models.values()))
    return ", ".join(f"{name} {model}" for name, model in models.items())
