"""`nip-fn show`: a run on one screen, and lists of its games."""

import json
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from nip_fn.config.codec import ABSENT, unusual
from nip_fn.config.unused import reason_unused
from nip_fn.errors import Problem
from nip_fn.export.games import FAILURES
from nip_fn.export.views import label_word
from nip_fn.game.decision import ACCEPT, NEITHER, REJECT
from nip_fn.metrics.stage import verdict
from nip_fn.params.agent import max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.replay import StageForest
from nip_fn.run.stages import Purpose
from nip_fn.run.state import RunState
from nip_fn_adapters.costs.note import read_unrecorded
from nip_fn_adapters.experiments.budgets import lost_line, money_of_run
from nip_fn_adapters.experiments.loading import load_once
from nip_fn_adapters.experiments.results import GameCounts, count_games, run_end
from nip_fn_adapters.recording.runs import RecordedGame, Run, checkpoint_file
from nip_fn_cli.shown.exits import Exit, die, or_exit
from nip_fn_cli.shown.improvements import print_improvements
from nip_fn_cli.shown.options import JsonOption, RunsOption, TrustOption, money_or_die
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.table import print_table
from nip_fn_cli.shown.terminal import terminal_safe

VERDICTS = {ACCEPT: "right", REJECT: "buggy", NEITHER: "neither"}


