"""`nip-fn data stats`: the contents of a data set in numbers."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
import typer
from msgspec.structs import asdict

from nip_fn.code.statistics import NO_TEXT, SplitStatistics, statistics
from nip_fn_adapters.experiments.datasets import describe, left_out, opened_data
from nip_fn_cli.commands.data.opening import DatasetArgument, data_params
from nip_fn_cli.shown.exits import Exit, die
from nip_fn_cli.shown.options import JsonOption, SetOption, SkipOption
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.watching import TERMINAL


def stats_command(
    dataset: DatasetArgument,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Count the tokens of this model, not characters.", metavar="NAME"),
    ] = None,
    sets: SetOption = None,
    skip_bad_rows: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a data set holds: rows, problems, balance, difficulties, lengths, hash."""
    params = data_params(dataset, sets, skip_bad_rows)
    data = opened_data(params, TERMINAL)
    unit, length = _length(tokenizer)
    splits = statistics(data.solutions(), length)
    views = dict.fromkeys(name for split in splits for name, _ in split.views)
    if as_json:
        report = {**asdict(data.report), "info": asdict(data.info), "lengths_in": unit}
        print(msgspec.json.encode({**report, "splits": [*map(_table, splits)]}).decode())
        return
    print(describe(data, params))
    _print_statistics(splits, (*views,), unit)
    for line in left_out(data):
        print(line)
    if data.report.unused:
        print(f"columns that nothing is read from: {', '.join(data.report.unused)}")
    print(f"hash {data.info.hash}")


def _table(split: SplitStatistics) -> dict[str, Any]:
    return {
        **split._asdict(),
        "buggy": split.buggy,
        "difficulties": dict(split.difficulties),
        "question": split.question._asdict(),
        "solution": split.solution._asdict(),
        "views": {name: lengths._asdict() for name, lengths in split.views},
    }


def _length(tokenizer: str | None) -> tuple[str, Callable[[str], int]]:
    """The unit of lengths, and a function that counts them."""
    if tokenizer is None:
        return "characters", len
    from nip_fn_adapters.providers.local.models import token_counter

    counter = token_counter(tokenizer)
    option = f"--tokenizer {tokenizer}"
    return "tokens", counter.alt(lambda why: die(Exit.USAGE, f"{option}: {why}")).unwrap()


def _print_statistics(splits: Iterable[SplitStatistics], views: tuple[str, ...], unit: str) -> None:
    # Data that say everything in views have no solutions.
    texts = ("question", *([f"view of {name}" for name in views] or ["solution"]))
    lengths = [f"{what}, {unit}" for what in texts]
    titles = ("datapoints", "problems", "right", "buggy", "with tests", "difficulties")
    rows = []
    for split in splits:
        share, buggy = split.right / split.datapoints, split.buggy / split.datapoints
        texts_of = [dict(split.views).get(name, NO_TEXT) for name in views] or [split.solution]
        spread = (
            f"{x.median:,.0f} / {x.most:,.0f} / {x.longest:,}" for x in (split.question, *texts_of)
        )
        shares = (
            f"{split.right:,} ({share:.0%})",
            f"{split.buggy:,} ({buggy:.0%})",
        )
        difficulties = ", ".join(f"{name} {count:,}" for name, count in split.difficulties)
        counts = f"{split.datapoints:,}", f"{split.problems:,}", *shares, f"{split.with_tests:,}"
        rows.append((split.split, *counts, difficulties, *spread))
    print_rows(("split", *titles, *lengths), rows)
    print("lengths: median / 95th percentile / longest")
