"""A run about a world whose theory is known: its first and its last test, beside the optimum."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nip_fn.run.replay import summary
from nip_fn.run.state import RunState
from nip_fn.worlds import IMPROVEMENTS
from nip_fn.worlds.improvement import Improvement

Cells = tuple[str, str, str, str]
TITLES: Cells = ("", "before", "after", "optimum")


class BestReplies(NamedTuple):
    """The verifier's errors against the best reply there is, as an exact attack computed them.

    conditions: in words, where they are not those of the run's tests.
    problems: the number of problems about which it was computed.
    errors: the soundness error, by the iteration of the verifier.
    """

    conditions: str
    problems: int
    errors: Mapping[int, float]


def improvements_of(
    state: RunState, computed: Sequence[BestReplies] = ()
) -> tuple[Improvement, ...]:
    """The measures of a run before and after its training; () without a theory or two tests.

    Args:
        state: Of the run.
        computed: The exact attacks of its verifiers.
    """
    prefix = f"{state.params.test_dataset_split}."
    tests = [
        {name.removeprefix(prefix): value for name, value in record.items()}
        for record in summary(state)
        if f"{prefix}accuracy" in record
    ]
    improvements = IMPROVEMENTS.get(state.params.dataset)
    if not improvements or len(tests) < 2:
        return ()
    return (
        *improvements(tests[0], tests[-1]),
        *(
            Improvement(
                f"soundness error: the best reply{best.conditions and f', {best.conditions}'} "
                f"({best.problems} problem{'' if best.problems == 1 else 's'})",
                best.errors.get(0),
                best.errors.get(state.iteration),
                None,
            )
            for best in computed
        ),
    )


def cells(row: Improvement) -> Cells:
    """An improvement as a row of text, below `TITLES`."""

    def cell(value: float | str | None) -> str:
        if value is None or isinstance(value, str):
            return value or "-"
        return f"{value:.1%}" if row.share else f"{value:.1f}"

    return row.name, cell(row.before), cell(row.after), cell(row.optimum)
