"""`nip-fn replay`: derive a run again from its recorded events, and look into it."""

import json
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from nip_fn.config.codec import differences, params_hash, to_dict
from nip_fn.errors import Problem
from nip_fn.export.transcripts import chat_before, transcript, words
from nip_fn.export.views import end_of
from nip_fn.game.chat import Chat
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.replay import AnnotatedTree, Replayed, StageForest, annotate, reselect, summary
from nip_fn.select.pairs import Pairs
from nip_fn.training.trainer import Selection
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn.trees.tree import ROOT
from nip_fn_adapters import extensions
from nip_fn_adapters.costs.note import read_unrecorded
from nip_fn_adapters.experiments.budgets import Money, lost_line, money_of_run
from nip_fn_adapters.experiments.recordings import read_recording, replay_recording
from nip_fn_adapters.experiments.settings import resolve
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.config import with_sets
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.printing import console, print_rows
from nip_fn_cli.shown.table import print_table
from nip_fn_cli.shown.watching import TERMINAL


class Show(NamedTuple):
    """The options that say what to print.

    transcript: the beginning of a datapoint's id, whose dialogues to print.
    tree: the beginning of a datapoint's id, whose trees to print.
    iteration: only this iteration of either; None for all.
    prompts: with dialogues, the chats that the models were shown.
    json: print JSON.
    """

    transcript: str | None
    tree: str | None
    iteration: int | None
    prompts: bool
    json: bool


def replay_command(
    path: Path, *, until: int | None, sets: tuple[str, ...], show: Show, money: Money, runs: Path
) -> None:
    """Run the command.

    Args:
        path: A checkpoint file, its folder, or the name of a run.
        until: Replay only so many events.
        sets: Parameters of the selection to change, as `a.b=value`.
        show: The options of the output.
        money: The prices that are given.
        runs: The folder in which a name is looked for.
    """
    if show.prompts and show.transcript is None:
        die(Exit.USAGE, "--prompts shows the chats of a dialogue; add --transcript DATAPOINT")
    path = path / CHECKPOINT if path.is_dir() else path
    if not path.exists() and (runs / path / CHECKPOINT).is_file():
        path = runs / path / CHECKPOINT
    replayed = _replay(path, until)
    if show.tree is not None:
        _print_all(_trees(replayed, show), show)
    elif show.transcript is not None:
        _print_all(_transcripts(replayed, show), show)
    elif sets:
        _compare_selections(replayed, sets, show)
    else:
        _summary(replayed, show, path.parent, money)
    # Only now: whoever looks for the cause of a mismatch needs what was derived.
    if replayed.state.faults:
        die(Exit.MISMATCH, f"{path}: {replayed.state.faults[0]}")


def _replay(path: Path, until: int | None) -> Replayed:
    recording = read_recording(path, until)
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


def _summary(replayed: Replayed, show: Show, run: Path, money: Money) -> None:
    state = replayed.state
    if show.json:
        _print_json(_facts(replayed))
        return
    print_table(state, money_of_run(money, run).prices)
    if lost := lost_line(or_exit(read_unrecorded(run))):
        print(lost)
    verdict = "DIFFERS from the recorded one" if state.faults else "all recorded digests match"
    print(f"\ndigest      {digest(state)} ({verdict})")
    place = f"iteration {state.iteration}, {state.stage.name}"
    print(f"events      {replayed.num_events:,}, up to {place}")
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


