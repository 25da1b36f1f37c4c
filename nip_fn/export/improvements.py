"""A run about a world whose theory is known: its first and its last test, beside the optimum."""

from nip_fn.run.replay import summary
from nip_fn.run.state import RunState
from nip_fn.worlds import IMPROVEMENTS
from nip_fn.worlds.improvement import Improvement

Cells = tuple[str, str, str, str]
TITLES: Cells = ("", "before", "after", "optimum")


def improvements_of(state: RunState) -> tuple[Improvement, ...]:
    """The measures of a run before and after its training; () without a theory or two tests."""
    prefix = f"{state.params.test_dataset_split}."
    tests = [
        {name.removeprefix(prefix): value for name, value in record.items()}
        for record in summary(state)
        if f"{prefix}accuracy" in record
    ]
    improvements = IMPROVEMENTS.get(state.params.dataset)
    return improvements(tests[0], tests[-1]) if improvements and len(tests) > 1 else ()


def cells(row: Improvement) -> Cells:
    """An improvement as a row of text, below `TITLES`."""

    def cell(value: float | str | None) -> str:
        if value is None or isinstance(value, str):
            return value or "-"
        return f"{value:.1%}" if row.share else f"{value:.1f}"

    return row.name, cell(row.before), cell(row.after), cell(row.optimum)
