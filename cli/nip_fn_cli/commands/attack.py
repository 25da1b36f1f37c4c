"""`nip-fn attack`: the provers that mislead the frozen verifier of a run the most."""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from nip_fn.config.codec import to_dict
from nip_fn.config.hosting import kind_of
from nip_fn.config.study import seeds_axis
from nip_fn.errors import Problem
from nip_fn.params.names import is_reference, unknown_name
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.sides import sides
from nip_fn.protocols.strategies import strategies_for
from nip_fn.run.replay import Replayed
from nip_fn_adapters import extensions
from nip_fn_adapters.costs.spending import dollars as dollars_of
from nip_fn_adapters.experiments.attack_cases import Case, Choice, cases_of, resolved
from nip_fn_adapters.experiments.budgets import Money, check_budget, money_of_run, spent_at_most
from nip_fn_adapters.experiments.cells import played
from nip_fn_adapters.experiments.forecasting import forecast_plan
from nip_fn_adapters.experiments.loading import first_adapters
from nip_fn_adapters.experiments.plans import New, checked_name
from nip_fn_adapters.experiments.start import create, reopen
from nip_fn_adapters.experiments.watching import Watch
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.runs import Run, load_run, start_of
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.commands.replay import print_game, print_problem
from nip_fn_cli.config import with_sets
from nip_fn_cli.shown.attack_report import Row, over_seeds, report_of, rows_of
from nip_fn_cli.shown.dryrun import COLUMNS, cells
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.printing import print_rows, share
from nip_fn_cli.shown.watching import TERMINAL

ATTACKS = "attacks"  # the folder of a run that holds them
APART = 10_000  # the seeds of the trainings of one seed, so that none is that of another


def choice_of(strategies: str | None, best_of: str, sets: tuple[str, ...], **others: Any) -> Choice:
    """The options, with the lists among them read; ends the command if one cannot be."""
    names = strategies if strategies is None else _listed(strategies, "none")
    numbers = _listed(best_of, "0")
    if not all(number.isdecimal() and int(number) for number in numbers):
        problem = f"{best_of!r} is not a list of numbers"
        die(Exit.USAGE, Problem(problem, "--best-of", "write it as in --best-of 1,4,16"))
    widths = tuple(sorted({int(number) for number in numbers}))
    return Choice(strategies=names, best_of=widths, changes=with_sets({}, sets), **others)


def _listed(text: str, nothing: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    return () if parts == (nothing,) else tuple(dict.fromkeys(parts))


def attack_command(
    path: Path, choice: Choice, seeds: int | tuple[int, ...] | None, money: Money, runs: Path
) -> None:
    """Run the command; given again, it resumes where an earlier one was stopped.

    With `seeds` it is as many attacks, each in a folder of its own, and one table of them.
    """
    attacked = or_exit(load_run(path, runs))
    _check(attacked.params, choice)
    watch = TERMINAL.once()
    attacks = [
        [(case, _plan(case)) for case in cases]
        for cases in _attacks(attacked, choice, seeds, watch)
    ]
    name = checked_name(choice.name, "--name") or _name(
        choice, [new for _, new in attacks[0]], seeds
    )
    place = attacked.path.parent / ATTACKS / name
    every = list(chain.from_iterable(attacks))
    if choice.dry:
        _forecast(every, money)
        return
    for _, new in every:
        check_budget(new.params, money)
    rows_S: list[list[Row]] = []
    spent: list[float | None] = []
    gone = 0.0
    for attack in attacks:
        rows_S.append([])
        for case, new in attack:
            # One budget for the whole command: what a run leaves is for those behind it.
            left = money if money.budget is None else money._replace(budget=money.budget - gone)
            folder = place / case.folder
            played = _play(case, new, folder, left)
            rows_S[-1] += rows_of(case, folder, played.stages[-1], attacked.params)
            own = money_of_run(money, folder)
            spent.append(dollars_of(played.state, own.prices))
            gone += spent_at_most(played.state, folder, own)
    report = {
        "run": str(attacked.path.parent),
        "iteration": attacked.state.iteration if choice.iteration is None else choice.iteration,
        "attacks": str(place),
        **report_of(over_seeds(rows_S), attacked.params),
        "dollars": None if None in spent else sum(dollars or 0.0 for dollars in spent),
    }
    if choice.json:
        print(json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False))
    else:
        _print(report)


def _attacks(
    attacked: Run, choice: Choice, seeds: int | tuple[int, ...] | None, watch: Watch
) -> Iterator[list[Case]]:
    """The cases of the attack, or of that of each seed, which have a folder for themselves."""
    if seeds is None:
        yield list(cases_of(attacked, choice, watch=watch))
        return
    for level in seeds_axis(seeds).levels:
        own = choice._replace(seed=level.table["seed"])
        yield [
            case._replace(folder=f"{level.label}/{case.folder}")
            for case in cases_of(attacked, own, apart=APART, watch=watch)
        ]


