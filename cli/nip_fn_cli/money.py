"""Prices, budgets and costs, for the commands that may cost something."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from returns.result import Failure, Result

from nip_fn.errors import Problem
from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Event
from nip_fn.run.request import Request
from nip_fn.run.state import RunState
from nip_fn.training.jobs import Job
from nip_fn_adapters.costs.budget import Budget, training_within_budget, within_budget
from nip_fn_adapters.costs.prices import (
    Price,
    Prices,
    PriceTable,
    listed_prices,
    overlay,
    parse_prices,
    price_of,
    sum_known,
    total,
    unpriced,
)
from nip_fn_adapters.costs.spending import Expense, dollars, dollars_of, run_expenses
from nip_fn_cli.exits import Exit, die, or_exit
from nip_fn_cli.printing import print_rows
from nip_fn_cli.wiring import Models


class Money(NamedTuple):
    """The prices of tokens, and the budget."""

    prices: Prices
    budget: float | None = None  # dollars, for all sessions of a run together


def money_or_die(budget: float | None = None, file: Path | None = None) -> Money:
    """The budget, and the prices: of `file`, then of the user's own file, then the listed ones."""
    own = PriceTable()
    usual = _usual_file()
    for path in ([usual] if usual.is_file() else []) + ([file] if file else []):
        own = overlay(own, or_exit(_read(path)))
    return Money(Prices(own, listed_prices()), budget)


def _usual_file() -> Path:
    """The user's own prices for all runs."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "nip-fn" / "prices.toml"


def _read(path: Path) -> Result[PriceTable, Problem]:
    try:
        return parse_prices(path.read_text("utf-8")).alt(lambda problem: problem.at(str(path)))
    except UnicodeDecodeError as error:
        return Failure(Problem(f"it is not UTF-8 text: {error}", address=str(path)))
    except OSError as error:
        return Failure(Problem(f"it cannot be read: {error.strerror}", address=str(path)))


def check_budget(params: HyperParameters, money: Money) -> None:
    """End the command if a budget is to be kept, but a price is unknown."""
    if money.budget is None:
        return
    unknown = unpriced(money.prices, params)
    if unknown:
        problem = Problem(
            f"no price is known for {unknown[0]}",
            address="--budget",
            remedy=f"add it to {_usual_file()}, or to a file given as --prices",
        )
        die(Exit.USAGE, problem)


# --------------------------------------------------------------------------------- during a session


def with_budget(
    models: Models, params: HyperParameters, state: RunState, money: Money
) -> tuple[Models, Budget | None]:
    """The adapters, kept within the budget, and the budget; None if there is none.

    Args:
        models: the adapters.
        params: the run's parameters.
        state: the state in which the session begins; its cost counts.
        money: the prices and the limit.
    """
    if money.budget is None:
        return models, None
    # The budget is that of all sessions, so what earlier ones have spent counts.
    budget = Budget(money.budget, dollars(state, money.prices) or 0.0)
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

    limited = models._replace(
        sampler=within_budget(models.sampler, budget, of_request),
        tuner=training_within_budget(models.tuner, budget, of_job),
        drain=drain,
    )
    return limited, budget


class RunningCost:
    """The cost of a run so far, as an observer of its events."""

    def __init__(self, state: RunState, prices: Prices) -> None:
        """Start with the cost of `state`."""
        self.dollars = dollars(state, prices)
        self._prices = prices

    def __call__(self, state: RunState, event: Event) -> None:
        """Add the cost of an event; `state` is the one after it."""
        # Event by event: to price the whole state each time would be quadratic in the length of a
        # run.
        self.dollars = sum_known((self.dollars, dollars_of(state, event, self._prices)))

    def __str__(self) -> str:
        """The cost, for people; "" if nothing has been paid."""
        return "" if self.dollars == 0 else f"{in_dollars(self.dollars)} spent"


# ------------------------------------------------------------------------------------------- shown


def in_dollars(amount: float | None) -> str:
    """Dollars for people."""
    if amount is None:
        return "unknown"
    return f"${amount:,.2f}" if amount >= 100 else f"${amount:.4f}"


def print_spending(state: RunState, prices: Prices) -> None:
    """Print the tokens and the cost of each agent's replies and of each group's trainings."""
    titles = ("prompt tokens", "cached", "completion tokens", "trained tokens", "dollars")
    expenses = run_expenses(state, prices)
    by_row: dict[tuple[bool, str], list[Expense]] = {}
    for one in expenses:
        by_row.setdefault((one.tokens.trained > 0, one.name), []).append(one)
    rows = [
        (f"{'training ' * is_training}{name}", own[0].model, *_cells(own))
        for (is_training, name), own in sorted(by_row.items(), key=lambda item: item[0][0])
    ]
    print_rows(("", "model", *titles), [*rows, ("total", "", *_cells(expenses))], keys=2)


def _cells(expenses: Iterable[Expense]) -> tuple[str, ...]:
    expenses = tuple(expenses)
    cost = sum_known(expense.dollars for expense in expenses)
    tokens = total(expense.tokens for expense in expenses)
    return (*(f"{count:,.0f}" for count in tokens), in_dollars(cost))


def model_of(agent: AgentParameters, tuned: bool) -> str:
    """A model for people."""
    return f"{agent.model_name}, fine-tuned" if tuned else agent.model_name
