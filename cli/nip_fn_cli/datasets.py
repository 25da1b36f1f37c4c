"""Opening a data set for a command: what is wrong with it ends the command."""

from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from returns.result import Failure
from rich.console import Console
from rich.markup import escape

from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.data.building import BadRows
from nip_fn_adapters.data.opening import Data, open_data
from nip_fn_cli.exits import Exit, die, say

MOST_SHOWN = 20


def told(data: Data) -> str:
    """A line about a data set: its size and its balance, split by split."""
    splits = (
        f"{one.right + one.buggy:,} {one.split} ({one.right / (one.right + one.buggy):.0%} right)"
        for one in data.report.balance
    )
    return f"data {data.info.name}: {', '.join(splits)}"


def open_or_die(params: HyperParameters, most_shown: int = MOST_SHOWN) -> Data:
    """The data set that the parameters name; says what was left out of it."""
    with _shown(params.dataset):
        opened = open_data(params)
    if isinstance(opened, Failure):
        problem = opened.failure()
        if isinstance(problem, Problem | str):
            die(Exit.USAGE, problem)
        _die_of(problem, most_shown)
    data = opened.unwrap()
    if data.report.bad:
        say(f"{data.info.name}: left out {_rows(data.report.bad)}")
    return data


def _shown(name: str) -> AbstractContextManager[object]:
    """Shows on a terminal that something is under way."""
    console = Console(stderr=True)
    return console.status(f"opening {escape(name)}") if console.is_terminal else nullcontext()


def _die_of(bad: BadRows, most_shown: int) -> NoReturn:
    for row in bad.first[:most_shown]:
        say(str(row))
    more = bad.count - min(most_shown, len(bad.first))
    rest = f" ({more} of them not shown)" if more else ""
    die(
        Exit.USAGE,
        f"{_rows(bad.count)}{rest}; nothing was begun; mend them, or leave them out with "
        "--skip-bad-rows",
    )


def _rows(count: int) -> str:
    return f"{count:,} bad {'row' if count == 1 else 'rows'}"
