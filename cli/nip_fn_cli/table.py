"""The table of a run: a row for each iteration."""

from collections.abc import Callable
from typing import Any

from rich.table import Table

from nip_fn.run.replay import summary
from nip_fn.run.state import RunState
from nip_fn_adapters.costs.prices import Prices
from nip_fn_cli.consoles import Console
from nip_fn_cli.money import spending_table

WIDTH = 180  # of output that does not go to a terminal

Cell = Callable[[dict[str, Any]], str]


def console(width: int | None = None) -> Console:
    """A console for standard output that prints texts as they are, without markup.

    Unless a width is given, it is that of the terminal, or `WIDTH` if there is none.
    """
    # rich takes a pipe for a terminal of 80 columns, in which the table would be cut.
    out = Console(width=width)
    if width is not None:
        return out
    return out if out.is_terminal else Console(width=WIDTH)


def print_table(state: RunState, prices: Prices) -> None:
    """Print a row for each iteration, and below them what was spent.

    The test of a row is that of the models from which its trees were sampled.
    """
    columns = _columns(state)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for record in summary(state):
        table.add_row(*(cell(record) for cell in columns.values()))
    out = console()
    out.print(table)
    if state.rows:
        out.print()
        out.print(spending_table(state, prices))


def _columns(state: RunState) -> dict[str, Cell]:
    split = state.params.test_dataset_split
    worst = f"{split}.always_fail_share"  # only with enough dialogues about each datapoint
    failing = {"always fail": _percent(worst)} if any(worst in r for r in summary(state)) else {}
    selected = {f"selected {agent.name}": _selected(agent.name) for agent in state.params.agents}
    return {
        "iteration": _number("iteration"),
        "held-out accuracy [95 %]": lambda record: _accuracy(record, split),
        "buggy": _percent(f"{split}.accuracy_0"),
        "right": _percent(f"{split}.accuracy_1"),
        **failing,
        "nodes": _number("sample.nodes"),
        **selected,
        "tokens": lambda record: _sum(record, f"{split}.tokens", "sample.tokens"),
        "seconds": lambda record: f"{record['seconds']:.1f}",
    }


def _accuracy(record: dict[str, Any], split: str) -> str:
    if f"{split}.accuracy" not in record:
        return "-"
    mean, low, high = (record[f"{split}.accuracy{end}"] for end in ("", "_low", "_high"))
    return f"{mean:.1%} [{low:.1%}, {high:.1%}]"


def _percent(name: str) -> Cell:
    return lambda record: f"{record[name]:.1%}" if name in record else "-"


def _number(name: str) -> Cell:
    return lambda record: f"{record[name]:,.0f}" if name in record else "-"


def _selected(agent: str) -> Cell:
    """The number of preference pairs, or of dialogues to imitate."""
    names = (f"sample.{agent}.pairs", f"sample.{agent}.chosen")
    return lambda record: _sum(record, *names) if names[0] in record else "-"


def _sum(record: dict[str, Any], *names: str) -> str:
    return f"{sum(record.get(name, 0) for name in names):,.0f}"
