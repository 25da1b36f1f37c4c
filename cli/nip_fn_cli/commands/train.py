"""`nip-fn train`: start a run, or resume one."""

from pathlib import Path
from typing import Any

from nip_fn_adapters.experiments.budgets import money_of_run
from nip_fn_adapters.experiments.forecasting import forecast
from nip_fn_adapters.experiments.plans import checked_name
from nip_fn_adapters.experiments.training import resume, train
from nip_fn_adapters.recording.runs import Run, known_runs
from nip_fn_adapters.recording.tracker import METRICS
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.money import money_or_die
from nip_fn_cli.shown.dryrun import print_forecast
from nip_fn_cli.shown.exits import Exit, command, die, or_exit
from nip_fn_cli.shown.improvements import print_improvements
from nip_fn_cli.shown.table import print_table, untrained
from nip_fn_cli.shown.watching import TERMINAL


def train_command(
    flags: Flags,
    *,
    runs: Path,
    name: str | None,
    resumed: bool,
    more: int | None,
    budget: float | None,
    prices: Path | None,
    dry: float | None = None,
    serve: bool = False,
    trackers: tuple[str, ...] = (),
    forest: str | None = None,
    iteration: int | None = None,
) -> None:
    """Run the command.

    Args:
        flags: The options that describe the run.
        runs: The folder of all runs.
        name: The run's name; None for one made from its parameters.
        resumed: Resume the run of that name.
        more: The number of iterations to add to a run that is done.
        budget: Dollars.
        prices: A file of prices.
        dry: Requests a second; only print what the run would ask for at that rate, and its price.
        serve: Start a language-model server for as long as the run lasts.
        trackers: The names of experiment trackers that the run is sent to.
        forest: An earlier run, whose replies are used again.
        iteration: The iteration of that run; None for the last that it has sampled.
    """
    table, name = overrides(flags), checked_name(name)
    if dry is not None and resumed:
        die(Exit.USAGE, "--dry-run forecasts a whole run, from its beginning; leave out --resume")
    if dry is not None and (forest, iteration) != (None, None):
        die(Exit.USAGE, "--dry-run forecasts a run that samples for itself; leave out --from")
    if more is not None and not resumed:
        die(Exit.USAGE, "--more-iterations extends a run that is done; add --resume --run NAME")
    if resumed and name is None:
        die(Exit.USAGE, f"--resume needs --run NAME; {known_runs(runs)}")
    if dry is not None:
        planned = forecast(table, provider=flags.provider, runs=runs, prices=prices, watch=TERMINAL)
        print_forecast(or_exit(planned), budget, dry)
        return
    session: dict[str, Any] = {
        "provider": flags.provider,
        "runs": runs,
        "forest": forest,
        "iteration": iteration,
        "budget": budget,
        "prices": prices,
        "trackers": trackers,
        "serve": serve,
        "watch": TERMINAL,
    }
    run = or_exit(
        resume(str(name), table, more_iterations=more, **session)
        if resumed
        else train(table, name=name, **session)
    )
    _report(run, prices)


def _report(run: Run, prices: Path | None) -> None:
    folder = run.path.parent
    print_table(run.state, money_of_run(money_or_die(None, prices), folder).prices)
    print_improvements(run)
    print(f"\ndigest      {run.digest}")
    print(f"checkpoint  {run.path}")
    print(f"metrics     {folder / METRICS}")
    if (folder / "adapters").is_dir():
        print(f"adapters    {folder / 'adapters'}")
    print(f"\nTo look closer: {command('nip-fn', 'show', folder)}")
    if number := untrained(run.state):
        failures = "1 training" if number == 1 else f"{number} trainings"
        problem = f"the run is done, but went on without {failures} (column failed trainings)"
        die(Exit.SKIPPED, problem)
