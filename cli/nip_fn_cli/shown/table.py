"""The table of a run: a row for each iteration."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nip_fn.metrics.waste import alarming_waste
from nip_fn.params.agent import AgentParameters
from nip_fn.run.replay import summary
from nip_fn.run.state import RunState
from nip_fn_adapters.costs.prices import Prices, sum_known, total
from nip_fn_adapters.costs.spending import Expense, run_expenses
from nip_fn_adapters.experiments.budgets import in_dollars
from nip_fn_adapters.experiments.testing import waste_warnings
from nip_fn_cli.shown.numbers import percent, share_with_interval
from nip_fn_cli.shown.printing import print_rows

MARK = "!"  # of figures of which more than a tenth of the replies or games were wasted

CellText = Callable[[dict[str, Any]], str]


def print_table(state: RunState, prices: Prices) -> None:
    """Print a row for each iteration, and below them what was spent.

    The test of a row is that of the models from which its trees were sampled.
    """
    records = summary(state)
    columns = {
        title: [cell(record) for record in records] for title, cell in _columns(state).items()
    }
    # A run that only tests selects nothing.
    filled = {title: cells for title, cells in columns.items() if {*cells} != {"-"}}
    print_rows(tuple(filled), list(zip(*filled.values(), strict=True)))
    for line in waste_warnings(state):
        print(f"{MARK} {line}")
    if state.rows:
        print()
        print_spending(state, prices)


def print_spending(state: RunState, prices: Prices) -> None:
    """Print the tokens and the cost of each agent's replies and of each group's trainings."""
    titles = ("prompt tokens", "cached", "completion tokens", "trained tokens", "dollars")
    expenses = run_expenses(state, prices)
    by_row: dict[tuple[bool, str], list[Expense]] = {}
    for expense in expenses:
        by_row.setdefault((expense.tokens.trained > 0, expense.name), []).append(expense)
    rows = [
        (f"{'training ' * is_training}{name}", row_expenses[0].model, *_expense_cells(row_expenses))
        for (is_training, name), row_expenses in sorted(by_row.items(), key=lambda item: item[0][0])
    ]
    print_rows(("", "model", *titles), [*rows, ("total", "", *_expense_cells(expenses))])


def _expense_cells(expenses: Iterable[Expense]) -> tuple[str, ...]:
    expenses = tuple(expenses)
    cost = sum_known(expense.dollars for expense in expenses)
    tokens = total(expense.tokens for expense in expenses)
    return (*(f"{count:,.0f}" for count in tokens), in_dollars(cost))


def is_unequal(majority_class_share: float) -> bool:
    """True if the classes differ so much that whoever always says the same is no coin."""
    return round(majority_class_share, 2) > 0.5


def _marked(record: dict[str, Any], prefix: str, agents: Sequence[AgentParameters]) -> str:
    """The mark of a stage in which more than a tenth was wasted; "" for any other."""
    metrics = {
        n.removeprefix(f"{prefix}."): v for n, v in record.items() if n.startswith(f"{prefix}.")
    }
    return f" {MARK}" if alarming_waste(metrics, agents) else ""


def _columns(state: RunState) -> dict[str, CellText]:
    split, agents = state.params.test_dataset_split, state.params.agents
    worst = f"{split}.always_fail_share"  # only with enough dialogues about each datapoint
    failing = {"always fail": _percent(worst)} if any(worst in r for r in summary(state)) else {}
    majority = f"{split}.majority_class_share"
    balanced: dict[str, CellText] = {}
    if any(is_unequal(record[majority]) for record in summary(state) if majority in record):
        balanced = {
            "balanced accuracy [95 %]": lambda record: accuracy_cell(
                record, f"{split}.balanced_accuracy"
            ),
            "majority class": _percent(majority),
        }
    answers = f"{split}.answer_accuracy"
    written: dict[str, CellText] = {}
    if any(answers in record for record in summary(state)):
        written = {"right answers [95 %]": lambda record: accuracy_cell(record, answers)}
    selected = {f"selected {agent.name}": _selected(agent.name) for agent in state.params.agents}
    return {
        "iteration": _number("iteration"),
        "held-out accuracy [95 %]": lambda record: (
            accuracy_cell(record, f"{split}.accuracy") + _marked(record, split, agents)
        ),
        **balanced,
        **written,
        "wrong" if written else "buggy": _percent(f"{split}.accuracy_0"),
        "right": _percent(f"{split}.accuracy_1"),
        **failing,
        "nodes": lambda record: _number("sample.nodes")(record) + _marked(record, "sample", agents),
        **selected,
        "tokens": lambda record: _sum(record, f"{split}.tokens", "sample.tokens"),
        **({"failed trainings": _failed} if failed_trainings(state) else {}),
        "seconds": lambda record: f"{record['seconds']:.1f}",
    }


def failed_trainings(state: RunState) -> int:
    """The trainings that came to nothing, and the adapters that were refused."""
    return sum(int(_failures(record)) for record in summary(state))


def _failures(record: dict[str, Any]) -> float:
    names = ("train.jobs_failed", "publish.adapters_refused")
    return sum(float(record.get(name, 0)) for name in names)


def _failed(record: dict[str, Any]) -> str:
    return f"{_failures(record):.0f}"


def accuracy_cell(record: dict[str, Any], name: str = "accuracy") -> str:
    """An accuracy with its interval; "-" if it was not measured."""
    if name not in record:
        return "-"
    return share_with_interval([record[f"{name}{end}"] for end in ("", "_low", "_high")])


def _percent(name: str) -> CellText:
    return lambda record: percent(record.get(name))


def _number(name: str) -> CellText:
    return lambda record: f"{record[name]:,.0f}" if name in record else "-"


def _selected(agent: str) -> CellText:
    """The number of preference pairs, or of dialogues to imitate."""
    names = (f"sample.{agent}.pairs", f"sample.{agent}.chosen")
    return lambda record: _sum(record, *names) if names[0] in record else "-"


def _sum(record: dict[str, Any], *names: str) -> str:
    return f"{sum(record.get(name, 0) for name in names):,.0f}"
