"""Children that train, forked from a server that has imported torch and trl already.

A training of the tests takes half a second, and the imports before it take six.  What is forked
runs the same module with the same arguments, and the same real trl; only the interpreter is not a
new one.  Tests of the process itself (its signals, its parent, its progress) start a real one.
"""

import asyncio
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar
from unittest.mock import patch

from nip_fn_adapters.local import children

PRELOADED = [
    "torch",
    "datasets",
    "peft",
    "trl.trainer.dpo_trainer",
    "trl.trainer.sft_trainer",
    "transformers.models.llama.modeling_llama",
    "nip_fn_adapters.local.train",
    "pytest",  # the parent's main module, which a child imports, too
]
LOOK_SECONDS = 0.05

T = TypeVar("T")

_context = multiprocessing.get_context("forkserver")


@contextmanager
def forked_trainings() -> Iterator[None]:
    """Inside, trainings in child processes are forked."""
    _context.set_forkserver_preload(PRELOADED)
    with patch.object(children, "run_child", _run_child):
        yield


def in_forked_process(function: Callable[..., T], *arguments: Any) -> T:
    """The value of a function of a module, in a process that has none of this one's state."""
    _context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(1, mp_context=_context) as pool:
        return pool.submit(function, *arguments).result()


async def _run_child(
    arguments: Sequence[str], log: BinaryIO, variables: Mapping[str, str], look: Callable[[], None]
) -> int:
    """As `children.run_child`, for `-m MODULE ARGUMENT ...`."""
    _, *command = arguments
    with patch.dict(os.environ, variables):  # the server's environment, where this starts it
        child = _context.Process(target=_be, args=(command, log.name, dict(variables)))
        child.start()
    try:
        while child.is_alive():
            look()
            await asyncio.sleep(LOOK_SECONDS)
        look()
    finally:
        child.kill()
        child.join()
    return child.exitcode or 0


def _be(command: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
    """Be the program that the command names, in a child."""
    os.environ.update(variables)
    printed = os.open(log, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(descriptor, standard)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
