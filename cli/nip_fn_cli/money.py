"""Prices, budgets and what was spent, for the commands that may cost something."""

import os
from pathlib import Path
from typing import NamedTuple

from returns.result import Failure
from rich.table import Table

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
    Usage,
    listed_prices,
    overlay,
    parse_prices,
    price_of,
    sum_known,
    total,
    unpriced,
)
from nip_fn_adapters.costs.spending import Spent, dollars, dollars_of, spent_of
from nip_fn_cli.exits import Exit, die
from nip_fn_cli.wiring import Models


class Money(NamedTuple):
    """What tokens cost, and how much may be spent."""

    prices: Prices
    budget: float | None = None  # dollars, of all sittings of a run together


def money_or_die(budget: float | None = None, file: Path | None = None) -> Money:
    """With the prices of the user's own file, and of the file given now, before the listed ones."""
    own = PriceTable()
    usual = _usual_file()
    for path in ([usual] if usual.is_file() else []) + ([file] if file else []):
        own = overlay(own, _read(path))
    return Money(Prices(own, listed_prices()), budget)


def _usual_file() -> Path:
    """Where prices for all runs are looked for."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "nip-fn" / "prices.toml"


def _read(path: Path) -> PriceTable:
    try:
        parsed = parse_prices(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        die(Exit.USAGE, f"{path}: not UTF-8 text: {error}")
    except OSError as error:
        die(Exit.USAGE, f"{path}: {error.strerror}")
    if isinstance(parsed, Failure):
        die(Exit.USAGE, f"{path}: {parsed.failure()}")
    table: PriceTable = parsed.unwrap()
    return table


def check_budget(params: HyperParameters, money: Money) -> None:
    """End the command where a budget is to be kept, but a price is not known."""
    if money.budget is None:
        return
    unknown = unpriced(money.prices, params)
    if unknown:
        die(
            Exit.USAGE,
            f"--budget: no price is known for {unknown[0]}; add it to {_usual_file()}, or to a "
            "file given as --prices",
        )


# ------------------------------------------------------------------------------------ in a sitting


def with_purse(
    models: Models, params: HyperParameters, state: RunState, money: Money
) -> tuple[Models, Budget | None]:
    """The adapters kept within the budget, and what keeps them; `state` is where they begin."""
    if money.budget is None:
        return models, None
    purse = Budget(money.budget, dollars(state, money.prices) or 0.0)
    agents = {agent.name: agent for agent in params.agents}
    leads = {agent_group(agent): agent for agent in params.agents}

    def of_request(request: Request) -> Price | None:
        tuned = request.adapter is not None
        return price_of(money.prices, agents[request.agent], tuned=tuned)

    def of_job(job: Job) -> Price | None:
        return price_of(money.prices, leads[job.group], tuned=True)

    def drain() -> None:
        purse.drain()
        models.drain()

    limited = models._replace(
        sampler=within_budget(models.sampler, purse, of_request),
        tuner=training_within_budget(models.tuner, purse, of_job),
        drain=drain,
    )
    return limited, purse


class Tally:
    """The running total of a run; feed it each event and the state after it."""

    def __init__(self, state: RunState, prices: Prices) -> None:
        """Start with what `state` has cost already."""
        self.dollars = dollars(state, prices)
        self._prices = prices

    def __call__(self, state: RunState, event: Event) -> None:
        """Take note of one event."""
        self.dollars = sum_known((self.dollars, dollars_of(state, event, self._prices)))

    def __str__(self) -> str:
        """The total, for people; nothing where nothing has been paid."""
        return "" if self.dollars == 0 else f"{shown(self.dollars)} spent"


# ------------------------------------------------------------------------------------------- shown


def shown(amount: float | None) -> str:
    """Dollars for people."""
    if amount is None:
        return "unknown"
    return f"${amount:,.2f}" if amount >= 100 else f"${amount:.4f}"


def spending_table(state: RunState, prices: Prices) -> Table:
    """What each agent's replies and each group's trainings took, in all."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ("prompt tokens", "cached", "completion tokens", "trained tokens", "dollars")
    for title in ("", "model", *titles):
        table.add_column(title, justify="right" if title in titles else "left", no_wrap=True)
    rows = spent_of(state, prices)
    played = {spent.name: spent for spent in rows if not spent.usage.trained}
    trained = {spent.name: spent for spent in rows if spent.usage.trained}
    for kind, prefix in ((played, ""), (trained, "training ")):
        for name in kind:
            own = [
                one for one in rows if one.name == name and (one.usage.trained > 0) == bool(prefix)
            ]
            table.add_row(f"{prefix}{name}", own[0].model, *_cells(own))
    table.add_row("in all", "", *_cells(rows))
    return table


def _cells(rows: "list[Spent] | tuple[Spent, ...]") -> tuple[str, ...]:
    usage: Usage = total([Usage(), *(spent.usage for spent in rows)])
    cost = sum_known(spent.dollars for spent in rows)
    counts = (usage.prompt, usage.cached, usage.completion, usage.trained)
    return (*(f"{count:,.0f}" for count in counts), shown(cost))


def model_of(agent: AgentParameters, tuned: bool) -> str:
    """A model for people."""
    return f"{agent.model_name}, fine-tuned" if tuned else agent.model_name