def _check(params: HyperParameters, choice: Choice) -> None:
    """End the command if there is nothing to attack, or no such strategy."""
    protocol = protocol_of(params)
    if not sides(protocol):
        problem = f"nobody but the verifier speaks in {params.interaction_protocol}"
        die(Exit.USAGE, Problem(problem, remedy="attack a run of a game with a prover"))
    if choice.best_of and choice.games < 2:
        problem = "one continuation of a reply cannot both choose and value it"
        die(Exit.USAGE, Problem(problem, "--games", "ask for 2 or more, or for --best-of 0"))
    if choice.trainer not in ("malt", "ei"):
        die(Exit.USAGE, Problem(f"{choice.trainer!r} is not a trainer", "--trainer", "malt or ei"))
    known = strategies_for(params.dataset, "prover")
    for name in choice.strategies or ():
        if name not in known and not is_reference(name):
            die(Exit.USAGE, unknown_name("--strategies", name, "strategy", tuple(known)))
    # Now, and not when the turn of the trainings has come.
    for agent, spec in zip(params.agents, protocol.agents, strict=True):
        at_api = kind_of(agent) == "api" and agent.model_provider != "OpenAI"
        if choice.starts and spec.role == "prover" and at_api:
            problem = f"{agent.model_provider} trains no models"
            die(Exit.USAGE, Problem(problem, "--starts", "leave trainings out with --starts 0"))


def _name(choice: Choice, plans: Sequence[New], seeds: int | tuple[int, ...] | None) -> str:
    """A name that no other options have, and none with other models; printing does not matter.

    Nor does the number of seeds, so that others can be added.
    """
    asked = choice._replace(name=None, json=False, dry=False)
    models = [new.lineages for new in plans]
    known = blake2b(msgspec.json.encode((asked, models)), digest_size=4).hexdigest()
    return f"attack-{known}" if seeds is None else f"attack-{known}-seeds"


def _plan(case: Case) -> New:
    params = resolved(case.table)
    groups = or_exit(first_adapters(case.loaded, params))
    return New(params, case.loaded, groups, or_exit(extensions.sources(to_dict(params))))


def _forecast(plans: Sequence[tuple[Case, New]], money: Money) -> None:
    """Print what each run would ask for, and what it would cost."""
    rows = []
    for case, new in plans:
        workload = forecast_plan(new, money.prices, TERMINAL).total
        rows.append((case.folder, *cells(workload, rate=1.0)[:-1]))
    print("expected / at most, where they differ\n")
    print_rows(("run", *COLUMNS, "dollars"), rows)


def _play(case: Case, new: New, folder: Path, money: Money) -> Replayed:
    """The case's run, which is played as far as it has not been."""
    path = folder / CHECKPOINT
    if path.exists():
        start = start_of(or_exit(store.read(path)))  # empty if it died at once
        if start and start.loaded != new.lineages:
            problem = "this attack was begun on other models"
            die(Exit.USAGE, Problem(problem, str(folder), "give it another --name"))
        session = reopen(folder, to_dict(new.params), None, new=new, watch=TERMINAL)
    else:
        session = create(folder, new, watch=TERMINAL)
    return played(session, folder, f"{case.prover} ({case.folder}):", money, TERMINAL)


def _print(report: dict[str, Any]) -> None:
    first = report["provers"][0]["runs"]
    runs = ("runs",) if len(first) > 1 else ()
    titles = ("prover", *runs, "accepts right [95 %]", "accepts wrong [95 %]", "datapoints x games")
    rows = []
    for row in report["provers"]:
        agents = f" ({', '.join(row['agents'])})" if _two_sided(report) and row["agents"] else ""
        estimates = (_estimate(row[name]) for name in ("accepts_right", "accepts_wrong"))
        size = f"{row['datapoints']:,} x {row['games']}"
        number = tuple(str(len(row[name])) for name in runs)
        rows.append((f"{row['prover']}{agents}", *number, *estimates, size))
    print_rows(titles, rows)
    print()
    lines = (
        ("completeness", "accepts right, with the run's own provers"),
        ("soundness error", "accepts wrong"),
        ("completeness under attack", "accepts right"),
    )
    for title, meaning in lines:
        found = report[title.replace(" ", "_")]
        if found is not None:
            by = (
                f", with the worst of {found['of']} provers: {found['prover']}"
                if "of" in found
                else ""
            )
            print(f"{title:<27}{_estimate(found)}  {meaning}{by}")
    worst = report["worst_case"]
    if worst is None:
        print("\nNo prover misled the verifier in any game.")
    else:
        about = f"datapoint {worst['datapoint']} ({worst['label']})"
        print(f"\nThe worst case: {worst['prover']}, {about}")
        print_problem(worst)
        print_game(worst)
    print(f"\nTo look closer: {command('nip-fn', 'show', first[0])}")


def _two_sided(report: dict[str, Any]) -> bool:
    return len({tuple(row["agents"]) for row in report["provers"]}) > 2


def _estimate(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    return share(found["value"], found["low"], found["high"])
