"""`nip-fn eval --of RUN`: the models of every iteration of a run, tested again."""

import json
from pathlib import Path
from typing import Any

from nip_fn.config.codec import merge, to_dict
from nip_fn.errors import Problem
from nip_fn.metrics.evaluation import accuracy, verdicts
from nip_fn_adapters.experiments.budgets import Money
from nip_fn_adapters.experiments.casting import Version, loaded, version_of
from nip_fn_adapters.experiments.cells import Cell, Evaluation, Tested, cell_of, open_evaluation
from nip_fn_adapters.experiments.plans import warn_of_unused
from nip_fn_adapters.recording.runs import Run
from nip_fn_cli.commands.eval import Choice, facts, print_facts, tested_table
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.exits import Exit, command, die
from nip_fn_cli.shown.table import MARK
from nip_fn_cli.shown.watching import TERMINAL


def retest_command(flags: Flags, choice: Choice, of: str, money: Money, runs: Path) -> None:
    """Run the command; given again, it resumes where an earlier one was stopped."""
    version = _version(choice, of, runs)
    written = overrides(flags)
    recorded = {**to_dict(version.run.params), "agents": {}}
    table = tested_table(merge(recorded, written), choice)
    numbers = range(version.run.state.iteration + 1)
    cells = [_cell(version, number, table, flags.provider, runs) for number in numbers]
    # An iteration whose training came to nothing has the models of the one before.
    distinct = {cell.new.params: cell for cell in reversed(cells)}
    planned = [cell for cell in cells if distinct[cell.new.params] is cell]
    warn_of_unused(written, flags.provider, [cell.new for cell in planned], TERMINAL)
    evaluation = open_evaluation(
        planned, choice.name, "tests", flags.provider, money, runs, watch=TERMINAL
    )
    played = {cell.folder: evaluation.play(cell) for cell in planned}
    evaluation.tell_recorded()
    tested = [played[distinct[cell.new.params].folder] for cell in cells]
    rows = [_row(version.run, number, tested) for number in numbers]
    if choice.json:
        print(json.dumps({"runs": str(evaluation.place), "tests": rows}, indent=2))
    else:
        _print(rows, evaluation, planned)


def _version(choice: Choice, of: str, runs: Path) -> Version:
    """The run that is tested; ends the command if an option asks for another game or model."""
    given = {
        "--protocol": choice.protocols,
        "--model": choice.models,
        "--verifier-model": choice.verifier_model,
        "--prover-model": choice.prover_model,
    }
    for option in (name for name, value in given.items() if value):
        problem = f"the game and the models are those of {of}"
        die(Exit.USAGE, Problem(problem, option, f"leave it, or --of {of}, out"))
    version = version_of(of, runs)
    if version.iteration is not None:
        remedy = f"write --of {version.name}"
        die(Exit.USAGE, Problem("all iterations are tested", f"--of {of}", remedy))
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
    before = [accuracy(verdicts(one.datapoints, one.trees))._asdict() for one in recorded]
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
        names["recorded"] = [f"{one['value']:.1%}" if one else "-" for one in recorded]
    print_facts(names, rows, over="iteration 0")
    for row in rows:
        for warning in row["warnings"]:
            print(f"{MARK} iteration {row['iteration']}, {warning.partition(', ')[2]}")
    first = evaluation.place / planned[0].folder
    print(f"\nTo look closer: {command('nip-fn', 'show', first)}")
