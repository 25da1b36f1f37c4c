"""`nip-fn show`: a run on one screen, and lists of its games."""

import json
from pathlib import Path
from shlex import quote
from typing import Any

from nip_fn.config.codec import ABSENT, unusual
from nip_fn.config.unused import reason_unused
from nip_fn.errors import Problem
from nip_fn.export.games import FAILURES
from nip_fn.game.decision import ACCEPT, NEITHER, REJECT
from nip_fn.metrics.stage import verdict
from nip_fn.params.agent import max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.run.stages import Purpose
from nip_fn_adapters.costs.note import read_unrecorded
from nip_fn_adapters.experiments.budgets import lost_line, money_of_run
from nip_fn_adapters.experiments.loading import load_once
from nip_fn_adapters.recording.runs import RecordedGame, Run
from nip_fn_cli.money import money_or_die
from nip_fn_cli.shown.exits import Exit, die, or_exit
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.table import print_table
from nip_fn_cli.shown.terminal import visible

VERDICTS = {ACCEPT: "right", REJECT: "buggy", NEITHER: "neither"}


def show_command(
    name: str,
    kinds: tuple[str, ...],
    stage: Purpose,
    iteration: int | None,
    as_json: bool,
    runs: Path,
) -> None:
    """Print a run, or the games of some kinds in one of its stages."""
    run = or_exit(load_once(name, runs))
    games = games_of(run, stage, iteration)
    if as_json:
        listed = [_record(run, game) for game in games if _is_listed(game, kinds)]
        print(json.dumps(listed if kinds else _facts(run), indent=2, ensure_ascii=True))
    elif kinds:
        _print_games(run, [game for game in games if _is_listed(game, kinds)])
    else:
        _print_run(run, games)


def games_of(run: Run, stage: Purpose, iteration: int | None) -> tuple[RecordedGame, ...]:
    """The games of a stage, of its last iteration if none is given; () if none has ended.

    Ends the command if there is no such iteration.
    """
    stages = run.stages(stage, iteration)
    if iteration is not None and not stages:
        known = ", ".join(str(one.iteration) for one in run.stages(stage)) or "none"
        problem = Problem(
            f"no {stage} of that iteration has ended", "--iteration", f"known: {known}"
        )
        die(Exit.USAGE, problem)
    return run.rollouts(stage, stages[-1].iteration) if stages else ()


def _is_listed(game: RecordedGame, kinds: tuple[str, ...]) -> bool:
    return any(FAILURES[kind](game.rollout) for kind in kinds)


# ----------------------------------------------------------------------------------------- the run


def _print_run(run: Run, games: tuple[RecordedGame, ...]) -> None:
    facts = _facts(run)
    width = max(map(len, facts))
    for title, value in facts.items():
        if title != "parameters":
            print(f"{title:<{width}}  {visible(str(value))}")
    print()
    folder = run.path.parent
    print_table(run.state, money_of_run(money_or_die(), folder).prices)
    if lost := lost_line(or_exit(read_unrecorded(folder))):
        print(lost)
    changed = facts["parameters"]
    print(f"\n{len(changed)} parameters differ from the defaults")
    for address, value in changed.items():
        print(f"    {address} = {visible(json.dumps(value, ensure_ascii=False))}")
    if games:
        counts = ", ".join(
            f"{sum(holds(game.rollout) for game in games):,} {kind} (--{kind})"
            for kind, holds in FAILURES.items()
        )
        where = f"{games[0].stage.stage} of iteration {games[0].stage.iteration}"
        print(f"\nof {len(games):,} games in the {where}: {counts}")


def _facts(run: Run) -> dict[str, Any]:
    params, state = run.params, run.state
    models = {agent.name: agent.model_name for agent in params.agents}
    ended = "done" if state.stage.name == "done" else f"at {state.stage.name}"
    return {
        "run": str(run.path.parent),
        "state": f"{ended}, iteration {state.iteration} of {params.rl.num_iterations}",
        "game": params.interaction_protocol,
        **({"trainer": params.trainer} if params.rl.num_iterations else {}),
        "data": f"{state.dataset.name} ({params.dataset})",
        "models": ", ".join(f"{name} {model}" for name, model in models.items()),
        "seed": params.seed,
        "digest": f"{run.digest}{' DIFFERS from the recorded one' if run.faults else ''}",
        "parameters": _changed(params),
    }


def _changed(params: HyperParameters) -> dict[str, Any]:
    """The parameters that differ from the defaults of the same game, and act in it, by address.

    What is the same for all agents is told once, at `agents.*`.
    """
    found = {address: own for address, (own, _) in unusual(params).items() if own != ABSENT}
    found = {name: value for name, value in found.items() if not reason_unused(params, name)}
    for address, value in list(found.items()):
        place, _, field = address.rpartition(".")
        others = [f"agents.{agent.name}.{field}" for agent in params.agents]
        if place.startswith("agents.") and all(
            found.get(other, ABSENT) == value for other in others
        ):
            for other in others:
                del found[other]
            found[f"agents.*.{field}"] = value
    return dict(sorted(found.items()))


# --------------------------------------------------------------------------------------- the games


def _print_games(run: Run, games: list[RecordedGame]) -> None:
    if not games:
        print("no such game")
        return
    titles = ("datapoint", "label", "verdict", "end", "cut", "last words")
    print_rows(titles, [_row(_record(run, game)) for game in games])
    first = games[0]
    place = f"--transcript {first.rollout.datapoint.id} --iteration {first.stage.iteration}"
    print(f"\nthe first in full: nip-fn replay {quote(str(run.path.parent))} {place}")


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    words = record["last_words"]
    return (
        *(str(record[name]) for name in ("datapoint", "label", "verdict", "end")),
        ", ".join(record["cut"]),
        words if len(words) <= 48 else f"{words[:47]}…",
    )


def _record(run: Run, game: RecordedGame) -> dict[str, Any]:
    rollout = game.rollout
    said = [one for turn in rollout.rounds for one in turn]
    names = [agent.name for agent in run.protocol.agents]
    return {
        "iteration": game.stage.iteration,
        "stage": game.stage.stage,
        "datapoint": rollout.datapoint.id,
        "label": "right" if rollout.datapoint.label else "buggy",
        "verdict": VERDICTS.get(verdict(rollout), "none"),
        "end": rollout.status,
        "cut": [
            f"{names[one.agent]} at {max_tokens(run.params.agents[one.agent])} tokens"
            for one in said
            if one.token_limit
        ],
        "last_words": " ".join(said[-1].raw.split()) if said else "",
    }
