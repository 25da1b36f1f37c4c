"""`nip-fn eval`: test protocols and models without training any."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from nip_fn.config.codec import merge, params_hash
from nip_fn.errors import Problem
from nip_fn.metrics.evaluation import Verdicts, accuracy, always_fails, gain, verdicts
from nip_fn.metrics.formulas import Metrics
from nip_fn.metrics.inference import Estimate
from nip_fn.run.state import RunState
from nip_fn_adapters.costs.spending import dollars
from nip_fn_adapters.store import CHECKPOINT
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.datasets import told
from nip_fn_cli.exits import Exit, die, say
from nip_fn_cli.money import Money, check_budget
from nip_fn_cli.recordings import read_recording, replay_recording
from nip_fn_cli.session import New, create, plan, reopen, run_session
from nip_fn_cli.table import console

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
    given: the written configuration of its run.
    """

    protocol: str
    model: str | None
    given: dict[str, Any]

    @property
    def folder(self) -> str:
        """The name of its run."""
        name = self.protocol if self.model is None else f"{self.protocol}-{self.model}"
        return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")


class Tested(NamedTuple):
    """The results of one case.

    case: the case.
    state: the state in which its run is done.
    verdicts: how often its games were decided rightly, by datapoint.
    dollars: the cost; None if it is unknown.
    """

    case: Case
    state: RunState
    verdicts: Verdicts
    dollars: float | None

    @property
    def metrics(self) -> Metrics:
        """The metrics of its only stage."""
        return self.state.rows[0].metrics


def eval_command(flags: Flags, choice: Choice, money: Money, runs: Path) -> None:
    """Run the command; given again, it resumes where an earlier one was stopped."""
    cases = _cases(flags, choice)
    plans = [plan(case.given, flags.provider, runs) for case in cases]
    folders = [case.folder for case in cases]
    if len(set(folders)) < len(folders):
        problem = "two of the models have the same name but for its punctuation"
        die(Exit.USAGE, Problem(problem, "--model", "test them in two commands"))
    whole = params_hash(plans[0].params)[:8]
    place = runs / (choice.name or f"eval-{whole}-{len(cases)}")
    # All of them before the first is played: a refusal must not come after hours.
    for one in plans:
        check_budget(one.params, money)
    tested: list[Tested] = []
    for case, new in zip(cases, plans, strict=True):
        # One budget for the whole command: what a case leaves is for those behind it.
        spent = sum(one.dollars or 0.0 for one in tested)
        left = money if money.budget is None else money._replace(budget=money.budget - spent)
        tested.append(_test(case, new, place / case.folder, flags, left))
    rows = [_row(one, tested) for one in tested]
    if choice.json:
        print(json.dumps({"runs": str(place), "tests": rows}, indent=2))
        return
    _print(rows)
    print(f"\nTo look closer: nip-fn replay {place / cases[0].folder} --help")


def _cases(flags: Flags, choice: Choice) -> list[Case]:
    table = overrides(flags)
    # Over the configuration: one that was written for a training is tested here, and not trained.
    fixed: dict[str, Any] = {"rl": {"num_iterations": 0}, "text_rl": {"test_scheme": "all"}}
    if choice.split is not None:
        fixed["test_dataset_split"] = choice.split
    if choice.repeats is not None:
        fixed["rl"]["num_test_iterations"] = choice.repeats
    protocols = choice.protocols or (table.get("interaction_protocol", "nip"), BASELINE)
    cases = []
    for model in dict.fromkeys(choice.models) or (None,):
        # The configuration may name the baseline itself, which then is tested once.
        for protocol in dict.fromkeys(protocols):
            own: dict[str, Any] = {"interaction_protocol": protocol}
            if model is not None:
                own["agents"] = {"_default": {"model_name": model}}
            cases.append(Case(protocol, model, merge(merge(table, fixed), own)))
    return cases


def _test(case: Case, new: New, folder: Path, flags: Flags, money: Money) -> Tested:
    """The results of a case, which is played as far as it has not been."""
    if (folder / CHECKPOINT).exists():
        session = reopen(folder, case.given, flags.provider)
    else:
        session = create(folder, new)
    if session.state.stage.name == "done":
        session.store.close()
    else:
        say(f"{case.folder}: {told(session.data)}")
        run_session(session, folder, "the same command", money)
    # Read again from the file, so that whatever is reported is what was recorded.
    path = folder / CHECKPOINT
    replayed = replay_recording(path, read_recording(path))
    batch = replayed.stages[0].batch
    found, spent = verdicts(batch.datapoints, batch.trees), dollars(replayed.state, money.prices)
    return Tested(case, replayed.state, found, spent)


def _row(one: Tested, everything: list[Tested]) -> dict[str, Any]:
    """The facts of a case; its gain is over the baseline with the same model."""
    metrics = dict(one.metrics)
    baseline = next(
        (
            other
            for other in everything
            if (other.case.protocol, other.case.model) == (BASELINE, one.case.model)
            and other is not one
        ),
        None,
    )
    models = dict.fromkeys(agent.model_name for agent in one.state.params.agents)
    return {
        "protocol": one.case.protocol,
        "model": ", ".join(models),
        "datapoints": len(one.verdicts.right),
        "games": one.verdicts.games,
        "accuracy": accuracy(one.verdicts)._asdict(),
        "always_fails": always_fails(one.verdicts)._asdict(),
        "gain": gain(one.verdicts, baseline.verdicts)._asdict() if baseline else None,
        **{name: metrics.get(name) for name in ("accuracy_0", "accuracy_1", "no_decision_rate")},
        "tokens": metrics["tokens"],
        "prompt_tokens": metrics["prompt_tokens"],
        "dollars": one.dollars,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ("protocol", "model", "datapoints x games", "accuracy [95 %]", "always fails [95 %]")
    others = (f"over {BASELINE} [95 %]", "buggy", "right", "undecided", "tokens", "dollars")
    for title in (*titles, *others):
        table.add_column(title, justify="left" if title in titles[:2] else "right")
    for row in rows:
        table.add_row(
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
    console().print(table)


def _estimate(found: dict[str, float] | None, signed: bool = False) -> str:
    if found is None:
        return "-"
    value, low, high = (found[name] for name in Estimate._fields)
    if signed:
        return f"{value * 100:+.1f} [{low * 100:+.1f}, {high * 100:+.1f}]"
    return f"{value:.1%} [{low:.1%}, {high:.1%}]"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
