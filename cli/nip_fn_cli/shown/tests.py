"""The table of tests, and records as JSON."""

from collections.abc import Sequence
from typing import Any

from nip_fn_adapters.experiments.testing import Measurement
from nip_fn_cli.shown.numbers import dollars, percent, points, share_with_interval
from nip_fn_cli.shown.printing import print_rows
from nip_fn_cli.shown.table import MARK, is_unequal


def print_tests(names: dict[str, list[str]], tests: Sequence[Measurement], *, over: str) -> None:
    """Print a table of tests.

    Args:
        names: What names each of them, by the title of a column.
        tests: Their measures.
        over: The name of the test over which they gain.
    """
    columns: dict[str, list[str]] = {
        **names,
        "datapoints x games": [f"{test.datapoints:,} x {test.games}" for test in tests],
        "accuracy [95 %]": [
            share_with_interval(test.accuracy) + (f" {MARK}" if test.warnings else "")
            for test in tests
        ],
    }
    if any(test.expected_accuracy for test in tests):
        columns["expected [95 %]"] = [share_with_interval(test.expected_accuracy) for test in tests]
    if any(is_unequal(test.majority_class_share) for test in tests):
        columns["balanced accuracy [95 %]"] = [
            share_with_interval(test.balanced_accuracy) for test in tests
        ]
        columns["majority class"] = [percent(test.majority_class_share) for test in tests]
    if any(test.gain for test in tests):
        columns[f"over {over} [95 %]"] = [points(test.gain) for test in tests]
    if any(test.always_fails for test in tests):
        columns["always fails [95 %]"] = [share_with_interval(test.always_fails) for test in tests]
    columns["buggy"] = [percent(test.accuracy_0) for test in tests]
    columns["right"] = [percent(test.accuracy_1) for test in tests]
    columns["undecided"] = [percent(test.no_decision_rate) for test in tests]
    columns["tokens"] = [f"{test.prompt_tokens + test.tokens:,.0f}" for test in tests]
    columns["dollars"] = [dollars(test.dollars) for test in tests]
    print_rows(tuple(columns), list(zip(*columns.values(), strict=True)), keys=len(names))


def as_table(record: Any) -> dict[str, Any]:
    """A named tuple and those in it as tables, for JSON; without the run that it came from."""
    return {
        name: as_table(value) if hasattr(value, "_asdict") else value
        for name, value in record._asdict().items()
        if name != "run"
    }
