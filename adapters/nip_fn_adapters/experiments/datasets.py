"""Data sets that runs are about to use: opened, checked, and described in a line."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain

from nip_fn.code.solutions import SAVE_AS_UTF_8
from nip_fn.config.data_checks import class_problems, label_problems, view_problems
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Kind, Split
from nip_fn.params.run import HyperParameters
from nip_fn.run.sizes import data_problems
from nip_fn_adapters.data.building import REASONS, BadRows, Balance
from nip_fn_adapters.data.opening import Data, open_data
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.watching import NOBODY, Watch

MOST_SHOWN = 20
FEW = 20  # held-out datapoints, below which an accuracy of 50 % has an interval of over 40 points
TAKEN_FOR: dict[Kind, str] = {
    "code": "programs",
    "prose": "answers in prose",
    "choice": "options",
    "number": "calculations",
}


def describe(data: Data, params: HyperParameters) -> str:
    """A line about a data set: its kind, and the size and balance of each split."""
    claims = any(data.report.views) and not data.report.solved
    taken_for = "claims with views" if claims else TAKEN_FOR[data.report.kind]
    splits = map(_describe_split, data.report.balance, chosen(data, params))
    return f"data {data.info.name}, {taken_for}: {', '.join(splits)}"


def _describe_split(whole: Balance, part: Balance) -> str:
    size, used = whole.size, part.size
    count = f"{size:,}" if used == size else f"{used:,} of {size:,}"
    few = "; few" if used == size < FEW and whole.split != "train" else ""
    right = "answers to be written" if part.unlabelled else f"{part.right / used:.0%} right"
    return f"{count} {whole.split} ({right}{few})"


@lru_cache(maxsize=1)  # a run that begins checks its data, and then describes them
def chosen(data: Data, params: HyperParameters) -> tuple[Balance, ...]:
    """The balance of the datapoints that are used of each split, within the limits on their number.

    A limit takes the first datapoints of a split.
    """
    options = params.dataset_options
    limits = {"train": options.max_train_size, params.test_dataset_split: options.max_test_size}

    def limited(whole: Balance) -> Balance:
        limit = limits.get(whole.split)
        if limit is None or limit >= whole.size:
            return whole
        labels = Counter(point.label for point in data.source(whole.split, range(limit)))
        return Balance(whole.split, labels[1], labels[0], labels[None])

    return tuple(map(limited, data.report.balance))


def opened_data(
    params: HyperParameters, watch: Watch = NOBODY, most_shown: int = MOST_SHOWN
) -> Data:
    """The data set that the parameters name; tells what was left out of it.

    Refuses bad rows, `most_shown` of which are details of the problem.
    """
    with watch.under_way(f"opening {params.dataset}"):
        opened = open_data(params)
    data = opened.alt(lambda problem: _problem_of(problem, most_shown)).unwrap()
    for line in left_out(data):
        watch.tell(f"{data.info.name}: {line}")
    return data


def suitable_data(params: HyperParameters, watch: Watch = NOBODY, data: Data | None = None) -> Data:
    """The data set that the parameters name, if a run with these parameters can use it.

    Refuses data that it cannot use.  `data`, a part of one that was chosen, goes before it, and
    may be of one class.
    """
    opened = data or opened_data(params, watch)
    whole, used = _classes(opened.report.balance), _classes(chosen(opened, params))
    limited = [split for split in whole if whole[split] != used[split]]
    one_class = [] if data else list(class_problems(params, used, limited))
    # Whoever trains nothing may well test on one class alone: on bugs, on a single row.
    refused = class_problems(params, whole) if params.rl.num_iterations and data is None else ()
    is_labelled = not any(balance.unlabelled for balance in opened.report.balance)
    problems = (
        data_problems(params, opened.info),
        view_problems(params, opened.report.views, solved=opened.report.solved),
        label_problems(params, is_labelled=is_labelled),
    )
    for problem in chain(*problems, refused):
        refuse(problem)
    for problem in one_class:
        watch.warn(problem)
    return opened


def _classes(balances: Iterable[Balance]) -> dict[Split, tuple[int, int]]:
    return {balance.split: (balance.right, balance.buggy) for balance in balances}


def left_out(data: Data) -> Iterator[str]:
    """A line for each reason why rows are in no split, with their number by label."""
    if data.report.bad:
        yield f"left out {_rows(data.report.bad)}"
    for rows in data.report.left_out:
        size = rows.right + rows.buggy + rows.unlabelled
        labels = "" if rows.unlabelled else f" ({rows.right:,} right, {rows.buggy:,} buggy)"
        yield f"left out {size:,} {_plural('row', size)}{labels} {REASONS[rows.why]}"


def _problem_of(bad: Problem | BadRows, most_shown: int) -> Problem:
    """The problem of data that cannot be opened, with the first bad rows as its details."""
    if isinstance(bad, Problem):
        return bad
    # A file in another encoding has such a row for each accent: the first stands for all.
    distinct = [row for row in bad.first if row.remedy != SAVE_AS_UTF_8]
    details = [str(row) for row in distinct[:most_shown]]
    if len(distinct) < len(bad.first):
        first = next(row for row in bad.first if row.remedy == SAVE_AS_UTF_8)
        least = "" if len(bad.first) == bad.count else "at least "
        details.insert(0, f"{first} ({least}{_rows(len(bad.first) - len(distinct))} of the kind)")
    more = bad.count - len(bad.first) + len(distinct[most_shown:])
    rest = f" ({more} of them not shown)" if more else ""
    remedy = (
        "nothing was begun; correct them, or leave them out with dataset_options.skip_bad_rows = "
        "true (--skip-bad-rows)"
    )
    return Problem(f"{_rows(bad.count)}{rest}", remedy=remedy, details=tuple(details))


def _rows(count: int) -> str:
    return f"{count:,} bad {_plural('row', count)}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
