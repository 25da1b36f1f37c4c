"""Opening a data set for a command, which ends if the data set cannot be used."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import NoReturn

from rich.text import Text

from nip_fn.config.data_checks import class_problems, view_problems
from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn.run.step import data_problems
from nip_fn_adapters.data.building import REASONS, BadRows
from nip_fn_adapters.data.opening import Data, open_data
from nip_fn_cli.consoles import Console
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
    """The data set that the parameters name; say what was left out of it."""
    with _shown(params.dataset):
        opened = open_data(params)
    data = opened.alt(lambda problem: _die_of(problem, most_shown)).unwrap()
    for line in left_out(data):
        say(f"{data.info.name}: {line}")
    return data


def suitable_or_die(params: HyperParameters, data: Data | None = None) -> Data:
    """The data set that the parameters name, if a run with these parameters can use it.

    `data`, a part of one that was chosen, goes before it, and may be of one class.
    """
    opened = data or open_or_die(params)
    classes = {one.split: (one.right, one.buggy) for one in opened.report.balance}
    one_class = list(class_problems(params, classes)) if data is None else []
    # Whoever trains nothing may well test on one class alone: on bugs, on a single row.
    refused = one_class if params.rl.num_iterations else []
    problems = data_problems(params, opened.info), view_problems(params, opened.report.views)
    for problem in chain(*problems, refused):
        die(Exit.USAGE, problem)
    for problem in one_class:
        say(f"nip-fn: warning: {problem}")
    return opened


def left_out(data: Data) -> Iterator[str]:
    """A line for each reason why rows are in no split: how many of which label."""
    if data.report.bad:
        yield f"left out {_rows(data.report.bad)}"
    for one in data.report.left_out:
        count = f"{one.right + one.buggy:,} {_plural('row', one.right + one.buggy)}"
        yield f"left out {count} ({one.right:,} right, {one.buggy:,} buggy) {REASONS[one.why]}"


def _shown(name: str) -> AbstractContextManager[object]:
    """Show on a terminal that something is under way."""
    console = Console(stderr=True)
    return console.status(Text(f"opening {name}")) if console.is_terminal else nullcontext()


def _die_of(bad: Problem | BadRows, most_shown: int) -> NoReturn:
    if isinstance(bad, Problem):
        die(Exit.USAGE, str(bad))
    for row in bad.first[:most_shown]:
        say(str(row))
    more = bad.count - min(most_shown, len(bad.first))
    rest = f" ({more} of them not shown)" if more else ""
    die(
        Exit.USAGE,
        f"{_rows(bad.count)}{rest}; nothing was begun; correct them, or leave them out with "
        "--skip-bad-rows",
    )


def _rows(count: int) -> str:
    return f"{count:,} bad {_plural('row', count)}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
