"""The cells of a study in their order, as many at a time as a crew has hands, within one budget."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from nip_fn_adapters.experiments.studies.cell import Order
from nip_fn_adapters.processes.exits import Exit

POLL_SECONDS = 0.5
WELL = (Exit.OK, Exit.SKIPPED)  # the exit codes of cells that are done


class Ended(NamedTuple):
    """A cell that is not running any more; its exit code is None if it was not begun."""

    name: str
    code: int | None


class Crew(Protocol):
    """Those who run cells: processes of this machine, or tasks on many machines."""

    def start(self, name: str, order: Order) -> None:
        """Begin a cell, or queue it."""

    def ended(self, seconds: float) -> Sequence[Ended]:
        """The cells that have ended since the last call; waits so long for one."""

    def stop(self, name: str) -> None:
        """Stop a cell as Ctrl-C does, or do not begin it if it is queued."""


class Task(NamedTuple):
    """A cell that is to be run.

    name: the cell's.
    order: makes its order; takes the dollars that it may spend, None for no limit.
    after: the name of the cell that must be done before; None if there is none.
    """

    name: str
    order: Callable[[float | None], Order]
    after: str | None = None


class Budget:
    """The dollars of all cells, shared out so that together they cannot spend more.

    A cell that begins may spend an equal share of what is left; what it leaves is for the others.
    """

    def __init__(self, limit: float | None, spent: Mapping[str, float]) -> None:
        """A limit, None for no limit, of which some cells have `spent` a part before."""
        self._limit = limit
        self._reserved = dict(spent)  # by cell; what it has spent, or may spend while it runs

    def share(self, name: str, waiting: int) -> float | None:
        """Reserve the share of a cell, one of `waiting`; over all its sessions, what it may spend.

        None if there is no limit.
        """
        if self._limit is None:
            return None
        spent = self._reserved.pop(name, 0.0)
        unreserved = max(0.0, self._limit - sum(self._reserved.values()) - spent)
        self._reserved[name] = spent + unreserved / waiting
        return self._reserved[name]

    def settle(self, name: str, spent: float) -> None:
        """Give back what a cell has not spent."""
        self._reserved[name] = spent

    def allows_more(self, name: str, waiting: int, had: float) -> bool:
        """True if the share of a cell would be larger by now, by a hundredth at least."""
        if self._limit is None:
            return False
        reserved = self._reserved.get(name, 0.0)
        unreserved = self._limit - sum(self._reserved.values())
        return reserved + unreserved / waiting > 1.01 * had


def run_all(
    tasks: Sequence[Task],
    crew: Crew,
    hands: int,
    budget: Budget,
    *,
    spent: Callable[[str], float],
    look: Callable[[Mapping[str, int | None]], object],
    stopping: Callable[[], bool],
) -> dict[str, int]:
    """Run cells; the exit code of each that has ended.

    A cell whose predecessor did not end well is not begun.  One that stopped at its share of the
    budget goes on when others have left enough of theirs.

    Args:
        tasks: The cells, in the order in which they are begun.
        crew: Runs them.
        hands: The most cells at a time.
        budget: For all of them.
        spent: The dollars that a cell has spent, by its recording.
        look: Called every half second with the cells that were begun: their exit codes, None of
            those that run.
        stopping: True once no more cells are to be begun, and the others to stop.
    """
    codes: dict[str, int] = {}
    shares: dict[str, float] = {}
    waiting, running = list(tasks), dict[str, Task]()
    succeeded = {task.after for task in tasks if task.after} - {task.name for task in tasks}
    stopped = False
    while waiting or running:
        if stopping() and not stopped:
            stopped = True
            waiting = []
            for name in running:
                crew.stop(name)
        while len(running) < hands and (task := _next(waiting, succeeded)) is not None:
            share = budget.share(task.name, len(waiting))
            waiting.remove(task)
            running[task.name] = task
            shares[task.name] = 0.0 if share is None else share
            crew.start(task.name, task.order(share))
        if not running:  # what is left waits for cells that did not end well
            break
        for name, code in crew.ended(POLL_SECONDS):
            del running[name]
            budget.settle(name, spent(name))
            if code is None:
                continue
            codes[name] = code
            if code in WELL:
                succeeded.add(name)
        if not running and not stopped:
            again = [task for task in tasks if codes.get(task.name) == Exit.BUDGET]
            waiting += [
                task
                for task in again
                if budget.allows_more(task.name, len(again), shares[task.name])
            ]
        look({**codes, **dict.fromkeys(running)})
    return codes


def _next(waiting: Sequence[Task], succeeded: set[str]) -> Task | None:
    """The first cell that can be begun."""
    return next((task for task in waiting if task.after is None or task.after in succeeded), None)
