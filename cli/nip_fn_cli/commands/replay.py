"""`nip-fn replay`: derive a run again from its recorded events, and look into it."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Annotated, Any

import typer

from nip_fn.config.codec import differences, params_hash, to_dict
from nip_fn.errors import Problem
from nip_fn.export.transcripts import chat_before, transcript, words
from nip_fn.export.views import end_of, label_word
from nip_fn.game.chat import Chat
from nip_fn.game.episode import decision_of
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.replay import AnnotatedTree, Replayed, StageForest, annotate, reselect, summary
from nip_fn.select.pairs import Pairs
from nip_fn.training.trainer import Selection
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn.trees.tree import ROOT, label_at
from nip_fn_adapters import extensions
from nip_fn_adapters.costs.note import read_unrecorded
from nip_fn_adapters.experiments.budgets import Money, lost_line, money_of_run
from nip_fn_adapters.experiments.recordings import open_recording, replay_recording
from nip_fn_adapters.experiments.settings import resolve
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.config import with_sets
from nip_fn_cli.shown.dialogues import print_dialogues
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.options import (
    JsonOption,
    PricesOption,
    RunsOption,
    SetOption,
    TrustOption,
    money_or_die,
)
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.records import print_json
from nip_fn_cli.shown.table import print_table
from nip_fn_cli.shown.watching import TERMINAL


def replay_command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run's checkpoint.msgpack, its folder, or its name.")
    ],
    until: Annotated[
        int | None, typer.Option(help="Replay only the first N events.", min=0, metavar="N")
    ] = None,
    transcript: Annotated[
        str | None, typer.Option(help="Print the dialogues about a datapoint.", metavar="DATAPOINT")
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Print the trees about a datapoint.", metavar="DATAPOINT")
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(help="With --transcript or --tree: print only this iteration.")
    ] = None,
    prompts: Annotated[
        bool,
        typer.Option("--prompts", help="With --transcript: also print what each model was shown."),
    ] = False,
    sets: SetOption = None,
    prices: PricesOption = None,
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Derive a run again from its recorded events, compare the digests, and print its results.

    Needs no model and no network.  With --set, compares the recorded selection with that of another
    method, threshold, backup or seed on the same replies.
    """
    if prompts and transcript is None:
        die(Exit.USAGE, "--prompts shows the chats of a dialogue; add --transcript DATAPOINT")
    path = checkpoint / CHECKPOINT if checkpoint.is_dir() else checkpoint
    if not path.exists() and (runs / path / CHECKPOINT).is_file():
        path = runs / path / CHECKPOINT
    money = money_or_die(prices=prices)
    replayed = _replay(path, until)
    if tree is not None:
        print_record = print_json if as_json else print_dialogues
        print_record(_trees(replayed, tree, iteration))
    elif transcript is not None:
        print_record = print_json if as_json else print_dialogues
        print_record(_transcripts(replayed, transcript, iteration, prompts))
    elif sets:
        _compare_selections(replayed, sets, as_json)
    elif as_json:
        print_json(_facts(replayed))
    else:
        _summary(replayed, path.parent, money)
    # Only now: whoever looks for the cause of a mismatch needs what was derived.
    if replayed.state.faults:
        die(Exit.MISMATCH, f"{path}: {replayed.state.faults[0]}")


def _replay(path: Path, until: int | None) -> Replayed:
    recording = open_recording(path, until)
    if recording.torn:
        # Not in silence: the digest that is printed must be that of the whole run.  Whoever looks
        # at a run under way can use `load_run`, which leaves the torn event out.
        whole = len(recording.events)
        look = command("nip-fn", "replay", path, "--until", whole)
        problem = Problem(
            f"ends inside event {whole}; the {whole} before it are whole",
            str(path),
            f"look at them with: {look}; or resume the run",
        )
        die(Exit.TRUNCATED, problem)
    return replay_recording(path, recording, TERMINAL)


