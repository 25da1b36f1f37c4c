"""The terminal as the one who watches an experiment: lines, a display, and Ctrl-C."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.text import Text

from nip_fn_adapters.experiments.watching import Watch
from nip_fn_cli.shown.consoles import Console
from nip_fn_cli.shown.exits import say
from nip_fn_cli.shown.progress import Display
from nip_fn_cli.shown.study_board import Board

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _under_way(doing: str) -> AbstractContextManager[object]:
    """Show on a terminal that something is under way."""
    console = Console(stderr=True)
    return console.status(Text(doing)) if console.is_terminal else nullcontext()


@contextmanager
def _stopped_by_ctrl_c(grace: float) -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C sets, for a clean stop; the second one stops at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        say(
            f"stopping after the replies that are under way (at most {grace:,.0f} s); press "
            "Ctrl-C again to stop at once"
        )
        stop.set()
        release()

    def release() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    # SIGTERM, too: it is what batch systems send some seconds before they kill.
    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        release()


TERMINAL = Watch(say, _under_way, Display, Board, _stopped_by_ctrl_c)
