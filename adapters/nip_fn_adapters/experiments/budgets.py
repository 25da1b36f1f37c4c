"""Prices, budgets and costs of experiments."""

import os
from math import inf
from pathlib import Path
from typing import NamedTuple

from nip_fn.errors import Problem
from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Event
from nip_fn.run.request import Request
from nip_fn.run.state import RunState
from nip_fn.training.tuning import Job
from nip_fn_adapters.costs.budget import Budget, training_within_budget
from nip_fn_adapters.costs.note import (
    UnrecordedNote,
    prices_of_run,
    read_prices,
    read_unrecorded,
)
from nip_fn_adapters.costs.prices import (
    Price,
    Prices,
    PriceTable,
    listed_prices,
    overlay,
    price_of,
    sum_known,
    unpriced,
)
from nip_fn_adapters.costs.spending import (
    dollars_of,
    expected_training,
    run_cost,
)
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.wiring import Models


class Money(NamedTuple):
    """The prices of tokens, and the budget."""

    prices: Prices
    budget: float | None = None  # dollars, for all sessions of a run together
    given: PriceTable = PriceTable()  # those of the prices that were given with the call

    def remaining(self, spent: float) -> "Money":
        """The same prices, and what is left of the budget after `spent` dollars."""
        return self if self.budget is None else self._replace(budget=self.budget - spent)


def read_money(budget: float | None = None, file: Path | None = None) -> Money:
    """The budget, and the prices: of `file`, then of the user's own file, then the listed ones."""
    usual = read_prices(_usual_file()).unwrap() if _usual_file().is_file() else PriceTable()
    file_prices = read_prices(file).unwrap() if file else PriceTable()
    return Money(Prices(overlay(usual, file_prices), listed_prices()), budget, file_prices)


def money_of_run(money: Money, run: Path) -> Money:
    """The budget, and the prices of a run: those given now, then those that it was given before."""
    user_prices = overlay(overlay(money.prices.own, prices_of_run(run).unwrap()), money.given)
    return money._replace(prices=money.prices._replace(own=user_prices))


def _usual_file() -> Path:
    """The user's own prices for all runs."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "nip-fn" / "prices.toml"


def check_budget(params: HyperParameters, money: Money) -> None:
    """Refuse to keep a budget if a price is unknown."""
    if money.budget is None:
        return
    unknown = unpriced(money.prices, params)
    if unknown:
        problem = Problem(
            f"no price is known for {unknown[0]}",
            address="`budget`",
            remedy=f"add it to {_usual_file()}, or to a file given as `prices`",
        )
        refuse(problem)


# --------------------------------------------------------------------------------- during a session


def open_budget(run: Path, limit: float | None, recorded: float | None) -> Budget:
    """The budget of a session; without a limit it only counts lost dollars.

    Args:
        run: the run's folder, where what may be lost is noted.
        limit: dollars, for all sessions together.
        recorded: the dollars that earlier ones have spent; None if that is unknown.
    """
    lost = read_unrecorded(run).unwrap()
    return Budget(inf if limit is None else limit, recorded or 0.0, lost, UnrecordedNote(run))


def spent_at_most(state: RunState, run: Path, money: Money) -> float:
    """The dollars that a run may have been billed so far, as far as prices are known."""
    return (run_cost(state, money.prices) or 0.0) + read_unrecorded(run).unwrap()


def with_budget(
    models: Models, params: HyperParameters, running_cost: "RunningCost", money: Money
) -> Models:
    """The adapters, kept within the budget of a session.

    Args:
        models: the adapters.
        params: the run's parameters.
        running_cost: follows the session, and has its budget.
        money: the prices.
    """
    budget = running_cost.budget
    agents = {agent.name: agent for agent in params.agents}
    leads = {agent_group(agent): agent for agent in params.agents}

    def of_request(request: Request) -> Price | None:
        tuned = request.adapter is not None
        return price_of(money.prices, agents[request.agent], tuned=tuned)

    def of_job(job: Job) -> Price | None:
        return price_of(money.prices, leads[job.group], tuned=True)

    def drain() -> None:
        budget.drain()
        models.drain()

    def tokens_of(job: Job) -> float:
        return expected_training(running_cost.state, job)

    if models.meter is not None:
        models.meter.open(budget, of_request)
    tuner = training_within_budget(models.tuner, budget, of_job, tokens_of)
    return models._replace(tuner=tuner, drain=drain)


class RunningCost:
    """The cost of a run so far, as an observer of its events, and its budget."""

    def __init__(self, state: RunState, run: Path, money: Money) -> None:
        """Start with the cost of `state`, in which the run's folder was left."""
        self.state = state
        self.dollars = run_cost(state, money.prices)
        self.budget = open_budget(run, money.budget, self.dollars)
        self._prices = money.prices

    def __call__(self, state: RunState, event: Event) -> None:
        """Add the cost of an event; `state` is the one after it."""
        # Event by event: to price the whole state each time would be quadratic in the length of a
        # run.
        self.state, added = state, dollars_of(state, event, self._prices)
        self.dollars = sum_known((self.dollars, added))
        self.budget.record(added or 0.0)

    def __str__(self) -> str:
        """The cost, for people; "" if nothing has been paid."""
        return "" if self.dollars == 0 else f"{in_dollars(self.dollars)} spent"


# ---------------------------------------------------------------------------------------- in words

CENT_OF_A_CENT = 1e-4  # dollars; less is not shown


def in_dollars(amount: float | None) -> str:
    """Dollars for people."""
    if amount is None:
        return "unknown"
    return f"${amount:,.2f}" if amount >= 100 else f"${amount:.4f}"


def lost_line(amount: float) -> str:
    """The line about answers that were lost, for people; "" if there were none."""
    if amount < CENT_OF_A_CENT:
        return ""
    return (
        f"at most {in_dollars(amount)} more may have been billed, for answers that were lost: of "
        "requests that broke off, or at which a gateway failed after as long as an answer takes"
    )


def model_of(agent: AgentParameters, tuned: bool) -> str:
    """A model for people."""
    return f"{agent.model_name}, fine-tuned" if tuned else agent.model_name