def _summary(replayed: Replayed, run: Path, money: Money) -> None:
    state = replayed.state
    print_table(state, money_of_run(money, run).prices)
    if lost := lost_line(or_exit(read_unrecorded(run))):
        print(lost)
    verdict = "DIFFERS from the recorded one" if state.faults else "all recorded digests match"
    print(f"\ndigest      {digest(state)} ({verdict})")
    position = f"iteration {state.iteration}, {state.stage.name}"
    print(f"events      {replayed.num_events:,}, up to {position}")
    if state.origin:
        name, iteration, _ = state.origin
        print(f"fork        of {name}, whose replies of iteration {iteration} it uses")
    for group in state.groups:
        names = ("base", *(adapter.name for adapter in group.lineage))
        print(f"lineage     {group.name}: {' -> '.join(names)}")


def _facts(replayed: Replayed) -> dict[str, Any]:
    state = replayed.state
    return {
        "configuration": params_hash(state.params),
        "dataset": state.dataset.name,
        "dataset_hash": state.dataset.hash,
        "events": replayed.num_events,
        "iteration": state.iteration,
        "stage": state.stage.name,
        "digest": digest(state),
        "digests_match": not state.faults,
        "fork_of": state.origin and state.origin.run,
        "fork_iteration": state.origin and state.origin.iteration,
        "lineage": {
            group.name: [adapter.name for adapter in group.lineage] for group in state.groups
        },
        "iterations": summary(state),
    }


# ------------------------------------------------------------------------- other selections


def _compare_selections(replayed: Replayed, sets: Sequence[str], as_json: bool) -> None:
    recorded = replayed.state.params
    table = with_sets(to_dict(recorded), sets)
    # Registered again, since --set may name a selector that the run did not have.
    or_exit(extensions.register(table))  # it may be a selector of one's own
    params = resolve(table)
    selections = or_exit(reselect(replayed, params).alt(lambda problem: problem.at("--set")))
    rows = [
        _compared(stage, selection, agent, params)
        for stage, selection in selections
        for agent in range(len(params.agents))
    ]
    if as_json:
        print_json({"changed": differences(recorded, params), "selections": rows})
        return
    titles = (
        *("iteration", "agent", "recorded", "selected now", "in both"),
        *("recorded margin", "margin now"),
    )
    cells = [
        [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()]
        for row in rows
    ]
    print(f"selections from the same replies: as recorded, and with {', '.join(sets)}\n")
    print_rows(titles, cells, keys=2)


def _compared(
    grown: StageForest, selection: Selection, agent: int, params: HyperParameters
) -> dict[str, Any]:
    then, now = _places(grown.selection, agent), _places(selection, agent)
    return {
        "iteration": grown.iteration,
        "agent": params.agents[agent].name,
        "selected": len(then),
        "selected_now": len(now),
        "in_both": len(set(then) & set(now)),
        "margin": _margin(grown.selection.pairs, agent),
        "margin_now": _margin(selection.pairs, agent),
    }


def _places(selection: Selection, agent: int) -> list[tuple[int, ...]]:
    """The nodes of an agent's selected pairs, and the trees of its selected rollouts."""
    pairs = [(p.tree, p.chosen, p.rejected) for p in selection.pairs if p.agent == agent]
    return [*pairs, *((r.tree, r.replaced) for r in selection.rollouts if r.agent == agent)]


def _margin(pairs: Pairs, agent: int) -> float:
    """The mean difference of the expected rewards in an agent's pairs; 0 of none."""
    margins = [p.chosen_value - p.rejected_value for p in pairs if p.agent == agent]
    return fmean(margins) if margins else 0.0


# ------------------------------------------------------------------- trees and transcripts


_SAMPLED, _PLAYED = ("sample",), ("test", "sample")
_WORK = {_SAMPLED: "grows trees", _PLAYED: "plays games"}


