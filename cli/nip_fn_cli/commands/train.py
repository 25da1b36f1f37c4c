"""`nip-fn train`: start a run, or resume one."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from nip_fn.config.codec import params_hash
from nip_fn.run.checkpoint import outline
from nip_fn.run.digest import digest
from nip_fn.run.events import Extended
from nip_fn.run.state import RunState
from nip_fn_adapters.costs.prices import Prices
from nip_fn_adapters.experiments.budgets import Money, check_budget, money_of_run
from nip_fn_adapters.experiments.datasets import describe
from nip_fn_adapters.experiments.own_server import served_here
from nip_fn_adapters.experiments.plans import (
    checked_name,
    free_name,
    plan,
    plan_fork,
    warn_of_unused,
)
from nip_fn_adapters.experiments.session import Session, run_session
from nip_fn_adapters.experiments.start import create, reopen
from nip_fn_adapters.experiments.wiring import check_apis
from nip_fn_adapters.recording.runs import known_runs
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_adapters.recording.tracker import METRICS
from nip_fn_adapters.recording.tracking import tracked, tracker_problem
from nip_fn_cli.config import Flags, overrides
from nip_fn_cli.shown.dryrun import dry_run
from nip_fn_cli.shown.exits import Exit, command, die, say
from nip_fn_cli.shown.improvements import print_improvements
from nip_fn_cli.shown.table import print_table, untrained
from nip_fn_cli.shown.watching import TERMINAL


def train_command(
    flags: Flags,
    *,
    runs: Path,
    name: str | None,
    resume: bool,
    more: int | None,
    money: Money,
    dry: float | None = None,
    serve: bool = False,
    trackers: tuple[str, ...] = (),
    source: str | None = None,
    iteration: int | None = None,
) -> None:
    """Run the command.

    Args:
        flags: The options that describe the run.
        runs: The folder of all runs.
        name: The run's name; None for one made from its parameters.
        resume: Resume the run of that name.
        more: The number of iterations to add to a run that is done.
        money: The prices and the budget.
        dry: Requests a second; only print what the run would ask for at that rate, and its price.
        serve: Start a language-model server for as long as the run lasts.
        trackers: The names of experiment trackers that the run is sent to.
        source: An earlier run, whose replies are used again.
        iteration: The iteration of that run; None for the last that it has sampled.
    """
    if (problem := tracker_problem(trackers)) is not None:
        die(Exit.USAGE, problem.at("--track"))
    given, name = overrides(flags), checked_name(name)
    if dry is not None and resume:
        die(Exit.USAGE, "--dry-run forecasts a whole run, from its beginning; leave out --resume")
    if dry is not None and source is not None:
        die(Exit.USAGE, "--dry-run forecasts a run that samples for itself; leave out --from")
    if iteration is not None and source is None:
        die(Exit.USAGE, "--iteration is one of another run's; add --from RUN")
    if more is not None and not resume:
        die(Exit.USAGE, "--more-iterations extends a run that is done; add --resume --run NAME")
    if resume:
        if name is None:
            die(Exit.USAGE, f"--resume needs --run NAME; {known_runs(runs)}")
        folder = runs / name
        begun = source is None or _has_begun(folder)
        unbegun = None if begun else plan_fork(str(source), iteration, given, flags.provider, runs)
        session = _extended(
            reopen(folder, given, flags.provider, new=unbegun, watch=TERMINAL), more
        )
        _check_origin(session.state, source, iteration)
        money = money_of_run(money, folder)
        check_budget(session.params, money)
    else:
        new = (
            plan(given, flags.provider, runs, TERMINAL)
            if source is None
            else plan_fork(source, iteration, given, flags.provider, runs)
        )
        warn_of_unused(given, flags.provider, [new], TERMINAL)
        if dry is not None:
            check_apis(new.params)
            dry_run(new, money, dry)
            return
        check_budget(new.params, money)  # before there is a folder: a refusal leaves nothing behind
        folder = runs / (name or free_name(runs, new.params))
        session = create(folder, new, watch=TERMINAL)
    say(describe(session.data, session.params))
    say(f"configuration {params_hash(session.params)}, run {folder}")
    own = ("--run", folder.name, "--runs", folder.parent, *_changes(session))
    again = command("nip-fn", "train", "--resume", *own)
    # The server is started last: a run that is refused should not have waited for vLLM.
    serving = served_here(session.params, folder, TERMINAL) if serve else nullcontext()
    with serving, tracked(trackers, folder, say):
        state = run_session(
            session, folder, f"{again}{' --serve' if serve else ''}", money, TERMINAL
        )
    _report(state, folder, money_of_run(money, folder).prices)


def _has_begun(folder: Path) -> bool:
    path = folder / CHECKPOINT
    return not path.exists() or bool(outline(path.read_bytes()))


def _check_origin(state: RunState, source: str | None, iteration: int | None) -> None:
    """End the command if the run that is resumed took its replies from elsewhere than is said."""
    if source is None:
        return
    named = Path(source)
    run = (named.parent if named.name == CHECKPOINT else named).resolve().name
    if state.origin is None or run != state.origin.run:
        die(Exit.USAGE, "--from differs from the run's: a resumed run keeps what it took over")
    if iteration not in (None, state.origin.iteration):
        die(Exit.USAGE, "--iteration differs from the run's: a resumed run keeps what it took over")


def _changes(session: Session) -> Iterator[str]:
    """The options by which a session differs from what is recorded of its run."""
    for address, value in session.changes:
        yield from ("--set", f"{address}={'none' if value is None else value}")


def _extended(session: Session, more: int | None) -> Session:
    """The session, with more iterations after those of a run that is done."""
    if more is None:
        return session
    if session.state.stage.name != "done":
        die(Exit.USAGE, "--more-iterations: the run is not done; resume it without, then with it")
    iterations = session.state.params.rl.num_iterations + more
    return session._replace(first=(Extended(iterations),))


def _report(state: RunState, folder: Path, prices: Prices) -> None:
    print_table(state, prices)
    print_improvements(state, folder)
    print(f"\ndigest      {digest(state)}")
    print(f"checkpoint  {folder / CHECKPOINT}")
    print(f"metrics     {folder / METRICS}")
    if (folder / "adapters").is_dir():
        print(f"adapters    {folder / 'adapters'}")
    print(f"\nTo look closer: {command('nip-fn', 'show', folder)}")
    if number := untrained(state):
        told = "1 training" if number == 1 else f"{number} trainings"
        die(Exit.SKIPPED, f"the run is done, but went on without {told} (column failed trainings)")
