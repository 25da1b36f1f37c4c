"""Training from Python: a new run, or one that is resumed."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from shlex import join

from nip_fn.config.codec import params_hash
from nip_fn.errors import Problem
from nip_fn.params.names import is_plain_name
from nip_fn.run.checkpoint import outline
from nip_fn.run.events import Extended
from nip_fn.run.state import RunState
from nip_fn_adapters.experiments.budgets import Money, check_budget, money_of_run, read_money
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.datasets import describe
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.own_server import served_here
from nip_fn_adapters.experiments.plans import (
    checked_name,
    free_name,
    plan,
    plan_fork,
    warn_of_unused,
)
from nip_fn_adapters.experiments.session import Session, run_session
from nip_fn_adapters.experiments.settings import Settings, as_written
from nip_fn_adapters.experiments.start import create, reopen
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording.runs import Run, load_run
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_adapters.recording.tracking import tracked, tracker_problem


@outcome
def train(
    settings: Settings | None = None,
    *,
    provider: str | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    forest: Path | str | None = None,
    iteration: int | None = None,
    budget: float | None = None,
    prices: Path | None = None,
    trackers: Sequence[str] = (),
    serve: bool = False,
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> Run:
    """Train agents, and record everything: `nip-fn train`.

    Args:
        settings: A table as in a TOML file, `HyperParameters`, or the path of a file; what a table
            or file leaves out is as in the embedded settings.
        provider: The provider of all agents, whatever the settings say of them.
        name: The run's name; None for one made from its parameters.
        runs: The folder of all runs.
        forest: An earlier run, whose replies are used again; `settings` then are changes to it.
        iteration: The iteration of that run; None for the last that it has sampled.
        budget: Dollars; the run stops before it would cost more.
        prices: A file of prices, which go before those that are known.
        trackers: The names of experiment trackers that the run is sent to.
        serve: Start a language-model server for as long as the run lasts.
        tell: Takes lines for people, in the thread of the run; None: nothing is printed.
        watch: A display and a way to stop the run as well; see `Watch`.

    Returns:
        The run that is done, as `load_run` gives it.  A failure says why there is none; of kind
        "interrupted", "budget" or "adapter" it leaves a run that `resume` continues.
    """
    watch, folder_of_runs = watch.telling(tell), Path(runs)
    _check_trackers(trackers)
    _check_forest(forest, iteration)
    table, name = as_written(settings, watch), checked_name(name)
    money = read_money(budget, prices)
    new = (
        plan(table, provider, folder_of_runs, watch)
        if forest is None
        else plan_fork(str(forest), iteration, table, provider, folder_of_runs)
    )
    warn_of_unused(table, provider, [new], watch)
    check_budget(new.params, money)  # before there is a folder: a refusal leaves nothing behind
    folder = folder_of_runs / (name or free_name(folder_of_runs, new.params))
    session = create(folder, new, watch=watch)
    return _run(session, folder, money, trackers, serve, watch)


@outcome
def resume(
    run: Run | Path | str,
    settings: Settings | None = None,
    *,
    provider: str | None = None,
    runs: Path | str = "runs",
    more_iterations: int | None = None,
    forest: Path | str | None = None,
    iteration: int | None = None,
    budget: float | None = None,
    prices: Path | None = None,
    trackers: Sequence[str] = (),
    serve: bool = False,
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> Run:
    """Continue a run where it was stopped, or extend one that is done: `nip-fn train --resume`.

    Args:
        run: The run: its name in `runs`, its folder, or itself.
        settings: As for `train`.  They may repeat the run's parameters, and change its servers,
            keys, limits, and what it does about failures.
        provider: The provider of all agents, likewise.
        runs: The folder of all runs.
        more_iterations: Iterations to add to a run that is done.
        forest: The earlier run whose replies it uses again, in case it died before it began.
        iteration: The iteration of that run.
        budget: Dollars, for all sessions of the run together.
        prices: A file of prices, which go before those that are known.
        trackers: The names of experiment trackers that the run is sent to.
        serve: Start a language-model server for as long as the session lasts.
        tell: Takes lines for people, in the thread of the run; None: nothing is printed.
        watch: A display and a way to stop the run as well; see `Watch`.

    Returns:
        The run that is done; failures are as those of `train`.
    """
    watch, folder = watch.telling(tell), _folder_of(run, Path(runs))
    _check_trackers(trackers)
    _check_forest(forest, iteration)
    table = as_written(settings, watch)
    money = read_money(budget, prices)
    begun = forest is None or _has_begun(folder)
    new = None if begun else plan_fork(str(forest), iteration, table, provider, folder.parent)
    session = reopen(folder, table, provider, new=new, watch=watch)
    try:
        session = _extended(session, more_iterations)
        _check_origin(session.state, forest, iteration)
        money = money_of_run(money, folder)
        check_budget(session.params, money)
    except Exception:
        session.store.close()
        raise
    return _run(session, folder, money, trackers, serve, watch)


train_async = asynchronous(train)
resume_async = asynchronous(resume)


def _run(
    session: Session,
    folder: Path,
    money: Money,
    trackers: Sequence[str],
    serve: bool,
    watch: Watch,
) -> Run:
    """The session's run, once it is done."""
    watch.tell(describe(session.data, session.params))
    watch.tell(f"configuration {params_hash(session.params)}, run {folder}")
    options = ("--run", folder.name, "--runs", str(folder.parent), *_changes(session))
    again = join(("nip-fn", "train", "--resume", *options, *(["--serve"] if serve else [])))
    # The server is started last: a run that is refused should not have waited for vLLM.
    serving = served_here(session.params, folder, watch) if serve else nullcontext()
    with serving, tracked(trackers, folder, watch.tell):
        run_session(session, folder, again, money, watch)
    return load_run(folder).unwrap()


def _changes(session: Session) -> Iterator[str]:
    """The options in which a session differs from the recording of its run."""
    for address, value in session.changes:
        yield from ("--set", f"{address}={'none' if value is None else value}")


def _check_trackers(trackers: Sequence[str]) -> None:
    if (problem := tracker_problem(trackers)) is not None:
        refuse(problem.at("`trackers`"))


def _check_forest(forest: Path | str | None, iteration: int | None) -> None:
    if iteration is not None and forest is None:
        refuse(Problem("`iteration` is one of another run's", remedy="name that run as `forest`"))


def _folder_of(run: Run | Path | str, runs: Path) -> Path:
    if isinstance(run, Run):
        return run.path.parent
    return runs / run if is_plain_name(str(run)) else Path(run)


def _has_begun(folder: Path) -> bool:
    path = folder / CHECKPOINT
    return not path.exists() or bool(outline(path.read_bytes()))


def _check_origin(state: RunState, forest: Path | str | None, iteration: int | None) -> None:
    """Refuse a run whose replies come from a run other than the given one."""
    if forest is None:
        return
    path = Path(forest)
    run = (path.parent if path.name == CHECKPOINT else path).resolve().name
    remedy = "a resumed run keeps what it took over"
    if state.origin is None or run != state.origin.run:
        refuse(Problem("`forest` differs from the run's", remedy=remedy))
    if iteration not in (None, state.origin.iteration):
        refuse(Problem("`iteration` differs from the run's", remedy=remedy))


def _extended(session: Session, more: int | None) -> Session:
    """The session, with more iterations after those of a run that is done."""
    if more is None:
        return session
    if session.state.stage.name != "done":
        problem = "`more_iterations`: the run is not done"
        refuse(Problem(problem, remedy="resume it without, then with it"))
    iterations = session.state.params.rl.num_iterations + more
    return session._replace(first=(Extended(iterations),))
