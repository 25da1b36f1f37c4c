"""`nip-fn train`: start a run, or resume one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.options import (
    OWN,
    BaseUrlOption,
    BatchOption,
    BudgetOption,
    DryRunOption,
    ModelOption,
    PricesOption,
    ProviderOption,
    RunsOption,
    SeedOption,
    SeedsOption,
    SetOption,
    SkipOption,
    TrustOption,
    listed,
    money_or_die,
    seeds_or_die,
)

if TYPE_CHECKING:  # help must not wait for the core to be imported
    from nip_fn_adapters import Run


def train_command(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A .toml, .json or .yaml file; what it leaves out depends on the model (nip-fn "
            "params).  A configuration of the nip library is translated."
        ),
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help=f"The training method: malt, ei, or {OWN}.", metavar="NAME")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="The game: nip, adp, consultancy, debate, mnip, merlin_arthur, solo_verifier, or "
            f"{OWN}.",
            metavar="NAME",
        ),
    ] = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    batch: BatchOption = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="The data set: builtin:tea, builtin:bug-hunt, builtin:python, a benchmark such "
            "as gpqa or quality, hf:NAME, a .jsonl, .csv or .parquet file, the folder of a saved "
            f"data set, or {OWN}.",
            metavar="DATA",
        ),
    ] = None,
    skip_bad_rows: SkipOption = False,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    iterations: Annotated[
        int | None, typer.Option(help="The number of training iterations.")
    ] = None,
    sets: SetOption = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--run", help="The run's name; made from its parameters if left out.", metavar="NAME"
        ),
    ] = None,
    is_resumed: Annotated[
        bool, typer.Option("--resume", help="Resume the run of that name.")
    ] = False,
    more_iterations: Annotated[
        int | None,
        typer.Option(help="With --resume: iterations to add to a run that is done.", min=1),
    ] = None,
    forest: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Select and train again from the recorded replies of this run, with its "
            "parameters except those given here.",
            metavar="RUN",
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(help="With --from: the iteration of that run, if not its last.", min=0),
    ] = None,
    dry_run: DryRunOption = False,
    rate: Annotated[
        float, typer.Option(help="Requests per second that --dry-run assumes.", min=0.001)
    ] = 10.0,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Start a language-model server here for as long as the run lasts."
        ),
    ] = False,
    trackers: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            help="Send metrics to wandb, tensorboard, trackio or mlflow; several, separated by "
            "commas.",
            metavar="TRACKER",
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Train agents and record everything; print a table of the iterations at the end."""
    from nip_fn.config.study import Study, as_name, with_seeds
    from nip_fn_adapters import forecast, forecast_sweep, resume, sweep, train
    from nip_fn_adapters.experiments.plans import checked_name, plan, usual_name
    from nip_fn_adapters.recording.runs import known_runs
    from nip_fn_cli.config import overrides
    from nip_fn_cli.shown.dryrun import print_forecast, print_sweep_forecast
    from nip_fn_cli.shown.study_table import print_sweep
    from nip_fn_cli.shown.watching import TERMINAL

    table = overrides(
        config,
        trainer=trainer,
        protocol=protocol,
        model=model,
        base_url=base_url,
        batch=batch,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        iterations=iterations,
        sets=sets,
    )
    checked_name(name)
    if seeds is not None:
        single = {"--seed": seed, "--resume": is_resumed, "--from": forest}
        for option, value in {**single, "--serve": serve, "--track": trackers}.items():
            if value:
                die(Exit.USAGE, f"{option} is an option of a single run; leave out --seeds")
        params = plan(table, provider, runs, TERMINAL.once()).params
        name = name or as_name(f"{usual_name(params)}-seeds")
        study = with_seeds(Study(name, table), seeds_or_die(seeds) or 1)
        sweeping: dict[str, Any] = {
            "provider": provider,
            "budget": budget,
            "prices": prices,
            "studies": runs,
            "watch": TERMINAL,
        }
        if dry_run:
            print_sweep_forecast(or_exit(forecast_sweep(study, **sweeping)), budget)
        else:
            print_sweep(or_exit(sweep(study, **sweeping)))
        return
    if dry_run and is_resumed:
        die(Exit.USAGE, "--dry-run forecasts a whole run, from its beginning; leave out --resume")
    if dry_run and (forest, iteration) != (None, None):
        die(Exit.USAGE, "--dry-run forecasts a run that samples for itself; leave out --from")
    if more_iterations is not None and not is_resumed:
        die(Exit.USAGE, "--more-iterations extends a run that is done; add --resume --run NAME")
    if is_resumed and name is None:
        die(Exit.USAGE, f"--resume needs --run NAME; {known_runs(runs)}")
    if dry_run:
        planned = forecast(table, provider=provider, runs=runs, prices=prices, watch=TERMINAL)
        print_forecast(or_exit(planned), budget, rate)
        return
    session: dict[str, Any] = {
        "provider": provider,
        "runs": runs,
        "forest": forest,
        "iteration": iteration,
        "budget": budget,
        "prices": prices,
        "trackers": listed(trackers),
        "serve": serve,
        "watch": TERMINAL,
    }
    trained = or_exit(
        resume(str(name), table, more_iterations=more_iterations, **session)
        if is_resumed
        else train(table, name=name, **session)
    )
    _report(trained, prices)


def _report(run: "Run", prices: Path | None) -> None:
    from nip_fn_adapters.experiments.budgets import money_of_run
    from nip_fn_adapters.recording.tracker import METRICS
    from nip_fn_cli.shown.improvements import print_improved_game, print_improvements
    from nip_fn_cli.shown.table import failed_trainings, print_table

    folder = run.path.parent
    print_table(run.state, money_of_run(money_or_die(prices=prices), folder).prices)
    print_improvements(run.state, folder)
    print_improved_game(run)
    print(f"\ndigest      {run.digest}")
    print(f"checkpoint  {run.path}")
    print(f"metrics     {folder / METRICS}")
    if (folder / "adapters").is_dir():
        print(f"adapters    {folder / 'adapters'}")
    print(f"\nTo look closer: {command('nip-fn', 'show', folder)}")
    if number := failed_trainings(run.state):
        failures = "1 training" if number == 1 else f"{number} trainings"
        problem = f"the run is done, but went on without {failures} (column failed trainings)"
        die(Exit.SKIPPED, problem)
