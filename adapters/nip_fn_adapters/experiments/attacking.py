"""Attacks from Python: the provers that mislead the frozen verifier of a run the most."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from nip_fn.config.codec import to_dict
from nip_fn.config.hosting import provider_kind
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
from nip_fn_adapters.costs.spending import run_cost
from nip_fn_adapters.experiments.attack_cases import (
    USUAL,
    AttackOptions,
    Case,
    cases_of,
    resolved,
)
from nip_fn_adapters.experiments.attack_results import (
    RIGHT,
    WRONG,
    Attack,
    ProverRow,
    bound,
    over_seeds,
    rows_of,
    success_of,
    worst_case,
)
from nip_fn_adapters.experiments.budgets import (
    Money,
    check_budget,
    money_of_run,
    read_money,
    spent_at_most,
)
from nip_fn_adapters.experiments.cells import played
from nip_fn_adapters.experiments.concurrency import asynchronous
from nip_fn_adapters.experiments.forecasting import RunForecast, forecast_plan
from nip_fn_adapters.experiments.loading import first_adapters
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.plans import New, checked_name
from nip_fn_adapters.experiments.start import create, reopen
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.exact_attacks import ATTACKS
from nip_fn_adapters.recording.runs import Run, load_run, start_of
from nip_fn_adapters.recording.store import CHECKPOINT

APART = 10_000  # the seeds of the trainings of one seed, so that none is that of another

Seeds = int | Sequence[int]


class Planned(NamedTuple):
    """A run of an attack, and its plan."""

    case: Case
    new: New


@outcome
def attack(
    run: Run | Path | str,
    options: AttackOptions = USUAL,
    *,
    seeds: Seeds | None = None,
    budget: float | None = None,
    prices: Path | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> Attack:
    """Attack the verifier of a run: `nip-fn attack`.

    The verifier stays as it is.  Against it play scripted provers, the best of several replies of
    its own prover, and provers that are trained to mislead it.  Each is recorded as a run in
    `RUN/attacks/NAME`; called again, an attack that was stopped goes on.

    Args:
        run: The run: its name in `runs`, its folder, or itself.
        options: The provers, and the games that they play.
        seeds: As many attacks (3 for seeds 1, 2 and 3) or one for each of these; None for one.
        budget: Dollars, for all runs of the attack together.
        prices: A file of prices, which go before those that are known.
        name: The attack's name; None for one made from its options.
        runs: The folder of all runs.
        tell: Takes lines for people; None: nothing is printed.
        watch: A display and a way to stop the attack as well; see `Watch`.

    Returns:
        How often each prover misleads the verifier.
    """
    watch = watch.telling(tell)
    attacked, money = _attacked(run, runs), read_money(budget, prices)
    attacks = _plans(attacked, options, seeds, watch)
    name = checked_name(name) or _name(options, attacks[0], seeds)
    folder = attacked.path.parent / ATTACKS / name
    for planned in chain.from_iterable(attacks):
        check_budget(planned.new.params, money)
    rows_S, dollars = _play_all(attacks, folder, money, attacked.params, watch)
    rows = over_seeds(rows_S)
    return Attack(
        run=attacked.path.parent,
        iteration=attacked.state.iteration if options.iteration is None else options.iteration,
        folder=folder,
        completeness=rows[0].share(RIGHT),
        soundness_error=bound(rows, WRONG),
        completeness_under_attack=bound(rows, RIGHT),
        provers=tuple(success_of(row, attacked.params) for row in rows),
        worst_case=worst_case(rows, attacked.params, watch),
        dollars=dollars,
    )


@outcome
def forecast_attack(
    run: Run | Path | str,
    options: AttackOptions = USUAL,
    *,
    seeds: Seeds | None = None,
    prices: Path | None = None,
    runs: Path | str = "runs",
    tell: Tell | None = None,
    watch: Watch = NOBODY,
) -> dict[str, RunForecast]:
    """Forecast the runs of an attack, by their names; play nothing: `nip-fn attack --dry-run`.

    Args:
        run: As for `attack`, like all others.
        options: The provers, and the games that they play.
        seeds: The number of attacks, or their seeds.
        prices: A file of prices, which go before those that are known.
        runs: The folder of all runs.
        tell: Takes lines for people; None: nothing is printed.
        watch: See `Watch`.
    """
    watch = watch.telling(tell)
    attacks = _plans(_attacked(run, runs), options, seeds, watch)
    known = read_money(file=prices).prices
    return {
        planned.case.folder: forecast_plan(planned.new, known, watch)
        for planned in chain.from_iterable(attacks)
    }


attack_async = asynchronous(attack)
forecast_attack_async = asynchronous(forecast_attack)


def _attacked(run: Run | Path | str, runs: Path | str) -> Run:
    return run if isinstance(run, Run) else load_run(run, runs).unwrap()


def _plans(
    attacked: Run, options: AttackOptions, seeds: Seeds | None, watch: Watch
) -> list[list[Planned]]:
    """The runs of each attack; refuses what cannot be done."""
    if seeds is not None and options.seed is not None:
        refuse(Problem("`seed` is that of a single attack; leave out `seeds`"))
    _check(attacked.params, options)
    return [
        [Planned(case, _plan(case)) for case in cases]
        for cases in _cases(attacked, options, seeds, watch.once())
    ]


def _cases(
    attacked: Run, options: AttackOptions, seeds: Seeds | None, watch: Watch
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
    """Refuse if there is nothing to attack, or no such strategy."""
    protocol = protocol_of(params)
    if not sides(protocol):
        problem = f"nobody but the verifier speaks in {params.interaction_protocol}"
        refuse(Problem(problem, remedy="attack a run of a game with a prover"))
    if options.trainer not in ("malt", "ei"):
        refuse(Problem(f"{options.trainer!r} is not a trainer", "`trainer`", "malt or ei"))
    strategies = strategies_for(params.dataset, "prover")
    for name in options.strategies or ():
        if name not in strategies and not is_reference(name):
            refuse(unknown_name("`strategies`", name, "strategy", tuple(strategies)))
    # Now, and not when the turn of the trainings has come.
    for agent, spec in zip(params.agents, protocol.agents, strict=True):
        at_api = provider_kind(agent) == "api" and agent.model_provider != "OpenAI"
        if options.starts and spec.role == "prover" and at_api:
            problem = f"{agent.model_provider} trains no models"
            refuse(Problem(problem, "`starts`", "ask for 0 trainings"))


def _plan(case: Case) -> New:
    params = resolved(case.table)
    groups = first_adapters(case.loaded, params).unwrap()
    return New(params, case.loaded, groups, extensions.sources(to_dict(params)).unwrap())


def _name(options: AttackOptions, attack: Sequence[Planned], seeds: Seeds | None) -> str:
    """A name that no other options have, and none with other models.

    The number of seeds does not matter, so that others can be added.
    """
    models = [planned.new.lineages for planned in attack]
    written = options._replace(changes=dict(options.changes))
    hashed = blake2b(msgspec.json.encode((written, models)), digest_size=4).hexdigest()
    return f"attack-{hashed}" if seeds is None else f"attack-{hashed}-seeds"


# ----------------------------------------------------------------------------------------- playing


def _play_all(
    attacks: Sequence[Sequence[Planned]],
    folder: Path,
    money: Money,
    params: HyperParameters,
    watch: Watch,
) -> tuple[list[list[ProverRow]], float | None]:
    """(the rows of each attack, dollars for all of them), within one budget.

    The dollars are None if they are unknown.
    """
    rows_S: list[list[ProverRow]] = []
    dollars: list[float | None] = []
    spent = 0.0
    for attack in attacks:
        rows_S.append([])
        for planned in attack:
            case_folder = folder / planned.case.folder
            # What a run leaves of the budget is for those behind it.
            replayed = _play(planned, case_folder, money.remaining(spent), watch)
            rows_S[-1] += rows_of(planned.case, case_folder, replayed.stages[-1], params)
            case_money = money_of_run(money, case_folder)
            dollars.append(run_cost(replayed.state, case_money.prices))
            spent += spent_at_most(replayed.state, case_folder, case_money)
    return rows_S, sum_known(dollars)


def _play(planned: Planned, folder: Path, money: Money, watch: Watch) -> Replayed:
    """The case's run, which is played as far as it has not been."""
    case, new = planned
    path = folder / CHECKPOINT
    if path.exists():
        start = start_of(store.read_recording(path).unwrap())  # empty if it died at once
        if start and start.loaded != new.lineages:
            problem = "this attack was begun on other models"
            refuse(Problem(problem, str(folder), "give it another name (`name`)"))
        session = reopen(folder, to_dict(new.params), None, new=new, watch=watch)
    else:
        session = create(folder, new, watch=watch)
    return played(session, folder, f"{case.prover} ({case.folder}):", money, watch).replayed
