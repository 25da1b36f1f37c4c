"""Trainings that are killed as soon as they begin, as a system without memory does."""

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil


def is_training(process: psutil.Process) -> bool:
    """True of a Python that trains, by itself or as the fork of one that has its imports."""
    line, parent = process.cmdline(), process.parent()
    forked = "nip_fn_adapters.providers.local.warm" in line and parent and parent.cmdline() == line
    return "nip_fn_adapters.providers.local.train" in line or bool(forked)


@contextlib.contextmanager
def killing_trainings(most: int) -> Iterator[list[int]]:
    """Kill the first trainings that this process starts; their process ids."""
    killed, over = list[int](), threading.Event()

    def watch() -> None:
        while not over.is_set() and len(killed) < most:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.pid not in killed and is_training(child):
                        child.kill()
                        killed.append(child.pid)
            time.sleep(0.01)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield killed
    finally:
        over.set()
        watching.join()
