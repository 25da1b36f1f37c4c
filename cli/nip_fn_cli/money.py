"""The options about money: a budget, and a file of prices."""

from pathlib import Path

from nip_fn_adapters.experiments.budgets import Money, read_money
from nip_fn_adapters.experiments.outcomes import outcome
from nip_fn_cli.shown.exits import or_exit


def money_or_die(budget: float | None = None, file: Path | None = None) -> Money:
    """The budget, and the prices: of `file`, then of the user's own file, then the listed ones."""
    return or_exit(outcome(read_money)(budget, file))