def show_command(
    run: Annotated[str, typer.Argument(help="A run's name, or its folder.")],
    wrong: Annotated[bool, typer.Option("--wrong", help="List games decided wrongly.")] = False,
    undecided: Annotated[bool, typer.Option("--undecided", help="List undecided games.")] = False,
    cut: Annotated[
        bool, typer.Option("--cut", help="List games with a reply cut at the token limit.")
    ] = False,
    sampled: Annotated[
        bool,
        typer.Option(
            "--sampled", help="Take games that were sampled for training, not those of the tests."
        ),
    ] = False,
    iteration: Annotated[
        int | None, typer.Option(help="The iteration of the games; the last one if left out.")
    ] = None,
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Show a run on one screen, or list its games that were decided wrongly, undecided or cut."""
    path = or_exit(checkpoint_file(Path(run), runs))
    options = {"wrong": wrong, "undecided": undecided, "cut": cut}
    chosen = [holds for name, holds in FAILURES.items() if options[name]]
    if not (chosen or sampled or iteration is not None):
        state, counts = or_exit(run_end(path))
        _print_run(path.parent, state, counts, as_json)
        return
    recorded = or_exit(load_once(run, runs))
    stage = stage_of(recorded, "sample" if sampled else "test", iteration)
    if not chosen:
        counts = count_games(stage) if stage else None
        _print_run(path.parent, recorded.state, counts, as_json)
    else:
        games = recorded.rollouts(stage.stage, stage.iteration) if stage else ()
        listed = [game for game in games if any(holds(game.rollout) for holds in chosen)]
        if as_json:
            records = [_record(recorded, game) for game in listed]
            print(json.dumps(records, indent=2, ensure_ascii=True))
        else:
            _print_games(recorded, listed)


def stage_of(run: Run, stage: Purpose, iteration: int | None) -> StageForest | None:
    """The stage of an iteration, of the last one if none is given; None if none has ended.

    Ends the command if there is no such iteration.
    """
    stages = run.stages(stage, iteration)
    if iteration is not None and not stages:
        iterations = ", ".join(str(played.iteration) for played in run.stages(stage)) or "none"
        problem = Problem(
            f"no {stage} of that iteration has ended", "--iteration", f"known: {iterations}"
        )
        die(Exit.USAGE, problem)
    return stages[-1] if stages else None


# ----------------------------------------------------------------------------------------- the run


def _print_run(folder: Path, state: RunState, counts: GameCounts | None, as_json: bool) -> None:
    facts = _facts(folder, state)
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=True))
        return
    width = max(map(len, facts))
    for title, value in facts.items():
        if title != "parameters":
            print(f"{title:<{width}}  {terminal_safe(str(value))}")
    print()
    print_table(state, money_of_run(money_or_die(), folder).prices)
    if lost := lost_line(or_exit(read_unrecorded(folder))):
        print(lost)
    print_improvements(state, folder)
    changed = facts["parameters"]
    print(f"\n{len(changed)} parameters differ from the defaults")
    for address, value in changed.items():
        print(f"    {address} = {terminal_safe(json.dumps(value, ensure_ascii=False))}")
    if counts and counts.games:
        where = f"{counts.stage} of iteration {counts.iteration}"
        failures = ", ".join(f"{num:,} {name} (--{name})" for name, num in counts.failures.items())
        print(f"\nof {counts.games:,} games in the {where}: {failures}")


def _facts(folder: Path, state: RunState) -> dict[str, Any]:
    params = state.params
    models = {agent.name: agent.model_name for agent in params.agents}
    ended = "done" if state.stage.name == "done" else f"at {state.stage.name}"
    return {
        "run": str(folder),
        "state": f"{ended}, iteration {state.iteration} of {params.rl.num_iterations}",
        "game": params.interaction_protocol,
        **({"trainer": params.trainer} if params.rl.num_iterations else {}),
        "data": f"{state.dataset.name} ({params.dataset})",
        "models": ", ".join(f"{name} {model}" for name, model in models.items()),
        "seed": params.seed,
        "digest": f"{digest(state)}{' DIFFERS from the recorded one' if state.faults else ''}",
        "parameters": _changed(params),
    }


def _changed(params: HyperParameters) -> dict[str, Any]:
    """The parameters that differ from the defaults of the same game, and act in it, by address.

    What is the same for all agents is told once, at `agents.*`.
    """
    values = {address: value for address, (value, _) in unusual(params).items() if value != ABSENT}
    values = {name: value for name, value in values.items() if not reason_unused(params, name)}
    for address, value in list(values.items()):
        prefix, _, field = address.rpartition(".")
        addresses = [f"agents.{agent.name}.{field}" for agent in params.agents]
        if prefix.startswith("agents.") and all(
            values.get(agent_address, ABSENT) == value for agent_address in addresses
        ):
            for agent_address in addresses:
                del values[agent_address]
            values[f"agents.*.{field}"] = value
    return dict(sorted(values.items()))


# --------------------------------------------------------------------------------------- the games


def _print_games(run: Run, games: list[RecordedGame]) -> None:
    if not games:
        print("no such game")
        return
    titles = ("datapoint", "label", "verdict", "end", "cut", "last words")
    print_rows(titles, [_row(_record(run, game)) for game in games])
    first = games[0]
    options = f"--transcript {first.rollout.datapoint.id} --iteration {first.stage.iteration}"
    print(f"\nthe first in full: nip-fn replay {quote(str(run.path.parent))} {options}")


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    words = record["last_words"]
    return (
        *(str(record[name]) for name in ("datapoint", "label", "verdict", "end")),
        ", ".join(record["cut"]),
        words if len(words) <= 48 else f"{words[:47]}…",
    )


def _record(run: Run, game: RecordedGame) -> dict[str, Any]:
    rollout = game.rollout
    utterances = [utterance for turn in rollout.rounds for utterance in turn]
    names = [agent.name for agent in run.protocol.agents]
    return {
        "iteration": game.stage.iteration,
        "stage": game.stage.stage,
        "datapoint": rollout.datapoint.id,
        "label": label_word(rollout.datapoint, rollout.label),
        "verdict": VERDICTS.get(verdict(rollout), "none"),
        "end": rollout.status,
        "cut": [
            f"{names[utterance.agent]} at {max_tokens(run.params.agents[utterance.agent])} tokens"
            for utterance in utterances
            if utterance.token_limit
        ],
        "last_words": " ".join(utterances[-1].raw.split()) if utterances else "",
    }
