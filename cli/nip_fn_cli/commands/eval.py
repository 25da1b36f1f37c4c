"""`nip-fn eval`: test protocols and models without training any."""

import json
import re
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.config.codec import changes, merge
from nip_fn.config.study import ARM, Axis, Comparing, Level, Study, with_seeds
from nip_fn.errors import Problem
from nip_fn.game.datapoint import SPLITS
from nip_fn.game.protocol import Role
from nip_fn.metrics.comparison import compare
from nip_fn.metrics.evaluation import accuracy, always_fails
from nip_fn.metrics.inference import Difference, Estimate
from nip_fn.metrics.oversight import balanced_accuracy, majority_class_share
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn_adapters import extensions
from nip_fn_adapters.experiments.budgets import Money
from nip_fn_adapters.experiments.casting import is_protocol, parts, players, recast
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
from nip_fn_cli.commands import sweep
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.printing import print_rows, share
from nip_fn_cli.shown.table import MARK, is_unequal, waste_warnings
from nip_fn_cli.shown.watching import TERMINAL

# The verifier alone: a protocol is worth what its verifier gains over this.
BASELINE = "solo_verifier"


class Choice(NamedTuple):
    """The options of the command.

    protocols: the games to test.
    models: the models to test each of them with; () for those of the configuration.
    verifier_model: the model of verifiers; None for that of all agents.
    prover_model: the model of provers, likewise.
    split: the rows to test on: "all", or a split; None for those of the configuration, or for all
      rows of data that come in no splits.
    limit: the most datapoints; None for all.
    shuffle: the seed of the draw of these; None for that of the configuration.
    repeats: the games about each datapoint, likewise.
    temperature: of all models, likewise.
    name: the name of the folder for all runs; None for one made from the parameters.
    json: print JSON.
    """

    protocols: tuple[str, ...]
    models: tuple[str, ...]
    verifier_model: str | None
    prover_model: str | None
    split: str | None
    limit: int | None
    shuffle: int | None
    repeats: int | None
    temperature: float | None
    name: str | None
    json: bool


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


def eval_command(flags: Flags, choice: Choice, money: Money, runs: Path) -> None:
    """Run the command; given again, it resumes where an earlier one was stopped."""
    cases = _cases(flags, choice, runs)
    cells = [case.cell for case in cases]
    warn_of_unused(overrides(flags), flags.provider, [cell.new for cell in cells], TERMINAL)
    evaluation = open_evaluation(
        cells, choice.name, "eval", flags.provider, money, runs, watch=TERMINAL
    )
    for problem in _other_data(evaluation.place, cells):
        die(Exit.USAGE, problem)
    results = [Result(case, evaluation.play(case.cell)) for case in cases]
    evaluation.tell_recorded()
    rows = [_row(one, results) for one in results]
    if choice.json:
        print(json.dumps({"runs": str(evaluation.place), "tests": rows}, indent=2))
        return
    _print(rows)
    first = evaluation.place / cells[0].folder
    print(f"\nTo look closer: {command('nip-fn', 'show', first)}")


def _other_data(place: Path, cells: list[Cell]) -> Iterator[Problem]:
    """A problem if the evaluation that has this name already tests other datapoints.

    Further models and games on the same datapoints are welcome beside its own.
    """
    own = {cell.folder for cell in cells}
    for path in sorted(place.glob(f"*/{CHECKPOINT}")):
        recorded = overview(path.parent, path.parent.name).params
        if recorded is None or path.parent.name in own:  # the same test differs in better words
            continue
        for address, (before, now) in changes(recorded, cells[0].new.params).items():
            if address.startswith(("dataset", "test_dataset_split")):
                told = f"{path.parent.name} was tested there with {address} = {before}, not {now}"
                yield Problem(told, str(place), "give this test another name (--run NAME)")


def eval_seeds(
    flags: Flags,
    choice: Choice,
    seeds: int | tuple[int, ...],
    prices: Path | None,
    money: Money,
    runs: Path,
) -> None:
    """Run the command with `--seeds`: a study whose arms are the cases."""
    cases = _cases(flags, choice, runs)
    cells = [case.cell for case in cases]
    arms = Axis(ARM, tuple(Level(cell.folder, cell.given) for cell in cells))
    alone = {case.verifiers: case.cell.folder for case in cases if case.protocol == BASELINE}
    over = {
        case.cell.folder: alone[case.verifiers]
        for case in cases
        if case.protocol != BASELINE and case.verifiers in alone
    }
    name = checked_name(choice.name) or f"{evaluation_name('eval', cells)}-seeds"
    study = with_seeds(Study(name, {}, (arms,), compare=Comparing(baseline=over)), seeds)
    how = sweep.Choice(provider=flags.provider, prices=prices, json=choice.json)
    sweep.run_study(study, runs / name, how, money)