def _compare_selections(replayed: Replayed, sets: tuple[str, ...], show: Show) -> None:
    recorded = replayed.state.params
    table = with_sets(to_dict(recorded), sets)
    # Registered again, since --set may name a selector that the run did not have.
    or_exit(extensions.register(table))  # it may be a selector of one's own
    params = resolve(table)
    selections = or_exit(reselect(replayed, params).alt(lambda problem: problem.at("--set")))
    rows = [
        _compared(stage, other, agent, params)
        for stage, other in selections
        for agent in range(len(params.agents))
    ]
    if show.json:
        _print_json({"changed": differences(recorded, params), "selections": rows})
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
    grown: StageForest, other: Selection, agent: int, params: HyperParameters
) -> dict[str, Any]:
    then, now = _places(grown.selection, agent), _places(other, agent)
    return {
        "iteration": grown.iteration,
        "agent": params.agents[agent].name,
        "selected": len(then),
        "selected_now": len(now),
        "in_both": len(set(then) & set(now)),
        "margin": _margin(grown.selection.pairs, agent),
        "margin_now": _margin(other.pairs, agent),
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


def _trees(replayed: Replayed, show: Show) -> list[dict[str, Any]]:
    return [
        {**_about(grown, index), "tree": _nested(annotate(grown, index), grown, index)}
        for grown, index in _found(replayed, show.tree or "", show.iteration, _SAMPLED)
    ]


def _transcripts(replayed: Replayed, show: Show) -> list[dict[str, Any]]:
    return [
        {
            **_about(grown, index),
            **transcript(grown.params, rollout),
            **({"prompts": _prompts(grown.params, rollout)} if show.prompts else {}),
        }
        for grown, index in _found(replayed, show.transcript or "", show.iteration, _PLAYED)
        for rollout in leaf_games(grown.batch.trees[index], grown.datapoint(index))
    ]


def _prompts(params: HyperParameters, rollout: Rollout) -> list[dict[str, Chat]]:
    """The chat that each agent was shown, round by round."""
    return [
        {
            params.agents[said.agent].name: chat_before(params, rollout, place, said.agent)
            for said in turn
        }
        for place, turn in enumerate(rollout.rounds)
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
    known = list(dict.fromkeys(point.id for stage in grown for point in stage.batch.datapoints))
    matching = [name for name in known if name.startswith(prefix)]
    if len(matching) != 1:
        problem = "is ambiguous" if matching else "is not in the recording"
        some = ", ".join((matching or known)[:5]) or "none"
        die(Exit.USAGE, f"datapoint {prefix!r} {problem}; some of its datapoints are: {some}")
    return [(stage, index) for stage in grown for index in stage.trees_about(matching[0])]


def _about(grown: StageForest, index: int) -> dict[str, Any]:
    point = grown.datapoint(index)
    return {
        "datapoint": point.id,
        "iteration": grown.iteration,
        "stage": grown.stage,
        "label": "right" if point.label else "buggy",
        "question": point.question,
        "solution": point.solution,
        **({"views": dict(point.views)} if point.views else {}),
    }


def _nested(
    marked: AnnotatedTree, grown: StageForest, index: int, node: int = ROOT
) -> dict[str, Any]:
    tree, params = marked.tree, grown.params
    names = [agent.name for agent in params.agents]
    said, status = tree.utterances_N[node], tree.status_N[node]
    decision = next((one.decision for one in said if one.decision is not None), None)
    decided = decision if status == "decided" else None
    outcome = end_of(status, decided, grown.datapoint(index).label)[1]
    return {
        "node": node,
        "said": words(params, said),
        "end": status,
        "outcome": "" if status == "open" else outcome,
        "reward": dict(zip(names, tree.reward_NA[node].tolist(), strict=True)),
        "expected_reward": dict(zip(names, marked.value_NA[node].tolist(), strict=True)),
        "marks": list(marked.marks.get(node, ())),
        "children": [_nested(marked, grown, index, child) for child in marked.children_N[node]],
    }


def _print_all(records: list[dict[str, Any]], show: Show) -> None:
    if show.json:
        _print_json(records)
        return
    for record in records:
        print(
            f"\ndatapoint {record['datapoint']} ({record['label']}), "
            f"iteration {record['iteration']}, {record['stage']}"
        )
        print_problem(record)
        if "tree" in record:
            _print_tree(record["tree"])
        else:
            print_game(record)


def print_problem(record: dict[str, Any]) -> None:
    """Print what a game is about: the claim, and what all are shown, or each side alone."""
    print(record["question"])
    if record["solution"]:
        print(f"\n{record['solution']}\n")
    for name, view in record.get("views", {}).items():
        print(f"[{name} is shown] {_indented(view, 4)}")


def print_game(record: dict[str, Any]) -> None:
    """Print a dialogue as `export.transcripts` tells it: its rounds, its end and its rewards."""
    for number, turn in enumerate(record["rounds"]):
        for name, text in turn.items():
            if "prompts" in record:
                _print_chat(f"[{number}] {name} is shown", record["prompts"][number][name])
            print(f"[{number}] {name}: {_indented(text, 4)}")
    rewards = ", ".join(f"{name} {value:+g}" for name, value in record["rewards"].items())
    _print_marked(f"end: {record['outcome']}; rewards: {rewards}")


def _print_chat(title: str, chat: Chat) -> None:
    print(f"\n{title}:")
    for one in chat:
        speaker = f" ({one.name})" if one.name else ""
        print(f"    {one.role}{speaker}: {_indented(one.content, 8)}")


# What is good, and what is not, in the colours that a terminal has for them.
_COLOURS = {"right": "green", "chosen": "green", "wrong": "red", "rejected": "red"}


def _print_marked(line: str) -> None:
    """Print a line; on a terminal, its marks and outcomes in colour."""
    text = Text(line)
    for word, colour in _COLOURS.items():
        text.highlight_regex(rf"<{word}[^>]*>|: {word}\b", colour)
    console().print(text, soft_wrap=True)


def _print_tree(node: dict[str, Any], depth: int = 0) -> None:
    pad = "  " * depth
    values = ", ".join(f"{name} {value:+.3f}" for name, value in node["expected_reward"].items())
    rewards = ", ".join(f"{name} {value:+g}" for name, value in node["reward"].items() if value)
    ends = f"  {node['outcome']}, {rewards or 'no reward'}" if node["outcome"] else ""
    marks = "".join(f"  <{mark}>" for mark in node["marks"])
    _print_marked(f"{pad}({node['node']}) expected {values}{ends}{marks}")
    for name, text in node["said"].items():
        print(f"{pad}    {name}: {_indented(text, len(pad) + 6)}")
    for child in node["children"]:
        _print_tree(child, depth + 1)


def _indented(text: str, width: int) -> str:
    return text.strip().replace("\n", "\n" + " " * width)


def _print_json(value: Any) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
