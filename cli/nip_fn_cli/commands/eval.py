"""`nip-fn eval`: test protocols and models without training any."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from nip_fn.config.codec import changes, merge
from nip_fn.config.study import ARM, Axis, Comparing, Level, Study, with_seeds
from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn_adapters import extensions
from nip_fn_adapters.experiments.cells import (
    Cell,
    Tested,
    cell_of,
    evaluation_name,
    open_evaluation,
)
from nip_fn_adapters.experiments.plans import checked_name, warn_of_unused
from nip_fn_adapters.experiments.settings import named
from nip_fn_adapters.recording.overview import overview
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.config import overrides
from nip_fn_cli.evaluating import evaluation_table, facts, folder_of, of_protocol
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
    money_or_die,
    seeds_or_die,
)
from nip_fn_cli.shown.table import MARK
from nip_fn_cli.shown.tests import print_facts
from nip_fn_cli.shown.watching import TERMINAL
from nip_fn_cli.sweeping import Running, run_study

# The verifier alone: a protocol is worth what its verifier gains over this.
BASELINE = "solo_verifier"


class Case(NamedTuple):
    """One protocol with one cast.

    protocol: the game.
    models: agent -> its model.
    verifiers: the models of the verifiers.
    cell: its test.
    """

    protocol: str
    models: dict[str, str]
    verifiers: tuple[str, ...]
    cell: Cell


class Result(NamedTuple):
    """The results of a case."""

    case: Case
    tested: Tested


def eval_command(
    config: TestedArgument = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="A game; may be repeated.  The default is nip, with solo_verifier to compare.",
            metavar="NAME",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model for all agents; may be repeated.", metavar="NAME"),
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
    run: TestNameOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Test protocols and models without training them.

    Prints how often the verifier is right, and on how many datapoints it always fails.  Each test
    is recorded as a run, for nip-fn replay.  The same command resumes a test that was stopped.
    """
    money, numbers = money_or_die(budget, prices), seeds_or_die(seeds)
    if numbers is not None and seed is not None:
        die(Exit.USAGE, "--seed is an option of tests with one seed; leave out --seeds")
    written = overrides(
        config,
        base_url=base_url,
        batch=batch,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        sets=sets,
    )
    table = evaluation_table(
        written,
        split=split,
        limit=limit,
        shuffle=shuffle,
        repeats=repeats,
        temperature=temperature,
    )
    cases = _cases(table, protocol or (), model or (), verifier_model, prover_model, provider, runs)
    cells = [case.cell for case in cases]
    if numbers is not None:
        name = checked_name(run) or f"{evaluation_name('eval', cells)}-seeds"
        study = with_seeds(_study(name, cases), numbers)
        run_study(study, runs / name, Running(provider, prices=prices), money, as_json=as_json)
        return
    warn_of_unused(written, provider, [cell.new for cell in cells], TERMINAL)
    evaluation = open_evaluation(cells, run, "eval", provider, money, runs, watch=TERMINAL)
    for problem in _other_data(evaluation.place, cells):
        die(Exit.USAGE, problem)
    results = [Result(case, evaluation.play(case.cell)) for case in cases]
    evaluation.tell_recorded()
    rows = [_row(result, results) for result in results]
    if as_json:
        print(json.dumps({"runs": str(evaluation.place), "tests": rows}, indent=2))
        return
    _print(rows)
    first = evaluation.place / cells[0].folder
    print(f"\nTo look closer: {command('nip-fn', 'show', first)}")


def _other_data(folder: Path, cells: list[Cell]) -> Iterator[Problem]:
    """A problem if the evaluation that has this name already tests other datapoints.

    Further models and games on the same datapoints are welcome beside its own.
    """
    tested = {cell.folder for cell in cells}
    for path in sorted(folder.glob(f"*/{CHECKPOINT}")):
        recorded = overview(path.parent, path.parent.name).params
        if recorded is None or path.parent.name in tested:  # the same test differs in better words
            continue
        for address, (before, now) in changes(recorded, cells[0].new.params).items():
            if address.startswith(("dataset", "test_dataset_split")):
                difference = (
                    f"{path.parent.name} was tested there with {address} = {before}, not {now}"
                )
                yield Problem(difference, str(folder), "give this test another name (--run NAME)")


def _study(name: str, cases: Sequence[Case]) -> Study:
    """The study whose arms are the cases, each compared with the baseline of its verifier."""
    arms = Axis(ARM, tuple(Level(case.cell.folder, case.cell.given) for case in cases))
    alone = {case.verifiers: case.cell.folder for case in cases if case.protocol == BASELINE}
    over = {
        case.cell.folder: alone[case.verifiers]
        for case in cases
        if case.protocol != BASELINE and case.verifiers in alone
    }
    return Study(name, {}, (arms,), compare=Comparing(baseline=over))


def _cases(
    table: dict[str, Any],
    protocols: Sequence[str],
    models: Sequence[str],
    verifier_model: str | None,
    prover_model: str | None,
    provider: str | None,
    runs: Path,
) -> list[Case]:
    """Each protocol with each model, or with the models of the configuration."""
    # The configuration may name the baseline itself, which then is tested once.
    tested = dict.fromkeys(protocols or (table.get("interaction_protocol", "nip"), BASELINE))
    named(
        {
            "interaction_protocol": tuple(protocols),
            "model_name": (*models, verifier_model, prover_model),
        }
    )
    for protocol in tested:  # those of one's own, whose agents must be known
        or_exit(extensions.register({"interaction_protocol": protocol}))
    cases: dict[HyperParameters, Case] = {}
    for model in dict.fromkeys(models) or (None,):
        for protocol in tested:
            played = {} if model is None else {"agents": {"_default": {"model_name": model}}}
            written = of_protocol(
                merge(table, played),
                protocol,
                verifier_model=verifier_model,
                prover_model=prover_model,
                tested=tested,
            )
            folder = folder_of(protocol, *([] if model is None else [model]))
            cell = cell_of(folder, written, provider, runs, TERMINAL)
            # Models that differ in the provers alone share the verifier alone.
            cases.setdefault(cell.new.params, _case(protocol, cell))
    return list(cases.values())


def _case(protocol: str, cell: Cell) -> Case:
    models = {agent.name: agent.model_name for agent in cell.new.params.agents}
    specs = protocol_of(cell.new.params).agents
    verifiers = tuple(models[spec.name] for spec in specs if spec.role == "verifier")
    return Case(protocol, models, verifiers, cell)


def _row(result: Result, everything: list[Result]) -> dict[str, Any]:
    """The facts of a case; its gain is over the baseline with the same verifier."""
    alone = (BASELINE, result.case.verifiers)
    baseline = next(
        (r for r in everything if (r.case.protocol, r.case.verifiers) == alone and r is not result),
        None,
    )
    return {
        "protocol": result.case.protocol,
        "model": ", ".join(dict.fromkeys(result.case.models.values())),
        "models": result.case.models,
        **facts(result.tested, baseline and baseline.tested),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    names = {
        "protocol": [row["protocol"] for row in rows],
        "model": [_told(row["models"]) for row in rows],
    }
    print_facts(names, rows, over=BASELINE)
    for row in rows:
        for warning in row["warnings"]:
            print(f"{MARK} {row['protocol']}, {_told(row['models'])}: {warning}")


def _told(models: dict[str, str]) -> str:
    """The models of a cast; which agent has which, if they differ."""
    if len(set(models.values())) == 1:
        return next(iter(models.values()))
    return ", ".join(f"{name} {model}" for name, model in models.items())
