"""Cells as child processes of this one."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from nip_fn_adapters.experiments.studies.cell import Child, Order, run_cell
from nip_fn_adapters.experiments.studies.running import Ended


class LocalCrew:
    """Implements `Crew` with a process for each cell; they end with this one, however it ends."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._children: dict[str, Child] = {}
        self._unwanted: set[str] = set()

    def start(self, name: str, order: Order) -> None:
        """Begin a cell."""
        Thread(target=self._run, args=(name, order), daemon=True).start()

    def _run(self, name: str, order: Order) -> None:
        def began(child: Child) -> None:
            self._children[name] = child
            if name in self._unwanted:  # it began as it was stopped
                child.send_signal(signal.SIGTERM)

        self._ended.put(Ended(name, run_cell(order, began, lambda: name in self._unwanted)))

    def ended(self, seconds: float) -> Sequence[Ended]:
        """The cells that have ended; waits so long for one."""
        cells = []
        with suppress(Empty):
            cells.append(self._ended.get(timeout=seconds))
        return cells

    def stop(self, name: str) -> None:
        """Stop a cell as Ctrl-C does."""
        self._unwanted.add(name)
        child = self._children.get(name)
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
