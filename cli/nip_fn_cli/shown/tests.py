"""The table of tests."""

from typing import Any

from nip_fn_cli.shown.numbers import dollars, interval, percent, points
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.table import MARK, is_unequal


def print_facts(names: dict[str, list[str]], rows: list[dict[str, Any]], *, over: str) -> None:
    """Print a table of tests.

    Args:
        names: What names each of them, by the title of a column.
        rows: The `facts` of each of them.
        over: The name of the test over which they gain.
    """
    columns: dict[str, list[str]] = {
        **names,
        "datapoints x games": [f"{row['datapoints']:,} x {row['games']}" for row in rows],
        "accuracy [95 %]": [
            interval(row["accuracy"]) + (f" {MARK}" if row["warnings"] else "") for row in rows
        ],
    }
    if any(is_unequal(row["majority_class_share"]) for row in rows):
        columns["balanced accuracy [95 %]"] = [interval(row["balanced_accuracy"]) for row in rows]
        columns["majority class"] = [percent(row["majority_class_share"]) for row in rows]
    if any(row["gain"] for row in rows):
        columns[f"over {over} [95 %]"] = [points(row["gain"]) for row in rows]
    if any(row["always_fails"] for row in rows):
        columns["always fails [95 %]"] = [interval(row["always_fails"]) for row in rows]
    kinds = {"buggy": "accuracy_0", "right": "accuracy_1", "undecided": "no_decision_rate"}
    columns |= {title: [percent(row[name]) for row in rows] for title, name in kinds.items()}
    columns["tokens"] = [f"{row['prompt_tokens'] + row['tokens']:,.0f}" for row in rows]
    columns["dollars"] = [dollars(row["dollars"]) for row in rows]
    print_rows(tuple(columns), list(zip(*columns.values(), strict=True)), keys=len(names))
