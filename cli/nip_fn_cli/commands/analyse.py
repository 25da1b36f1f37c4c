"""`nip-fn analyse`: statements about the dialogues of a run, judged by a model."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.config.codec import merge
from nip_fn.errors import Problem
from nip_fn.export.analysis import (
    ANALYSERS,
    VERSION,
    Analyser,
    Finding,
    Subject,
    answers,
    findings,
    subjects,
)
from nip_fn.game.datapoint import Dataset
from nip_fn.keys import fold_in, key, permutation
from nip_fn.params.names import unknown_name
from nip_fn.run.stages import Purpose
from nip_fn.trees.rollouts import Rollout
from nip_fn_adapters.data.opening import Data, in_memory
from nip_fn_adapters.recording.reports import ANALYSES
from nip_fn_adapters.recording.runs import RecordedGame, Run
from nip_fn_cli.cells import Cell, Tested, cell_of, open_evaluation
from nip_fn_cli.commands.show import games_of
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.loading import load_once
from nip_fn_cli.money import Money
from nip_fn_cli.session import warn_of_unused
from nip_fn_cli.shown.dryrun import dry_run
from nip_fn_cli.shown.exits import Exit, command, die, or_exit, say
from nip_fn_cli.shown.printing import print_rows, share

OWN = ".jinja"  # the suffix of a user's own statement


class Choice(NamedTuple):
    """The options of the command.

    analysers: their names, and the files of one's own; () for all that there are.
    stage: the stage whose games are analysed.
    iteration: theirs; None for the last one.
    limit: the most games; None for all.
    temperature: of the model; None for its own.
    name: the name of the folder for all runs; None for one made from the parameters.
    dry: only print a forecast.
    json: print JSON.
    """

    analysers: tuple[str, ...]
    stage: Purpose
    iteration: int | None
    limit: int | None
    temperature: float | None
    name: str | None
    dry: bool
    json: bool


class Inquiry(NamedTuple):
    """An analyser, and the run that it is.

    analyser: the analyser.
    asked: what it asks.
    cell: the run.
    data: its datapoints.
    """

    analyser: Analyser
    asked: tuple[Subject, ...]
    cell: Cell
    data: Data


def analyse_command(name: str, flags: Flags, choice: Choice, money: Money, runs: Path) -> None:
    """Run the command; given again, it resumes where an earlier one was stopped."""
    analysers = [_analyser(given) for given in choice.analysers or ANALYSERS]
    run = or_exit(load_once(name, runs), Exit.RUN)
    games = _games(run, choice)
    played = [game.rollout for game in games]
    every = [_inquiry(run, one, games, flags, choice) for one in analysers]
    inquiries = [one for one in every if one.asked]
    if not inquiries:
        die(Exit.USAGE, Problem("no agent said anything that could be analysed", str(name)))
    if choice.dry:
        for one in inquiries:
            print(f"{one.analyser.name}:")
            dry_run(one.cell.new, money, 10.0, one.data)
        return
    cells = [one.cell for one in inquiries]
    warn_of_unused(overrides(flags), flags.provider, [cell.new for cell in cells])
    place = run.path.parent / ANALYSES
    evaluation = open_evaluation(
        cells, choice.name, "analysis", flags.provider, money, place, "--name"
    )
    tested = [evaluation.play(one.cell, data=one.data) for one in inquiries]
    evaluation.say_recorded()
    if choice.json:
        records = [_record(*one, games) for one in zip(inquiries, tested, strict=True)]
        print(json.dumps({"runs": str(evaluation.place), "analyses": records}, indent=2))
        return
    _print(inquiries, tested, played)
    first = evaluation.place / cells[0].folder
    print(f"\nTo look closer: {command('nip-fn', 'show', first)}")


def _analyser(given: str) -> Analyser:
    """The analyser of that name, or with the statement in that file; ends the command if none."""
    if given in ANALYSERS:
        return ANALYSERS[given]
    if not given.endswith(OWN):
        problem = unknown_name("--analyser", given, "analyser", tuple(ANALYSERS))
        die(Exit.USAGE, problem)
    path = Path(given)
    try:
        return Analyser(path.stem, template=path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        die(Exit.USAGE, Problem(f"{path}: {cause}", "--analyser", "name a text file that exists"))


def _games(run: Run, choice: Choice) -> list[RecordedGame]:
    """The chosen games, in the order in which they were played."""
    games = games_of(run, choice.stage, choice.iteration)
    if not games:
        remedy = "let its first test end, or look at its samples (--sampled)"
        die(Exit.USAGE, Problem(f"no {choice.stage} has ended", str(run.path.parent), remedy))
    if choice.limit is None:
        return list(games)
    draw = fold_in(key(run.params.seed), ANALYSES, choice.stage, games[0].stage.iteration)
    drawn = permutation(draw, len(games))[: choice.limit]
    return [games[place] for place in sorted(drawn)]


def _inquiry(
    run: Run, analyser: Analyser, games: list[RecordedGame], flags: Flags, choice: Choice
) -> Inquiry:
    try:
        asked = subjects(run.params, [game.rollout for game in games], analyser)
    except ValueError as error:
        remedy = "use the variables of system prompts, such as agent_name"
        die(Exit.USAGE, Problem(str(error), f"--analyser {analyser.name}{OWN}", remedy))
    # Dialogues that are word for word the same are judged once.
    points = tuple({one.datapoint.id: one.datapoint for one in asked}.values())
    stage = games[0].stage
    title = f"{stage.stage} {stage.iteration} of {run.path.parent.name}"
    drawn = "" if choice.limit is None else f", {choice.limit} games"
    given: dict[str, Any] = {
        "interaction_protocol": "solo_verifier",
        "dataset": f"transcripts of {title}{drawn}",
        "seed": run.params.seed,
        "rl": {"num_iterations": 0, "num_test_iterations": 1},
        "text_rl": {"test_scheme": "all", "test_temperature": choice.temperature},
        "protocol_common": {"verifier_decision_spectrum": analyser.spectrum},
        "code_validation": {"system_prompt_version": VERSION},
    }
    folder = f"{analyser.name}-{stage.stage}-{stage.iteration}"
    table = merge(given, overrides(flags))
    data = in_memory(Dataset(table["dataset"], (), (), points))
    return Inquiry(analyser, asked, cell_of(folder, table, flags.provider, run.path.parent), data)


def _found(inquiry: Inquiry, tested: Tested, games: list[Rollout]) -> tuple[Finding, ...]:
    return findings(inquiry.asked, games, answers(tested.forest.games()))


def _record(inquiry: Inquiry, tested: Tested, games: list[RecordedGame]) -> dict[str, Any]:
    """An analysis for JSON, with the answer about each game."""
    known = answers(tested.forest.games())
    found = findings(inquiry.asked, [game.rollout for game in games], known)
    return {
        "analyser": inquiry.analyser.name,
        "dollars": tested.dollars,
        "findings": [
            {**one._asdict(), "share": one.share and one.share._asdict()} for one in found
        ],
        "games": [
            {
                "iteration": game.stage.iteration,
                "stage": game.stage.stage,
                "datapoint": game.rollout.datapoint.id,
                "tree": game.tree,
                "game": game.number,
                "agent": one.agent,
                "channel": one.channel,
                "value": known[one.datapoint.id],
            }
            for one in inquiry.asked
            for game in [games[one.game]]
        ],
    }


def _print(inquiries: list[Inquiry], tested: list[Tested], games: list[Rollout]) -> None:
    rows, unanswered = [], 0
    several = {one.channel for inquiry in inquiries for one in inquiry.asked}
    for inquiry, test in zip(inquiries, tested, strict=True):
        for one in _found(inquiry, test, games):
            unanswered += one.unanswered
            channel = [one.channel] if len(several) > 1 else []
            rows.append(
                (
                    inquiry.analyser.name,
                    " in ".join([one.agent, *channel]),
                    f"{one.games:,}",
                    "-" if one.share is None else share(*one.share),
                    *("-" if mean is None else f"{mean:.1%}" for mean in (one.right, one.wrong)),
                    f"{one.unanswered:,}",
                )
            )
    titles = (
        "analyser",
        "agent",
        "games",
        "true [95 %]",
        "in right games",
        "in others",
        "no answer",
    )
    print_rows(titles, rows, keys=2)
    if unanswered:
        say(f"nip-fn: {unanswered:,} games have no answer, and are left out of the shares")
