"""`nip-fn attack`: the provers that mislead the frozen verifier of a run the most."""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

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
from nip_fn_adapters.costs.prices import sum_known
from nip_fn_adapters.costs.spending import dollars as dollars_of
from nip_fn_adapters.experiments.attack_cases import AttackOptions, Case, cases_of, resolved
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
from nip_fn_cli.config import with_sets
from nip_fn_cli.shown.attack_report import Row, over_seeds, report_of, rows_of
from nip_fn_cli.shown.dialogues import print_dialogue
from nip_fn_cli.shown.dryrun import COLUMNS, cells
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.numbers import interval
from nip_fn_cli.shown.options import (
    OWN,
    BudgetOption,
    DryRunOption,
    JsonOption,
    PricesOption,
    RunsOption,
    SeedsOption,
    SetOption,
    TrustOption,
    money_or_die,
    seeds_or_die,
)
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.watching import TERMINAL

ATTACKS = "attacks"  # the folder of a run that holds them
APART = 10_000  # the seeds of the trainings of one seed, so that none is that of another


def attack_command(
    run: Annotated[
        Path, typer.Argument(help="A run's folder, or its name; its verifier is attacked.")
    ],
    iteration: Annotated[
        int | None,
        typer.Option(help="Attack the models that were tested in this iteration, not the last."),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="The scripted provers, separated by commas; none for no scripts, or "
            f"{OWN}.  The default is all that there are for the data.",
            metavar="NAMES",
        ),
    ] = None,
    best_of: Annotated[
        str,
        typer.Option(
            help="Search for the best of N replies of the run's own provers, for each of these N; "
            "0 for no search.",
            metavar="N,N",
        ),
    ] = "1,4,16",
    starts: Annotated[
        int,
        typer.Option(
            help="The number of trainings of new provers, which start from the run's own and from "
            "the base model.",
            min=0,
        ),
    ] = 3,
    iterations: Annotated[
        int, typer.Option(help="The number of iterations of each of these trainings.", min=1)
    ] = 4,
    trainer: Annotated[
        str, typer.Option(help="The method of these trainings: malt or ei.", metavar="NAME")
    ] = "malt",
    games: Annotated[
        int,
        typer.Option(
            help="The number of games about each datapoint, and of continuations of each reply in "
            "a search.",
            min=1,
        ),
    ] = 8,
    datapoints: Annotated[
        int, typer.Option(help="The number of held-out datapoints.", min=1)
    ] = 100,
    seed: Annotated[
        int | None, typer.Option(help="The seed of all randomness; that of the run if left out.")
    ] = None,
    seeds: SeedsOption = None,
    sets: SetOption = None,
    dry_run: DryRunOption = False,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    name: Annotated[
        str | None,
        typer.Option(help="A name for the attack; made from its options if left out."),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Attack the verifier of a run: which prover misleads it most, and how often?

    The verifier stays as it is.  Against it play scripted provers, the best of several replies of
    its own prover, and provers that are trained to mislead it.  Prints completeness and soundness
    error for each of them, and the dialogue of the worst case.  Each is recorded as a run, in
    RUN/attacks/NAME.  The same command resumes an attack that was stopped.
    """
    options = AttackOptions(
        iteration=iteration,
        strategies=None if strategies is None else _names(strategies, "none"),
        best_of=_widths(best_of),
        starts=starts,
        iterations=iterations,
        trainer=trainer,
        games=games,
        datapoints=datapoints,
        seed=seed,
        changes=with_sets({}, sets or ()),
    )
    numbers = seeds_or_die(seeds)
    if numbers is not None and seed is not None:
        die(Exit.USAGE, "--seed is an option of a single attack; leave out --seeds")
    attacked = or_exit(load_run(run, runs))
    money = money_or_die(budget, prices)
    _check(attacked.params, options)
    attacks = [
        [(case, _plan(case)) for case in cases]
        for cases in _attacks(attacked, options, numbers, TERMINAL.once())
    ]
    folder_name = checked_name(name, "--name") or _name(options, attacks[0], numbers)
    folder = attacked.path.parent / ATTACKS / folder_name
    plans = list(chain.from_iterable(attacks))
    if dry_run:
        _forecast(plans, money)
        return
    for _, new in plans:
        check_budget(new.params, money)
    rows, dollars = _play_all(attacks, folder, money, attacked.params)
    report = {
        "run": str(attacked.path.parent),
        "iteration": attacked.state.iteration if iteration is None else iteration,
        "attacks": str(folder),
        **report_of(over_seeds(rows), attacked.params),
        "dollars": dollars,
    }
    if as_json:
        print(json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False))
    else:
        _print(report)


def _names(text: str, nothing: str) -> tuple[str, ...]:
    """The distinct words of a list with commas; () of the word that stands for nothing."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    return () if words == (nothing,) else tuple(dict.fromkeys(words))


def _widths(best_of: str) -> tuple[int, ...]:
    """The numbers of replies among which to search, in order; ends the command if it has others."""
    words = _names(best_of, "0")
    if not all(word.isdecimal() and int(word) for word in words):
        problem = f"{best_of!r} is not a list of numbers"
        die(Exit.USAGE, Problem(problem, "--best-of", "write it as in --best-of 1,4,16"))
    return tuple(sorted({int(word) for word in words}))


def _play_all(
    attacks: Sequence[Sequence[tuple[Case, New]]],
    folder: Path,
    money: Money,
    params: HyperParameters,
) -> tuple[list[list[Row]], float | None]:
    """(the rows of each attack, dollars for all of them), within one budget.

    The dollars are None if they are unknown.
    """
    rows_S: list[list[Row]] = []
    dollars: list[float | None] = []
    spent = 0.0
    for attack in attacks:
        rows_S.append([])
        for case, new in attack:
            # What a run leaves of the budget is for those behind it.
            remaining = (
                money if money.budget is None else money._replace(budget=money.budget - spent)
            )
            case_folder = folder / case.folder
            played = _play(case, new, case_folder, remaining)
            rows_S[-1] += rows_of(case, case_folder, played.stages[-1], params)
            case_money = money_of_run(money, case_folder)
            dollars.append(dollars_of(played.state, case_money.prices))
            spent += spent_at_most(played.state, case_folder, case_money)
    return rows_S, sum_known(dollars)


def _attacks(
    attacked: Run, options: AttackOptions, seeds: int | tuple[int, ...] | None, watch: Watch
) -> Iterator[list[Case]]:
    """The cases of the attack, or of that of each seed, which have a folder for themselves."""
    if seeds is None:
        yield list(cases_of(attacked, options, watch=watch))
        return
    for level in seeds_axis(seeds).levels:
        seeded = options._replace(seed=level.table["seed"])
        yield [
            case._replace(folder=f"{level.label}/{case.folder}")
            for case in cases_of(attacked, seeded, apart=APART, watch=watch)
        ]


def _check(params: HyperParameters, options: AttackOptions) -> None:
    """End the command if there is nothing to attack, or no such strategy."""
    protocol = protocol_of(params)
    if not sides(protocol):
        problem = f"nobody but the verifier speaks in {params.interaction_protocol}"
        die(Exit.USAGE, Problem(problem, remedy="attack a run of a game with a prover"))
    if options.best_of and options.games < 2:
        problem = "one continuation of a reply cannot both choose and value it"
        die(Exit.USAGE, Problem(problem, "--games", "ask for 2 or more, or for --best-of 0"))
    if options.trainer not in ("malt", "ei"):
        die(Exit.USAGE, Problem(f"{options.trainer!r} is not a trainer", "--trainer", "malt or ei"))
    strategies = strategies_for(params.dataset, "prover")
    for name in options.strategies or ():
        if name not in strategies and not is_reference(name):
            die(Exit.USAGE, unknown_name("--strategies", name, "strategy", tuple(strategies)))
    # Now, and not when the turn of the trainings has come.
    for agent, spec in zip(params.agents, protocol.agents, strict=True):
        at_api = kind_of(agent) == "api" and agent.model_provider != "OpenAI"
        if options.starts and spec.role == "prover" and at_api:
            problem = f"{agent.model_provider} trains no models"
            die(Exit.USAGE, Problem(problem, "--starts", "leave trainings out with --starts 0"))


def _name(
    options: AttackOptions,
    plans: Sequence[tuple[Case, New]],
    seeds: int | tuple[int, ...] | None,
) -> str:
    """A name that no other options have, and none with other models.

    The number of seeds does not matter, so that others can be added.
    """
    models = [new.lineages for _, new in plans]
    hashed = blake2b(msgspec.json.encode((options, models)), digest_size=4).hexdigest()
    return f"attack-{hashed}" if seeds is None else f"attack-{hashed}-seeds"


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
        estimates = (interval(row[name]) for name in ("accepts_right", "accepts_wrong"))
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
        estimate = report[title.replace(" ", "_")]
        if estimate is not None:
            by = (
                f", with the worst of {estimate['of']} provers: {estimate['prover']}"
                if "of" in estimate
                else ""
            )
            print(f"{title:<27}{interval(estimate)}  {meaning}{by}")
    worst = report["worst_case"]
    if worst is None:
        print("\nNo prover misled the verifier in any game.")
    else:
        about = f"datapoint {worst['datapoint']} ({worst['label']})"
        print(f"\nThe worst case: {worst['prover']}, {about}")
        print_dialogue(worst)
    print(f"\nTo look closer: {command('nip-fn', 'show', first[0])}")


def _two_sided(report: dict[str, Any]) -> bool:
    return len({tuple(row["agents"]) for row in report["provers"]}) > 2
