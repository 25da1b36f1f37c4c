"""`nip-fn train --dry-run`: what a run would ask for, and cost."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

from rich.table import Table

from nip_fn.params.run import HyperParameters
from nip_fn.run.events import RunStarted
from nip_fn.run.step import data_problem
from nip_fn_adapters.costs.forecast import SELECTED_SHARE, Amount, Line, forecast
from nip_fn_adapters.costs.prices import Prices, cost, price_of, sum_known
from nip_fn_cli.datasets import open_or_die, told
from nip_fn_cli.exits import Exit, die, say
from nip_fn_cli.money import Money, model_of, shown
from nip_fn_cli.session import New
from nip_fn_cli.table import console

WIDE = 400

Of = Callable[[Line], Amount]

COLUMNS: dict[str, Callable[[Amount], float]] = {
    "requests": lambda amount: amount.requests,
    "replies": lambda amount: amount.replies,
    "prompt tokens": lambda amount: amount.usage.prompt,
    "completion tokens": lambda amount: amount.usage.completion,
    "trained tokens": lambda amount: amount.usage.trained,
}


def dry_run(new: New, money: Money, rate: float) -> None:
    """Print what the run would ask for at so many requests a second; ask for nothing."""
    data = open_or_die(new.params)
    problem = data_problem(new.params, data.info)
    if problem:
        die(Exit.USAGE, problem)
    say(told(data))
    start = RunStarted(new.params, data.info, version("nip-fn"), new.lineages)
    lines = forecast(start, data.source)
    _print(lines, new.params, money.prices, rate)
    _say_what_is_assumed(new.params, rate)
    if money.budget is not None:
        _judge(lines, new.params, money)


def _print(lines: Sequence[Line], params: HyperParameters, prices: Prices, rate: float) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("iteration", "stage", "", "model", *COLUMNS, "dollars", "time"):
        table.add_column(
            title, justify="left" if title in ("stage", "", "model") else "right", no_wrap=True
        )
    for line in lines:
        model = model_of(params.agents[line.agent], line.tuned)
        name = (str(line.iteration), line.stage, line.name, model)
        table.add_row(*name, *_cells([line], params, prices, rate))
    table.add_row("in all", "", "", "", *_cells(lines, params, prices, rate))
    print("expected / at most, where they differ\n")
    console(WIDE).print(table)  # a line that is cut would be of no use


def _cells(
    lines: Sequence[Line], params: HyperParameters, prices: Prices, rate: float
) -> list[str]:
    counts = [
        _both(*(f"{sum(get(of(line)) for line in lines):,.0f}" for of in (_expected, _most)))
        for get in COLUMNS.values()
    ]
    dollars = _both(*(shown(price_in_all(lines, of, params, prices)) for of in (_expected, _most)))
    time = _both(
        *(duration(sum(of(line).requests for line in lines) / rate) for of in (_expected, _most))
    )
    return [*counts, dollars, time]


def _expected(line: Line) -> Amount:
    return line.expected


def _most(line: Line) -> Amount:
    return line.most


def _both(expected: str, most: str) -> str:
    return most if expected == most else f"{expected} / {most}"


def price_in_all(
    lines: Sequence[Line], of: Of, params: HyperParameters, prices: Prices
) -> float | None:
    """Dollars; None where one of the prices is unknown."""
    return sum_known(
        cost(of(line).usage, price_of(prices, params.agents[line.agent], tuned=line.tuned))
        for line in lines
    )


def duration(seconds: float) -> str:
    """A time for people."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _say_what_is_assumed(params: HyperParameters, rate: float) -> None:
    say(
        "at most: no verifier decides before its last turn, every reply is as long as it may be, "
        "and all that can be learnt from is"
    )
    say(
        f"expected: verifiers decide at {params.dummy.decision_rate:.0%} of their turns "
        "(dummy.decision_rate), replies are as long as prompts ask for, "
        f"{SELECTED_SHARE:.0%} of what can be learnt from is"
    )
    say(
        "not counted: replies asked for again because they could not be used; prompts that are "
        "cached; the time of trainings. A token is taken for four characters"
    )
    say(f"time: at {rate:g} requests a second (--rate): those in flight over their latency")


def _judge(lines: Sequence[Line], params: HyperParameters, money: Money) -> None:
    costs = [price_in_all(lines, of, params, money.prices) for of in (_expected, _most)]
    budget = money.budget or 0.0
    words = [
        "unknown" if value is None else "within it" if value <= budget else "over it"
        for value in costs
    ]
    say(f"budget {shown(budget)}: what is expected is {words[0]}, the most {words[1]}")