def tested_table(table: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """A configuration, also one that was written for a training, of a run that only tests."""
    # Trees cost more replies, and an evaluation counts dialogues.
    tests: dict[str, Any] = {"test_scheme": "all", "test_trees": False}
    fixed: dict[str, Any] = {"rl": {"num_iterations": 0}, "text_rl": tests, "dataset_options": {}}
    options = fixed["dataset_options"]
    if choice.temperature is not None:
        tests["test_temperature"] = choice.temperature
    if choice.repeats is not None:
        fixed["rl"]["num_test_iterations"] = choice.repeats
    split = choice.split or _usual_split(table)
    if split is not None:
        options["only_split"] = split
        fixed["test_dataset_split"] = split if split in SPLITS else "test"
    if choice.limit is not None:
        options["max_test_size"] = choice.limit
    elif not str(table.get("dataset", "builtin:")).startswith("builtin:"):
        # The embedded settings limit tests; of one's own rows every one counts.
        options["max_test_size"] = table.get("dataset_options", {}).get("max_test_size")
    if choice.shuffle is not None:
        options["reduce_shuffle_seed"] = choice.shuffle
    return merge(table, fixed)


def _usual_split(table: dict[str, Any]) -> str | None:
    """The rows to test on if no option says; None for the held-out ones of a training."""
    agents = table.get("agents", {}).values()
    # What a run has trained on tests nobody who comes from it.
    trained = any(own.get("load_checkpoint_and_parameters") for own in agents)
    written = "test_dataset_split" in table or "only_split" in table.get("dataset_options", {})
    return None if trained or written else "auto"


def of_protocol(
    table: dict[str, Any], protocol: str, choice: Choice, tested: Collection[str] = ()
) -> dict[str, Any]:
    """The configuration with another protocol, played by those of its agents that fit.

    An agent that no protocol has stays there, and is refused where it is read.

    Args:
        table: The configuration.
        protocol: The protocol.
        choice: The models of verifiers and provers.
        tested: All protocols that are tested.
    """
    configured = table.get("interaction_protocol")
    agents = table.get("agents", {})
    if is_protocol(protocol):
        others = {configured or "nip", protocol, *tested}
        known = {DEFAULT_AGENT, *chain(*map(players, filter(is_protocol, others)))}
        unknown = set(agents) - known if all(map(is_protocol, others)) else set()
        # Of the configured protocol an agent without parameters has those of all agents.
        own = {n: agents[n] for n in agents if n in (DEFAULT_AGENT, *players(protocol))}
        cast = own if protocol == configured else recast(agents, protocol)
        agents = {**cast, **{name: agents[name] for name in agents if name in unknown}}
        models: dict[Role, str | None] = {
            "verifier": choice.verifier_model,
            "prover": choice.prover_model,
        }
        for role, model in models.items():
            named = {name: {"model_name": model} for name in parts(protocol, role) if model}
            agents = merge(agents, named)
    return {**table, "interaction_protocol": protocol, "agents": agents}


def folder_of(*parts: str) -> str:
    """The name of a run, made of some words without the signs that no path may have."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(parts)).strip("-.")


def _cases(flags: Flags, choice: Choice, runs: Path) -> list[Case]:
    table = tested_table(overrides(flags), choice)
    # The configuration may name the baseline itself, which then is tested once.
    protocols = dict.fromkeys(
        choice.protocols or (table.get("interaction_protocol", "nip"), BASELINE)
    )
    models = (*choice.models, choice.verifier_model, choice.prover_model)
    named({"interaction_protocol": choice.protocols, "model_name": models})
    for protocol in protocols:  # those of one's own, whose agents must be known
        or_exit(extensions.register({"interaction_protocol": protocol}))
    cases: dict[HyperParameters, Case] = {}
    for model in dict.fromkeys(choice.models) or (None,):
        for protocol in protocols:
            played = {} if model is None else {"agents": {"_default": {"model_name": model}}}
            given = of_protocol(merge(table, played), protocol, choice, protocols)
            folder = folder_of(protocol, *([] if model is None else [model]))
            cell = cell_of(folder, given, flags.provider, runs, TERMINAL)
            # Models that differ in the provers alone share the verifier alone.
            cases.setdefault(cell.new.params, _case(protocol, cell))
    return list(cases.values())


def _case(protocol: str, cell: Cell) -> Case:
    models = {agent.name: agent.model_name for agent in cell.new.params.agents}
    specs = protocol_of(cell.new.params).agents
    verifiers = tuple(models[spec.name] for spec in specs if spec.role == "verifier")
    return Case(protocol, models, verifiers, cell)


def _row(one: Result, everything: list[Result]) -> dict[str, Any]:
    """The facts of a case; its gain is over the baseline with the same verifier."""
    alone = (BASELINE, one.case.verifiers)
    baseline = next(
        (r for r in everything if (r.case.protocol, r.case.verifiers) == alone and r is not one),
        None,
    )
    return {
        "protocol": one.case.protocol,
        "model": ", ".join(dict.fromkeys(one.case.models.values())),
        "models": one.case.models,
        **facts(one.tested, baseline and baseline.tested),
    }


def facts(tested: Tested, baseline: Tested | None) -> dict[str, Any]:
    """The facts of a test, for JSON; its gain is over that of a baseline on the same datapoints."""
    metrics, found = dict(tested.metrics), tested.judged
    verdicts = found.verdicts
    return {
        "datapoints": len(verdicts.right),
        "games": verdicts.games,
        "accuracy": accuracy(verdicts)._asdict(),
        "balanced_accuracy": _fields(balanced_accuracy(found)),
        "majority_class_share": majority_class_share(found),
        "always_fails": _fields(always_fails(verdicts)),
        "gain": _fields(
            compare([baseline.judged.verdicts], [verdicts], "datapoint").difference
            if baseline
            else None
        ),
        **{name: metrics.get(name) for name in ("accuracy_0", "accuracy_1", "no_decision_rate")},
        "tokens": metrics["tokens"],
        "prompt_tokens": metrics["prompt_tokens"],
        "dollars": tested.dollars,
        "warnings": waste_warnings(tested.replayed.state),
    }


def _fields(found: Estimate | Difference | None) -> dict[str, float] | None:
    return None if found is None else found._asdict()


def _print(rows: list[dict[str, Any]]) -> None:
    names = {
        "protocol": [row["protocol"] for row in rows],
        "model": [_told(row["models"]) for row in rows],
    }
    print_facts(names, rows, over=BASELINE)
    for row in rows:
        for warning in row["warnings"]:
            print(f"{MARK} {row['protocol']}, {_told(row['models'])}: {warning}")


def print_facts(names: dict[str, list[str]], rows: list[dict[str, Any]], *, over: str) -> None:
    """Print a table of tests.

    Args:
        names: What names each of them, by the title of a column.
        rows: The `facts` of each of them.
        over: The name of the test over which they gain.
    """
    columns: dict[str, list[str]] = {
        **names,
        "datapoints x games": [f"{row['datapoints']:,} x {row['games']}" for row in rows],
        "accuracy [95 %]": [
            _estimate(row["accuracy"]) + (f" {MARK}" if row["warnings"] else "") for row in rows
        ],
    }
    if any(is_unequal(row["majority_class_share"]) for row in rows):
        columns["balanced accuracy [95 %]"] = [_estimate(row["balanced_accuracy"]) for row in rows]
        columns["majority class"] = [_share(row["majority_class_share"]) for row in rows]
    if any(row["gain"] for row in rows):
        columns[f"over {over} [95 %]"] = [_estimate(row["gain"], signed=True) for row in rows]
    if any(row["always_fails"] for row in rows):
        columns["always fails [95 %]"] = [_estimate(row["always_fails"]) for row in rows]
    kinds = {"buggy": "accuracy_0", "right": "accuracy_1", "undecided": "no_decision_rate"}
    columns |= {title: [_share(row[name]) for row in rows] for title, name in kinds.items()}
    columns["tokens"] = [f"{row['prompt_tokens'] + row['tokens']:,.0f}" for row in rows]
    columns["dollars"] = [
        "unknown" if row["dollars"] is None else f"{row['dollars']:.4g}" for row in rows
    ]
    print_rows(tuple(columns), list(zip(*columns.values(), strict=True)), keys=len(names))


def _told(models: dict[str, str]) -> str:
    """The models of a cast; which agent has which, if they differ."""
    if len(set(models.values())) == 1:
        return next(iter(models.values()))
    return ", ".join(f"{name} {model}" for name, model in models.items())


def _estimate(found: dict[str, float] | None, signed: bool = False) -> str:
    if found is None:
        return "-"
    value, low, high = (found[name] for name in Estimate._fields)
    if signed:
        return f"{value * 100:+.1f} [{low * 100:+.1f}, {high * 100:+.1f}]"
    return share(value, low, high)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