def _trees(replayed: Replayed, prefix: str, iteration: int | None) -> list[dict[str, Any]]:
    return [
        {**_about(grown, index), "tree": _nested(annotate(grown, index), grown, index)}
        for grown, index in _found(replayed, prefix, iteration, _SAMPLED)
    ]


def _transcripts(
    replayed: Replayed, prefix: str, iteration: int | None, prompts: bool
) -> list[dict[str, Any]]:
    return [
        {
            **_about(grown, index),
            **transcript(grown.params, rollout),
            **({"prompts": _prompts(grown.params, rollout)} if prompts else {}),
        }
        for grown, index in _found(replayed, prefix, iteration, _PLAYED)
        for rollout in leaf_games(grown.batch.trees[index], grown.datapoint(index))
    ]


def _prompts(params: HyperParameters, rollout: Rollout) -> list[dict[str, Chat]]:
    """The chat that each agent was shown, round by round."""
    return [
        {
            params.agents[utterance.agent].name: chat_before(
                params, rollout, number, utterance.agent
            )
            for utterance in turn
        }
        for number, turn in enumerate(rollout.rounds)
    ]


def _found(
    replayed: Replayed, prefix: str, iteration: int | None, stages: tuple[str, ...]
) -> list[tuple[StageForest, int]]:
    """The trees about the one datapoint whose id begins with `prefix`; ends the command if there
    is not exactly one.
    """
    ended = [stage for stage in replayed.stages if stage.stage in stages]
    if not ended:
        # A run that only tests plays single games; one that was stopped early may hold neither.
        remedy = f"use --transcript {quote(prefix)}" if replayed.stages else "resume the run first"
        die(Exit.USAGE, Problem(f"no stage of the run that {_WORK[stages]} has ended", "", remedy))
    grown = [stage for stage in ended if iteration in (None, stage.iteration)]
    if not grown:
        there = ", ".join(map(str, dict.fromkeys(stage.iteration for stage in ended)))
        problem = f"no stage of it that {_WORK[stages]} has ended"
        die(Exit.USAGE, Problem(problem, f"--iteration {iteration}", f"choose from {there}"))
    names = list(dict.fromkeys(point.id for stage in grown for point in stage.batch.datapoints))
    matching = [name for name in names if name.startswith(prefix)]
    if len(matching) != 1:
        problem = "is ambiguous" if matching else "is not in the recording"
        examples = ", ".join((matching or names)[:5]) or "none"
        die(Exit.USAGE, f"datapoint {prefix!r} {problem}; some of its datapoints are: {examples}")
    return [(stage, index) for stage in grown for index in stage.trees_about(matching[0])]


def _about(grown: StageForest, index: int) -> dict[str, Any]:
    point = grown.datapoint(index)
    return {
        "datapoint": point.id,
        "iteration": grown.iteration,
        "stage": grown.stage,
        "label": label_word(point, point.label),
        "question": point.question,
        "solution": point.solution,
        **({"views": dict(point.views)} if point.views else {}),
    }


def _nested(
    marked: AnnotatedTree, grown: StageForest, index: int, node: int = ROOT
) -> dict[str, Any]:
    tree, params = marked.tree, grown.params
    names = [agent.name for agent in params.agents]
    utterances, status = tree.utterances_N[node], tree.status_N[node]
    decided = decision_of(utterances) if status == "decided" else None
    label = label_at(tree, node, grown.datapoint(index))
    outcome = end_of(status, decided, label)[1]
    return {
        "node": node,
        "said": words(params, utterances),
        "end": status,
        "outcome": "" if status == "open" else outcome,
        "reward": dict(zip(names, tree.reward_NA[node].tolist(), strict=True)),
        "expected_reward": dict(zip(names, marked.value_NA[node].tolist(), strict=True)),
        "marks": list(marked.marks.get(node, ())),
        "children": [_nested(marked, grown, index, child) for child in marked.children_N[node]],
    }
