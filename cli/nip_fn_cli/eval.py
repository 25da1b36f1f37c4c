"""`nip-fn eval`: test protocols and models without training any."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.config.codec import merge
from nip_fn.metrics.evaluation import Verdicts, accuracy, always_fails, gain
from nip_fn.metrics.inference import Estimate
from nip_fn_cli.casting import recast
from nip_fn_cli.cells import Cell, Tested, cell_of, open_evaluation
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.money import Money
from nip_fn_cli.printing import print_rows

# The verifier alone: a protocol is worth what its verifier gains over this.
BASELINE = "solo_verifier"


class Choice(NamedTuple):
    """The options of the command.

    protocols: the games to test.
    models: the models to test each of them with; () for those of the configuration.
    split: the split to test on; None for that of the configuration.
    repeats: the games about each datapoint, likewise.
    name: the name of the folder for all runs; None for one made from the parameters.
    json: print JSON.
    """

    protocols: tuple[str, ...]
    models: tuple[str, ...]
    split: str | None
    repeats: int | None
    name: str | None
    json: bool


class Case(NamedTuple):
    """One protocol with one model.

    protocol: the game.
    model: the model of all agents; None for those of the configuration.
    cell: its test.
    """

    protocol: str
    model: str | None
    cell: Cell


class Result(NamedTuple):
    """The results of a case."""

    case: Case
    tested: Tested
    verdicts: Verdicts


def eval_command(flags: Flags, choice: Choice, money: Money, runs: Path) -> None:
    """Run the command; given again, it resumes where an earlier one was stopped."""
    cases = _cases(flags, choice, runs)
    cells = [case.cell for case in cases]
    evaluation = open_evaluation(cells, choice.name, "eval", flags.provider, money, runs)
    results = []
    for case in cases:
        tested = evaluation.play(case.cell)
        results.append(Result(case, tested, tested.judged.verdicts))
    rows = [_row(one, results) for one in results]
    if choice.json:
        print(json.dumps({"runs": str(evaluation.place), "tests": rows}, indent=2))
        return
    _print(rows)
    print(f"\nTo look closer: nip-fn replay {evaluation.place / cells[0].folder} --help")


def tested_table(table: dict[str, Any], split: str | None, repeats: int | None) -> dict[str, Any]:
    """A configuration, also one that was written for a training, of a run that only tests."""
    # Trees cost more replies, and an evaluation counts dialogues.
    tests = {"test_scheme": "all", "test_trees": False}
    fixed: dict[str, Any] = {"rl": {"num_iterations": 0}, "text_rl": tests}
    if split is not None:
        fixed["test_dataset_split"] = split
    if repeats is not None:
        fixed["rl"]["num_test_iterations"] = repeats
    return merge(table, fixed)


def of_protocol(table: dict[str, Any], protocol: str) -> dict[str, Any]:
    """The configuration with another protocol, played by those of its agents that fit."""
    configured = table.get("interaction_protocol", "nip")
    agents = table.get("agents", {})
    # Of the configured protocol every name is kept: one that it does not have is an error.
    cast = agents if protocol == configured else recast(agents, protocol)
    return {**table, "interaction_protocol": protocol, "agents": cast}


def folder_of(*parts: str) -> str:
    """The name of a run, made of some words without the signs that no path may have."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(parts)).strip("-.")


def _cases(flags: Flags, choice: Choice, runs: Path) -> list[Case]:
    table = tested_table(overrides(flags), choice.split, choice.repeats)
    protocols = choice.protocols or (table.get("interaction_protocol", "nip"), BASELINE)
    cases = []
    for model in dict.fromkeys(choice.models) or (None,):
        # The configuration may name the baseline itself, which then is tested once.
        for protocol in dict.fromkeys(protocols):
            named = {} if model is None else {"agents": {"_default": {"model_name": model}}}
            given = merge(of_protocol(table, protocol), named)
            folder = folder_of(protocol, *([] if model is None else [model]))
            cell = cell_of(folder, given, flags.provider, runs)
            cases.append(Case(protocol, model, cell))
    return cases


def _row(one: Result, everything: list[Result]) -> dict[str, Any]:
    """The facts of a case; its gain is over the baseline with the same model."""
    metrics = dict(one.tested.metrics)
    baseline = next(
        (
            other
            for other in everything
            if (other.case.protocol, other.case.model) == (BASELINE, one.case.model)
            and other is not one
        ),
        None,
    )
    failing = always_fails(one.verdicts)
    models = dict.fromkeys(agent.model_name for agent in one.case.cell.new.params.agents)
    return {
        "protocol": one.case.protocol,
        "model": ", ".join(models),
        "datapoints": len(one.verdicts.right),
        "games": one.verdicts.games,
        "accuracy": accuracy(one.verdicts)._asdict(),
        "always_fails": None if failing is None else failing._asdict(),
        "gain": gain(one.verdicts, baseline.verdicts)._asdict() if baseline else None,
        **{name: metrics.get(name) for name in ("accuracy_0", "accuracy_1", "no_decision_rate")},
        "tokens": metrics["tokens"],
        "prompt_tokens": metrics["prompt_tokens"],
        "dollars": one.tested.dollars,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    titles = (
        *("protocol", "model", "datapoints x games", "accuracy [95 %]", "always fails [95 %]"),
        *(f"over {BASELINE} [95 %]", "buggy", "right", "undecided", "tokens", "dollars"),
    )
    lines = [
        (
            row["protocol"],
            row["model"],
            f"{row['datapoints']:,} x {row['games']}",
            _estimate(row["accuracy"]),
            _estimate(row["always_fails"]),
            _estimate(row["gain"], signed=True),
            *(_share(row[name]) for name in ("accuracy_0", "accuracy_1", "no_decision_rate")),
            f"{row['prompt_tokens'] + row['tokens']:,.0f}",
            "unknown" if row["dollars"] is None else f"{row['dollars']:.4g}",
        )
        for row in rows
    ]
    print_rows(titles, lines, keys=2)


def _estimate(found: dict[str, float] | None, signed: bool = False) -> str:
    if found is None:
        return "-"
    value, low, high = (found[name] for name in Estimate._fields)
    if signed:
        return f"{value * 100:+.1f} [{low * 100:+.1f}, {high * 100:+.1f}]"
    return f"{value:.1%} [{low:.1%}, {high:.1%}]"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
