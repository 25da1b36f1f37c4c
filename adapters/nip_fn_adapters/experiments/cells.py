"""The cells of an evaluation: tests, each recorded as a run of its own and never played twice."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.config.codec import params_hash
from nip_fn.errors import Problem
from nip_fn.game.datapoint import text_hash
from nip_fn.metrics.formulas import Metrics
from nip_fn.metrics.oversight import Judged, judged
from nip_fn.run.quotes import Quotes
from nip_fn.run.replay import StageForest
from nip_fn_adapters.costs.spending import run_cost
from nip_fn_adapters.data.opening import Data
from nip_fn_adapters.experiments.budgets import Money, check_budget, money_of_run, spent_at_most
from nip_fn_adapters.experiments.datasets import describe
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.plans import New, checked_name, plan
from nip_fn_adapters.experiments.quoting import quoting
from nip_fn_adapters.experiments.recordings import read_run
from nip_fn_adapters.experiments.session import Session, run_session
from nip_fn_adapters.experiments.start import create, reopen
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.recording.runs import Run
from nip_fn_adapters.recording.store import CHECKPOINT


class Cell(NamedTuple):
    """A test to be played.

    folder: the name of its run.
    given: the written configuration of its run.
    new: the plan of its run.
    """

    folder: str
    given: dict[str, Any]
    new: New


class Tested(NamedTuple):
    """A test that has been played.

    run: its run, as it was recorded.
    dollars: the cost; None if it is unknown.
    """

    run: Run
    dollars: float | None

    @property
    def forest(self) -> StageForest:
        """The dialogues."""
        return self.run.replayed.stages[0]

    @property
    def judged(self) -> Judged:
        """The ends of the dialogues."""
        batch = self.forest.batch
        return judged(batch.protocol, batch.datapoints, batch.trees)

    @property
    def metrics(self) -> Metrics:
        """The metrics of its only stage."""
        return self.run.state.rows[0].metrics


class Evaluation:
    """The cells of one evaluation, played one after the other within one budget."""

    def __init__(
        self, place: Path, provider: str | None, money: Money, watch: Watch = NOBODY
    ) -> None:
        """An evaluation whose runs lie in `place`."""
        self._watch = watch
        self.place = place
        self._provider = provider
        self._money = money
        self._spent = 0.0
        self._played = {True: 0, False: 0}  # cells, by whether they had been before

    def play(self, cell: Cell, *, quotes: Quotes | None = None, data: Data | None = None) -> Tested:
        """The test of a cell, which is played as far as it has not been.

        Args:
            cell: The cell.
            quotes: The replies that are given instead of asking a model.
            data: The datapoints, if not those of the cell's data set.
        """
        folder = self.place / cell.folder
        if (folder / CHECKPOINT).exists():
            session = reopen(folder, cell.given, self._provider, data=data, watch=self._watch)
        else:
            session = create(folder, cell.new, data, watch=self._watch)
        self._played[session.state.stage.name == "done"] += 1
        if quotes:
            models = session.models
            quoted = models._replace(sampler=quoting(models.sampler, quotes))
            session = session._replace(models=quoted)
        title = f"{cell.folder}: {describe(session.data, session.params)}"
        # One budget for the whole command: what a cell leaves is for those behind it.
        run = played(session, folder, title, self._money.remaining(self._spent), self._watch)
        money = money_of_run(self._money, folder)
        self._spent += spent_at_most(run.state, folder, money)
        return Tested(run, run_cost(run.state, money.prices))

    def tell_recorded(self) -> None:
        """Tell how many of the cells were only read, if any were."""
        before, now = self._played[True], self._played[False]
        if before:
            which = f"{before} of {before + now} tests were" if now else "all tests were"
            self._watch.tell(
                f"nip-fn: {which} played before; their recorded replies in {self.place} are shown, "
                "and no model was asked; to ask again, give the evaluation another name (`name`)"
            )


def played(session: Session, folder: Path, title: str, money: Money, watch: Watch = NOBODY) -> Run:
    """A session's run, which is played as far as it has not been.

    Args:
        session: The run.
        folder: Its folder.
        title: The line that announces it, if anything is left to play.
        money: The prices and the budget.
        watch: Whoever watches.

    Returns:
        The run, read again from its file, so that whatever is reported is what was recorded.
    """
    if session.state.stage.name == "done":
        session.store.close()
    else:
        watch.tell(title)
        run_session(session, folder, "the same command", money, watch)
    return read_run(folder / CHECKPOINT, watch)


def cell_of(
    folder: str, given: dict[str, Any], provider: str | None, runs: Path, watch: Watch = NOBODY
) -> Cell:
    """The cell that a written configuration describes; refuses one that has a problem."""
    return Cell(folder, given, plan(given, provider, runs, watch))


def open_evaluation(
    cells: Iterable[Cell],
    name: str | None,
    kind: str,
    provider: str | None,
    money: Money,
    runs: Path,
    watch: Watch = NOBODY,
) -> Evaluation:
    """The evaluation that consists of some cells, none of which is played yet.

    Args:
        cells: The cells.
        name: The name of its folder; None for one made from the parameters.
        kind: The word that such a name begins with.
        provider: The provider of all agents.
        money: The prices and the budget.
        runs: The folder of all runs.
        watch: Whoever watches.

    Returns:
        The evaluation.  Refuses if two cells have one folder, or a price is unknown.
    """
    cells = list(cells)
    if len({cell.folder for cell in cells}) < len(cells):
        problem = "two of the models have the same name but for its punctuation"
        refuse(Problem(problem, "`models`", "test them in two evaluations"))
    # All of them before the first is played: a refusal must not come after hours.
    for cell in cells:
        check_budget(cell.new.params, money)
    place = runs / (checked_name(name) or evaluation_name(kind, cells))
    return Evaluation(place, provider, money, watch)


def evaluation_name(kind: str, cells: Iterable[Cell]) -> str:
    """KIND-HASH, the hash that of the parameters of all cells."""
    whole = text_hash("".join(params_hash(cell.new.params) for cell in cells))
    return f"{kind}-{whole[:8]}"
