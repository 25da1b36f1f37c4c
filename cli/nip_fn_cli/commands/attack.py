"""`nip-fn attack`: the provers that mislead the frozen verifier of a run the most."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn.errors import Problem
from nip_fn_adapters.experiments.attack_cases import USUAL, AttackOptions
from nip_fn_adapters.experiments.attack_results import Attack, Bound
from nip_fn_adapters.experiments.attacking import attack, forecast_attack
from nip_fn_adapters.experiments.exact import PROBLEMS, attack_exact
from nip_fn_cli.config import with_sets
from nip_fn_cli.shown.dialogues import print_dialogue
from nip_fn_cli.shown.dryrun import print_forecasts
from nip_fn_cli.shown.exact import print_exact
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.numbers import share_with_interval
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
    seeds_or_die,
)
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.records import print_json
from nip_fn_cli.shown.watching import TERMINAL

# What --exact takes beside itself; the other options are about games.
OF_EXACT = frozenset(
    ("run", "exact", "every_iteration", "iteration", "questions", "datapoints", "sets", "runs",
     "trust", "as_json")
)  # fmt: skip
ONLY_EXACT = frozenset(("every_iteration", "questions"))


def attack_command(
    ctx: typer.Context,
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
        str | None,
        typer.Option(
            help="Search for the best of N replies of the run's own provers, for each of these N; "
            "0 for no search.  The default is 1,4,16 if the provers see all that the verifier "
            "sees, as on the bug hunt; otherwise a search would peek, and is refused.",
            metavar="N,N",
        ),
    ] = None,
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
        int | None,
        typer.Option(
            help=f"The number of held-out datapoints: {USUAL.datapoints} if left out, "
            f"{PROBLEMS} with --exact.",
            min=1,
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Play no games: compute how often the best reply misleads the verifier, from the "
            "probabilities of all that it says.",
        ),
    ] = False,
    every_iteration: Annotated[
        bool,
        typer.Option("--every-iteration", help="With --exact: the verifiers of all iterations."),
    ] = False,
    questions: Annotated[
        int | None,
        typer.Option(
            help="With --exact: draw so many of the verifier's questions about each datapoint, "
            "to stand for all.",
            min=1,
        ),
    ] = None,
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

    With --exact nothing is played: the best of all replies is computed, where the verifier's model
    runs in this process, and the world lists its provers' replies.
    """
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    given = {name for name, source in sources.items() if source and source.name != "DEFAULT"}
    if useless := given - OF_EXACT if exact else given & ONLY_EXACT:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(useless))
        die(Exit.USAGE, f"{listed}: of no use {'with' if exact else 'without'} --exact; leave out")
    if exact:
        computed = attack_exact(
            run,
            iterations=None if iteration is None else (iteration,),
            every_iteration=every_iteration,
            problems=datapoints or PROBLEMS,
            questions=questions,
            changes=with_sets({}, sets or ()),
            runs=runs,
            watch=TERMINAL,
        )
        report = or_exit(computed)
        if as_json:
            print_json(report)
        else:
            print_exact(report)
        return
    options = AttackOptions(
        iteration=iteration,
        strategies=None if strategies is None else _names(strategies, "none"),
        best_of=None if best_of is None else _widths(best_of),
        starts=starts,
        iterations=iterations,
        trainer=trainer,
        games=games,
        datapoints=datapoints or USUAL.datapoints,
        seed=seed,
        changes=with_sets({}, sets or ()),
    )
    numbers = seeds_or_die(seeds)
    if dry_run:
        planned = forecast_attack(
            run, options, seeds=numbers, prices=prices, runs=runs, watch=TERMINAL
        )
        print_forecasts("run", {name: run.total for name, run in or_exit(planned).items()})
        return
    attacked = attack(
        run,
        options,
        seeds=numbers,
        budget=budget,
        prices=prices,
        name=name,
        runs=runs,
        watch=TERMINAL,
    )
    found = or_exit(attacked)
    if as_json:
        fields = found._asdict()
        print_json({"attacks": fields.pop("folder"), **fields})
    else:
        _print(found)


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


def _print(found: Attack) -> None:
    first = found.provers[0].runs
    several_runs, two_sided = len(first) > 1, len({row.agents for row in found.provers}) > 2
    titles = ("accepts right [95 %]", "accepts wrong [95 %]", "datapoints x games")
    rows = []
    for row in found.provers:
        agents = f" ({', '.join(row.agents)})" if two_sided and row.agents else ""
        number = (str(len(row.runs)),) if several_runs else ()
        accepts = share_with_interval(row.accepts_right), share_with_interval(row.accepts_wrong)
        rows.append((f"{row.prover}{agents}", *number, *accepts,
                     f"{row.datapoints:,} x {row.games}"))  # fmt: skip
    print_rows(("prover", *(("runs",) if several_runs else ()), *titles), rows)
    print()
    for title, estimate, meaning in (
        ("completeness", found.completeness, "accepts right, with the run's own provers"),
        ("soundness error", found.soundness_error, "accepts wrong"),
        ("completeness under attack", found.completeness_under_attack, "accepts right"),
    ):
        if estimate is not None:
            by = (
                f", with the worst of {estimate.of} provers: {estimate.prover}"
                if isinstance(estimate, Bound)
                else ""
            )
            print(f"{title:<27}{share_with_interval(estimate[:3])}  {meaning}{by}")
    worst = found.worst_case
    if worst is None:
        print("\nNo prover misled the verifier in any game.")
    else:
        about = f"datapoint {worst['datapoint']} ({worst['label']})"
        print(f"\nThe worst case: {worst['prover']}, {about}")
        print_dialogue(worst)
    print(f"\nTo look closer: {command('nip-fn', 'show', first[0])}")
