"""Evaluations from Python: protocols and models that are tested without being trained."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from nip_fn.config.codec import changes, merge
from nip_fn.config.study import ARM, Axis, Comparing, Level, Study, with_seeds
from nip_fn.errors import Problem
from nip_fn.metrics.card import BASELINES
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn_adapters.experiments.budgets import read_money
from nip_fn_adapters.experiments.cells import Cell, cell_of, evaluation_name, open_evaluation
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.plans import checked_name, warn_of_unused
from nip_fn_adapters.experiments.settings import Settings, as_written
from nip_fn_adapters.experiments.testing import (
    EvaluationOptions,
    Measurement,
    folder_name,
    measure,
    protocols_to_test,
    settings_for_testing,
    verifier_alone,
    with_protocol,
)
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording.overview import overview
from nip_fn_adapters.recording.store import CHECKPOINT


class EvaluationRow(NamedTuple):
    """One protocol with one cast.

    protocol: The game.
    models: The model of each agent, by the agent's name.
    measured: The measures of its test; the gain is over the same verifier alone.
    """

    protocol: str
    models: dict[str, str]
    measured: Measurement


class EvaluationReport(NamedTuple):
    """The tests of an evaluation, in the order in which they were played.

    folder: The folder that holds their runs.
    rows: Their measures.
    """

    folder: Path
    rows: tuple[EvaluationRow, ...]


class _Case(NamedTuple):
    """One protocol with one cast, and its test."""

    protocol: str
    models: dict[str, str]
    verifiers: tuple[str, ...]
    cell: Cell


@outcome
def evaluate(
    settings: Settings | None = None,
    *,
    protocols: Sequence[str] = (),
    models: Sequence[str] = (),
    verifier_model: str | None = None,
    prover_model: str | None = None,
    provider: str | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    budget: float | None = None,
    prices: Path | None = None,
    tell: Tell | None = None,
    watch: Watch = NOBODY,
    **options: Unpack[EvaluationOptions],
) -> EvaluationReport:
    """Test protocols and models without training them: `nip-fn eval`.

    Each test is recorded as a run.  The same call resumes an evaluation that was stopped, and reads
    one that is done.

    Args:
        settings: As for `train`; nothing is trained.
        protocols: The games; none: that of the settings, and the verifier alone to compare with.
        models: The models of all agents, one after the other; none: those of the settings.
        verifier_model: The model of the verifier.
        prover_model: The model of all provers.
        provider: The provider of all agents, whatever the settings say of them.
        name: A name for the runs; None for one made from their parameters.
        runs: The folder of all runs.
        budget: Dollars; the evaluation stops before it would cost more.
        prices: A file of prices, which go before those that are known.
        tell: Takes lines for people; None: nothing is printed.
        watch: A display and a way to stop the tests as well; see `Watch`.
        **options: `split`, `limit`, `shuffle`, `repeats`, `temperature`; see `EvaluationOptions`.

    Returns:
        The measures of each protocol with each model.
    """
    watch, runs, money = watch.telling(tell), Path(runs), read_money(budget, prices)
    table = as_written(settings, watch)
    cast = (models, verifier_model, prover_model)
    cases = _cases(settings_for_testing(table, options), protocols, *cast, provider, runs, watch)
    cells = [case.cell for case in cases]
    warn_of_unused(table, provider, [cell.new for cell in cells], watch)
    evaluation = open_evaluation(cells, name, "eval", provider, money, runs, watch=watch)
    for problem in _other_data(evaluation.place, cells):
        refuse(problem)
    tested = [evaluation.play(cell) for cell in cells]
    evaluation.tell_recorded()
    baselines = {
        case.verifiers: test
        for case, test in zip(cases, tested, strict=True)
        if case.protocol in BASELINES
    }
    rows = tuple(
        EvaluationRow(
            case.protocol,
            case.models,
            measure(test, None if case.protocol in BASELINES else baselines.get(case.verifiers)),
        )
        for case, test in zip(cases, tested, strict=True)
    )
    return EvaluationReport(evaluation.place, rows)


evaluate_async = asynchronous(evaluate)


@outcome
def evaluation_study(
    settings: Settings | None = None,
    *,
    seeds: int | tuple[int, ...],
    protocols: Sequence[str] = (),
    models: Sequence[str] = (),
    verifier_model: str | None = None,
    prover_model: str | None = None,
    provider: str | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    watch: Watch = NOBODY,
    **options: Unpack[EvaluationOptions],
) -> Study:
    """The study that repeats an evaluation with several seeds: `nip-fn eval --seeds`.

    Its arms are the tests of `evaluate`, whose arguments it takes, each compared with the same
    verifier alone.  `seeds` are the seeds, or how many of them.
    """
    table = settings_for_testing(as_written(settings, watch), options)
    cast = (models, verifier_model, prover_model)
    cases = _cases(table, protocols, *cast, provider, Path(runs), watch)
    arms = Axis(ARM, tuple(Level(case.cell.folder, case.cell.given) for case in cases))
    alone = {case.verifiers: case.cell.folder for case in cases if case.protocol in BASELINES}
    over = {
        case.cell.folder: alone[case.verifiers]
        for case in cases
        if case.protocol not in BASELINES and case.verifiers in alone
    }
    usual_name = f"{evaluation_name('eval', [case.cell for case in cases])}-seeds"
    study = Study(checked_name(name) or usual_name, {}, (arms,), compare=Comparing(baseline=over))
    return with_seeds(study, seeds)


def _cases(
    table: dict[str, Any],
    protocols: Sequence[str],
    models: Sequence[str],
    verifier_model: str | None,
    prover_model: str | None,
    provider: str | None,
    runs: Path,
    watch: Watch,
) -> list[_Case]:
    """Each protocol with each model, or with the models of the settings."""
    # The settings may name the baseline themselves, which then is tested once.
    played = table.get("interaction_protocol", "nip")
    usual = (played, verifier_alone(table, (played,)))
    tested = protocols_to_test(protocols, usual, (*models, verifier_model, prover_model))
    cases: dict[HyperParameters, _Case] = {}
    for model in dict.fromkeys(models) or (None,):
        for protocol in tested:
            played = {} if model is None else {"agents": {"_default": {"model_name": model}}}
            written = with_protocol(
                merge(table, played),
                protocol,
                verifier_model=verifier_model,
                prover_model=prover_model,
                tested=tested,
            )
            folder = folder_name(protocol, *([] if model is None else [model]))
            cell = cell_of(folder, written, provider, runs, watch)
            # Models that differ in the provers alone share the verifier alone.
            cases.setdefault(cell.new.params, _case(protocol, cell))
    return list(cases.values())


def _case(protocol: str, cell: Cell) -> _Case:
    models = {agent.name: agent.model_name for agent in cell.new.params.agents}
    specs = protocol_of(cell.new.params).agents
    verifiers = tuple(models[spec.name] for spec in specs if spec.role == "verifier")
    return _Case(protocol, models, verifiers, cell)


def _other_data(folder: Path, cells: Sequence[Cell]) -> Iterator[Problem]:
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
                yield Problem(difference, str(folder), "give this test another name (`name`)")
